"""The conformance program on Redis: the reference readers, in threads and on an event loop, pass."""

import sys

import pytest

from tidegate.testing.conformance.refusals import ON_REDIS, ON_SQLITE
from tidegate.testing.conformance.run import PASSED, conformance
from tidegate.testing.conformance.vectors.faults import FAULTS

PROGRAM = f"{sys.executable} -m tidegate.testing.conformance.reader"
ASYNCIO = f"{sys.executable} -m services.support.aio_reader"


PART = ["rows-few-key-groups", "retired", "follows", "kept", "snapshot-revoked", "refuses-gone", *ON_REDIS]


@pytest.mark.parametrize("program", [PROGRAM, ASYNCIO], ids=["threads", "asyncio"])
def test_what_only_redis_has(redis, program):
    """Headers, servers, layers, bases, leases: the rest is the same code on files."""
    results = conformance(program, redis.url, only=PART)
    assert [result for result in results if result.outcome != PASSED] == []


@pytest.mark.parametrize("program", [PROGRAM, ASYNCIO], ids=["threads", "asyncio"])
def test_a_server_that_has_a_bad_day(redis, program):
    """What passes is waited for, and a server that was replaced costs its connections."""
    results = conformance(program, redis.url, only=[*FAULTS])
    assert [result for result in results if result.outcome != PASSED] == []


@pytest.mark.slow
@pytest.mark.parametrize("program", [PROGRAM, ASYNCIO], ids=["threads", "asyncio"])
def test_the_reference_reader_passes(redis, program):
    before = redis.ask("KEYS", "*conformance-*")
    results = conformance(program, redis.url)
    assert [result.name for result in results if result.outcome != PASSED] == [*ON_SQLITE]
    assert redis.ask("KEYS", "*conformance-*") == before


@pytest.mark.slow
@pytest.mark.parametrize("program", [PROGRAM, ASYNCIO], ids=["threads", "asyncio"])
def test_on_a_cluster(redis_cluster, program):
    results = conformance(program, redis_cluster.url)
    assert [result.name for result in results if result.outcome != PASSED] == [*ON_SQLITE, *FAULTS]
