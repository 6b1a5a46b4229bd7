"""A store that is silent, slow or away while tasks read their state from it, and back, or not (I5)."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import pytest
from pyspark import cloudpickle

import tidegate
from services.support.cassandra.proxy import CassandraProxy
from services.support.cassandra.server import CassandraServer
from services.support.redis.proxy import RedisProxy
from services.support.redis.server import RedisServer
from tidegate.errors import StoreUnavailableError
from tidegate.sinks.redis.client.functions import library_name

pytestmark = [pytest.mark.spark, pytest.mark.only_log("file")]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import the tests

SCHEMA = "k string, n bigint"
KEYS = 40


class Proxied(NamedTuple):
    """A server, a proxy in front of it through which the sink goes, what the sink's store is told, and what a
    task asks for its state. ``silent``: its connections stay open, so that who waits gives up by himself.
    """

    server: Any
    proxy: Any
    url: str
    options: dict[str, Any]
    read: tuple[str, str]
    silent: bool


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


@pytest.fixture(params=["redis", "cassandra"])
def proxied(request, tmp_path):
    if request.param == "redis":
        with RedisServer(tmp_path / "redis") as server, RedisProxy(("127.0.0.1", server.port)) as proxy:
            host, port = proxy.address
            read = "FCALL_RO", f"{library_name()}_read"
            yield Proxied(server, proxy, f"redis://{host}:{port}", {"socket_timeout": 1}, read, silent=True)
    else:
        with CassandraServer(tmp_path / "cassandra") as server, CassandraProxy(server) as proxy:
            read = "EXECUTE", "FROM tidegate.tidegate_rows"
            yield Proxied(server, proxy, proxy.url, {"create": True}, read, silent=False)


def sink_on(flights, proxied, **options):
    flights.store = proxied.url
    # No cache, so that every batch asks; less time for functions than the store is silent.
    return flights.sink(
        parallelism=2,
        state_cache_bytes=0,
        allow_unsafe=True,
        function_deadline_s=1,
        store_options=proxied.options | options,
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
    flights, proxy = stream(SCHEMA), proxied.proxy
    sink = sink_on(flights, proxied, timeout_s=120)
    flights.commit(sink.each(write), rows_of(0))
    lost = proxy.drop_reply(
        *proxied.read, close=not proxied.silent, times=3
    )  # who waits for it has to give up by itself
    flights.commit(sink.each(write), rows_of(1))
    assert lost.hits == 3
    flights.commit(sink.each(write), rows_of(2))
    check(proxied.server, 3)


@pytest.mark.slow
def test_away_while_state_is_read_nothing_is_decided_and_the_store_is_named_i5(stream, proxied):
    flights, proxy = stream(SCHEMA), proxied.proxy
    sink = sink_on(flights, proxied, timeout_s=2)
    flights.commit(sink.each(write), rows_of(0))
    flights.add(rows_of(1))

    def without(txn, rows):
        write(txn, rows)
        proxy.down()

    ran = flights.run(sink.each(without))
    assert isinstance(ran.error, StoreUnavailableError), ran.error
    assert flights.decided() == 1
    proxy.up()
    flights.commit(sink_on(flights, proxied).each(write))
    check(proxied.server, 2)
