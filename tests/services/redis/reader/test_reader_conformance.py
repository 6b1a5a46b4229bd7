"""The conformance program on Redis: the reference reader passes, also the checks of headers and servers."""

import sys

import pytest

from tidegate.testing.conformance.refusals import ON_REDIS, ON_SQLITE
from tidegate.testing.conformance.run import PASSED, conformance

PROGRAM = f"{sys.executable} -m tidegate.testing.conformance.reader"


def test_what_only_redis_has(redis):
    """Headers, servers, layers and bases: the rest is the same code on files."""
    results = conformance(PROGRAM, redis.url, only=["rows-few-key-groups", "follows", *ON_REDIS])
    assert [result for result in results if result.outcome != PASSED] == []


@pytest.mark.slow
def test_the_reference_reader_passes(redis):
    before = redis.ask("KEYS", "*conformance-*")
    results = conformance(PROGRAM, redis.url)
    assert [result.name for result in results if result.outcome != PASSED] == [*ON_SQLITE]
    assert redis.ask("KEYS", "*conformance-*") == before


@pytest.mark.slow
def test_on_a_cluster(redis_cluster):
    results = conformance(PROGRAM, redis_cluster.url)
    assert [result.name for result in results if result.outcome != PASSED] == [*ON_SQLITE]
