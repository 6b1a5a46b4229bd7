"""A process that lives for months: after any number of versions, gates and snapshots it keeps the same."""

from __future__ import annotations

import contextlib

import pytest

from support.growth import CHECKS, check_versions
from tidegate.sinks.open_store import open_store
from tidegate.testing.example import write_flights

CASSANDRA = {"check_gates": 50, "check_gates_of_a_loop": 50, "check_snapshots_of_a_loop": 250}
"""Smaller windows: a session is opened for each gate, and a loop's requests wait for one thread."""
SIZES = [pytest.param(False, id="few"), pytest.param(True, id="many", marks=pytest.mark.slow)]


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("many", SIZES)
@pytest.mark.parametrize("how", ["sync", "pipelined"])
def test_versions_leave_nothing(kafka, redis, monkeypatch, how, many):
    check_versions(f"kafka://{kafka.bootstrap}", redis.url, how, monkeypatch, many=many)


@contextlib.contextmanager
def flights_on(url, folder, **options):
    """Make three versions of namespace ``flights``, and remove it afterwards."""
    write_flights(f"file://{folder}/wal", url)
    try:
        yield
    finally:
        with contextlib.closing(open_store(url, "flights", options)) as store:
            store.drop()


def cases(*, slow):
    return [pytest.param(check, full if slow else few, id=check.__name__) for check, few, full in CHECKS]


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize("check, size", cases(slow=False))
def test_readers_of_redis_leave_nothing(private_redis, tmp_path, check, size):
    url = private_redis().url
    with flights_on(url, tmp_path):
        check(url, size)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("check, size", cases(slow=True))
def test_many_readers_of_redis_leave_nothing(private_redis, tmp_path, check, size):
    url = private_redis().url
    with flights_on(url, tmp_path):
        check(url, size)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("check, size", cases(slow=True))
def test_many_readers_of_cassandra_leave_nothing(cassandra_tables, tmp_path, check, size):
    with flights_on(cassandra_tables, tmp_path):
        check(cassandra_tables, CASSANDRA.get(check.__name__, size))
