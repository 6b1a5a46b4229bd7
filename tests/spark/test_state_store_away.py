"""A store that is silent, slow or away while tasks read their state from it, and back, or not (I5)."""

from __future__ import annotations

import sys

import pytest
from pyspark import cloudpickle

import tidegate
from redis_proxy import RedisProxy
from redis_server import RedisServer
from tidegate.errors import StoreUnavailableError
from tidegate.sinks.redis_functions import LIBRARY

pytestmark = [pytest.mark.spark, pytest.mark.only_log("file")]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import the tests

SCHEMA = "k string, n bigint"
KEYS = 40
READ = "FCALL_RO", f"{LIBRARY}_read"
"""What a task asks for its state."""


def rows_of(batch):
    return [{"k": f"k{key}", "n": batch + key} for key in range(KEYS)]


def total(key, rows, state, emit):
    return {"n": (state["n"] if state else 0) + sum(row["n"] for row in rows)}


def count(instance, rows, state, emit):
    return [b"%d" % (sum(map(int, state)) + sum(1 for _ in rows))]


def write(txn, rows):
    txn.update("updated", rows, "k", total, schema="n bigint")
    txn.reduce("reduced", rows, "k", {"n": "sum"})
    txn.local_state("counted", rows, count, redistribute=(None, None))


@pytest.fixture
def proxied(tmp_path):
    """A server and a proxy in front of it, through which the sink goes."""
    with RedisServer(tmp_path / "redis") as server, RedisProxy(("127.0.0.1", server.port)) as proxy:
        yield server, proxy


def sink_on(flights, proxy, **options):
    host, port = proxy.address
    flights.store = f"redis://{host}:{port}"
    store_options = {"socket_timeout": 1, **options}
    # No cache, so that every batch asks; less time for functions than the store is silent.
    return flights.sink(
        parallelism=2,
        state_cache_bytes=0,
        allow_unsafe=True,
        function_deadline_s=1,
        store_options=store_options,
    )


def check(server, batches):
    with tidegate.connect(server.url, namespace="flights") as gate, gate.snapshot() as snapshot:
        assert snapshot.version == batches
        expected = {f"k{key}": {"n": sum(batch + key for batch in range(batches))} for key in range(KEYS)}
        assert dict(snapshot.table("updated").scan()) == expected
        assert dict(snapshot.table("reduced").scan()) == expected
        assert sum(int(item) for _, item in snapshot.table("_local.counted").scan()) == KEYS * batches


@pytest.mark.slow
def test_silent_while_state_is_read_and_back_the_batch_goes_on_i5(stream, proxied):
    flights, (server, proxy) = stream(SCHEMA), proxied
    sink = sink_on(flights, proxy, timeout_s=120)
    flights.commit(sink.each(write), rows_of(0))
    lost = proxy.drop_reply(*READ, close=False, times=3)  # who waits for it has to give up by itself
    flights.commit(sink.each(write), rows_of(1))
    assert lost.hits == 3
    flights.commit(sink.each(write), rows_of(2))
    check(server, 3)


@pytest.mark.slow
def test_away_while_state_is_read_nothing_is_decided_and_the_store_is_named_i5(stream, proxied):
    flights, (server, proxy) = stream(SCHEMA), proxied
    sink = sink_on(flights, proxy, timeout_s=2)
    flights.commit(sink.each(write), rows_of(0))
    flights.add(rows_of(1))

    def without(txn, rows):
        write(txn, rows)
        proxy.down()

    ran = flights.run(sink.each(without))
    assert isinstance(ran.error, StoreUnavailableError), ran.error
    assert flights.decided() == 1
    proxy.up()
    flights.commit(sink_on(flights, proxy).each(write))
    check(server, 2)
