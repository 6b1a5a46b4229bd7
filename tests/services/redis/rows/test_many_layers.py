"""Reads of a key group with many layers: the cost of a key is that of the layers above it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.support.redis.server import RedisServer
from tidegate.sinks.records import Identity
from tidegate.sinks.redis.store import RedisStore
from tidegate.sinks.redis.upkeep.merge import MERGE_ROWS
from tidegate.testing.store.harness import EPOCH, KEY_GROUPS, get, group_of, put
from tidegate.testing.store.ttl_tests import retire_up_to, until, write_stored

LAYERS = 40


@pytest.fixture
def store(redis: RedisServer, namespace: str) -> Iterator[RedisStore]:
    made = RedisStore(redis.url, namespace)
    made.create(Identity("uuid", namespace, 1))
    made.claim(EPOCH, "writer")
    yield made
    made.close()


def lookups(redis: RedisServer, store: RedisStore, *keys: bytes) -> int:
    """The keys that Redis looked up for one read, those of EXISTS among them."""
    version = store.pointer().visible
    get(store, "t", keys, version)  # whatever a client asks once
    redis.ask("CONFIG", "RESETSTAT")
    get(store, "t", keys, version)
    stats = redis.ask("INFO", "stats")
    return int(stats["keyspace_hits"]) + int(stats["keyspace_misses"])


def test_a_read_asks_for_the_layers_that_it_passed_alone(store, redis):
    """A key of the second layer costs the same whatever lies below."""
    put(store, 1, {"t": {b"base": b"1"}}, 1)
    put(store, 2, {"t": {b"key": b"2", b"other": b"2"}}, 1)
    put(store, 3, {"t": {b"newest": b"3"}}, 1)
    few = lookups(redis, store, b"key"), lookups(redis, store, b"key", b"other")
    for version in range(4, LAYERS):
        put(store, version, {"t": {b"newest": b"%d" % version}}, 1)
    put(store, LAYERS, {"t": {b"key": b"2", b"other": b"2"}}, 1)
    put(store, LAYERS + 1, {"t": {b"newest": b"1"}}, 1)
    assert (lookups(redis, store, b"key"), lookups(redis, store, b"key", b"other")) == few


@pytest.mark.parametrize("keys", [[b"base"], [b"base", b"newest", b"absent"]])
def test_a_key_below_nine_thousand_layers_is_read(keys, store, redis, namespace):
    """Lua hands a call some 8,000 arguments at most."""
    last = 9_000
    put(store, 1, {"t": {b"base": b"1"}}, 1)
    layers = [
        (f"tg:{{{namespace}/0}}:t:d:{version}:uuid", "newest", f"+{version}")
        for version in range(2, last + 1)
    ]
    with redis.client() as client, client.pipeline(transaction=False) as pipe:
        for layer in layers:
            pipe.hset(*layer)
        pipe.hset(f"tg:{{{namespace}/0}}:h", "l:t", ",".join(map(str, range(last, 0, -1))))
        pipe.hset(f"tg:{{{namespace}}}:meta", "visible", last)
        pipe.execute()
    expected = {b"base": b"1", b"newest": b"9000", b"absent": None}
    assert get(store, "t", keys, last) == [expected[key] for key in keys]


def _changes_of_three_versions() -> list[dict[bytes, bytes | None]]:
    keys = [b"k%d" % at for at in range(3_000)]
    return [dict.fromkeys(keys, b"1"), dict.fromkeys(keys[:2_000], b"2"), dict.fromkeys(keys[1_000:2_500])]


def test_a_dry_run_goes_through_a_layer_page_by_page(store, redis):
    """One call that read a layer of a million rows would keep the server from everybody for a second."""
    for version, changes in enumerate(_changes_of_three_versions(), start=1):
        put(store, version, {"t": changes}, 1)
    put(store, 4, {"t": {b"another": b"4"}}, 1)
    store.announce(3)
    redis.ask("CONFIG", "RESETSTAT")
    would = store.vacuum(dry_run=True)
    stats = redis.ask("INFO", "commandstats")
    rows = 3_000 + 2_000 + 1_500
    assert stats["cmdstat_hscan"]["calls"] >= rows / (8 * MERGE_ROWS)
    # Version 2 replaces 2,000 rows. Version 3 deletes 1,000 of them and 500 others; its marks go.
    assert would.rows == 2_000 + 1_500 + 1_500
    assert store.vacuum().rows == would.rows
    assert store.vacuum(dry_run=True).rows == 0


@pytest.mark.slow
def test_a_dry_run_of_many_rows_below_many_layers_counts_what_a_vacuum_removes(redis, namespace):
    """A small hash is one page, and each of its rows is looked for in each layer."""
    last = 400
    keys = [key for key in (b"k%d" % at for at in range(2_000)) if group_of(key) == 0][:300]
    store = RedisStore(redis.url, namespace)
    store.create(Identity("uuid", namespace, KEY_GROUPS))
    store.claim(EPOCH, "writer")
    chunks = {1: write_stored(store, 1, dict.fromkeys(keys, until(2)))}
    for version in range(2, last + 1):
        changes = dict.fromkeys(keys if version == 6 else keys[:1], until(5 if version == 6 else 2_000))
        chunks[version] = write_stored(store, version, changes)
    retire_up_to(store, 3, chunks)
    assert store.announce(last) == last
    would = store.vacuum(dry_run=True).rows
    assert would == store.vacuum().rows > 2 * len(keys)
    assert store.vacuum(dry_run=True).rows == 0
    store.close()
