"""Seals of many key groups: in few calls where one server takes keys of any slot, one by one where not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.support.redis.server import RedisServer
from services.support.servers import free_ports
from support.wait import wait_until
from tidegate.errors import IncompleteError, StoreNotVerifiedError
from tidegate.sinks.records import Identity
from tidegate.sinks.redis.store import RedisStore
from tidegate.testing.store.harness import chunks_of, counts_of, entry, get, stamp

GROUPS = 100
KEYS = [b"key-%d" % n for n in range(1_000)]
VALUES = dict.fromkeys(KEYS, b"value")
ROWS = {"t": VALUES, "u": dict.fromkeys(KEYS[:300], b"other")}


def made(url: str, namespace: str) -> RedisStore:
    store = RedisStore(url, namespace)
    store.create(Identity("uuid", namespace, GROUPS))
    store.claim(1, "writer")
    return store


@pytest.fixture
def store(redis: RedisServer, namespace: str) -> Iterator[RedisStore]:
    store = made(redis.url, namespace)
    yield store
    store.close()


def write(store: RedisStore, version: int, rows=ROWS, counted=ROWS) -> None:
    store.apply_and_seal(stamp(version), counts_of(counted, GROUPS), *chunks_of(rows, GROUPS))


def seals_asked(redis: RedisServer) -> int:
    """Calls of functions since the statistics began anew."""
    return int(redis.info("commandstats").get("cmdstat_fcall", {"calls": 0})["calls"])


def test_rows_and_seals_go_together_and_are_few_calls(store, redis):
    write(store, 1)
    redis.ask("CONFIG", "RESETSTAT")
    write(store, 2)
    assert seals_asked(redis) == 4, "32 key groups a call"
    assert store.publish(entry(1, ROWS), 1)
    assert get(store, "t", KEYS, 1) == [b"value"] * len(KEYS)
    assert get(store, "u", KEYS, 1) == [b"other"] * 300 + [None] * 700


def test_each_key_group_is_counted_by_itself(store, redis, namespace):
    counts = counts_of(ROWS, GROUPS)
    short, spoilt = sorted(counts)[3], sorted(counts)[70]
    rows = [
        chunk._replace(runs=[run for run in chunk.runs if (run.group, run.table) != (short, "t")])
        for chunk in chunks_of(ROWS, GROUPS)
    ]
    redis.ask("HSET", f"tg:{{{namespace}/{spoilt}}}:t:d:1:uuid", "one", "more")
    with pytest.raises(IncompleteError, match=f"in 2 key groups: key group {short}: .* key group {spoilt}: "):
        store.apply_and_seal(stamp(1), counts, *rows)
    sealed = [
        group for group in sorted(counts) if redis.ask("HEXISTS", f"tg:{{{namespace}/{group}}}:h", "l:t")
    ]
    assert sealed == [group for group in sorted(counts) if group not in (short, spoilt)]
    redis.ask("HDEL", f"tg:{{{namespace}/{spoilt}}}:t:d:1:uuid", "one")
    write(store, 1)
    assert store.publish(entry(1, ROWS), 1)
    assert get(store, "t", KEYS, 1) == [b"value"] * len(KEYS)


def test_a_key_group_that_lost_its_header_refuses_amid_others(store, redis, namespace):
    """Of the last call, in its middle: what is before it is sealed, nothing behind it."""
    lost = sorted(counts_of(ROWS, GROUPS))[97]
    redis.ask("DEL", f"tg:{{{namespace}/{lost}}}:h")
    with pytest.raises(StoreNotVerifiedError):
        write(store, 1)
    assert not redis.ask("EXISTS", f"tg:{{{namespace}/{lost}}}:h")
    assert not redis.ask("HEXISTS", f"tg:{{{namespace}/{lost + 1}}}:h", "l:t")


def test_nothing_is_sealed_on_a_server_that_restarted(private_redis):
    """What was sealed before may be gone from it: it is compared with the log first."""
    server = private_redis()
    store = made(server.url, "restarted")
    write(store, 1)
    assert store.publish(entry(1, ROWS), 1)
    server.stop()
    server.restart()
    with pytest.raises(StoreNotVerifiedError):
        write(store, 2)
    assert server.ask("HGET", "tg:{restarted/0}:h", "l:t") == "1"
    store.close()


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[RedisServer]:
    """One server of a Cluster that has all slots: what stands in front of sharded data refuses alike."""
    port, bus = free_ports(2)
    settings = {"cluster-enabled": "yes", "cluster-config-file": "nodes.conf", "cluster-port": str(bus)}
    server = RedisServer(tmp_path, "apart", settings=settings)
    server.take_port(port)
    with server:
        server.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: "cluster_state:ok" in server.ask("CLUSTER", "INFO"), "it is well")
        yield server


def test_where_slots_are_kept_apart_key_groups_are_sealed_one_by_one(apart, namespace):
    store = made(apart.url, namespace)
    write(store, 1)
    assert store.publish(entry(1, ROWS), 1)
    assert get(store, "t", KEYS, 1) == [b"value"] * len(KEYS)
    apart.ask("CONFIG", "RESETSTAT")
    write(store, 2)
    assert seals_asked(apart) == len(counts_of(ROWS, GROUPS)), "it does not try again each time"
    store.close()
