"""The rules of the functions on a key group, one by one: what seals, what merges, what is never looked at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.support.redis.server import RedisServer
from tidegate.errors import IncompleteError, SnapshotExpiredError, StoreNotVerifiedError
from tidegate.sinks.records import Identity
from tidegate.sinks.redis import reads
from tidegate.sinks.redis.store import RedisStore
from tidegate.testing.store.harness import (
    EPOCH,
    chunks_of,
    counts_of,
    entry,
    get,
    put,
    put_drop,
    scanned,
    stamp,
    write,
)

KEYS = [b"k%d" % n for n in range(6)]


@pytest.fixture
def store(redis: RedisServer, namespace: str) -> Iterator[RedisStore]:
    """One key group: what is said of it is said of all."""
    made = RedisStore(redis.url, namespace)
    made.create(Identity("uuid", namespace, 1))
    made.claim(1, "writer")
    yield made
    made.close()


@pytest.fixture
def name(namespace: str) -> str:
    return f"tg:{{{namespace}/0}}:"


def rows(value: bytes | None, keys=KEYS):
    return {"t": dict.fromkeys(keys, value)}


def seal(store, version, changes):
    store.seal(stamp(version), counts_of(changes, 1))


def apply(store, version, changes):
    for chunk in chunks_of(changes, 1):
        store.apply(stamp(version), chunk)


def merge(store, upto, start=0, cursor=b"0", count=b"100"):
    space = store._space
    store.pointer()
    args = (b"t", b"%d" % upto, b"%d" % start, count, cursor)
    (found,) = space.asked([space.of_group(0, "merge", *args)])
    return found


def test_sealed_already_comes_before_the_count(store, redis, name):
    """A merge under way has taken rows out of a sealed layer: its seal again is no IncompleteError."""
    write(store, 1, rows(b"1"), 1)
    redis.ask("HDEL", f"{name}t:d:1:uuid", "k0")
    seal(store, 1, rows(b"1"))
    assert redis.ask("HGET", f"{name}h", "l:t") == "1"


def test_sealed_already_comes_before_the_floor(store, redis, name):
    """A layer at the floor that is half merged still has rows that readers need: its seal drops nothing."""
    write(store, 1, rows(b"1"), 1)
    redis.ask("HSET", f"{name}h", "floor", 1)
    seal(store, 1, rows(b"1"))
    assert redis.ask("HLEN", f"{name}t:d:1:uuid") == len(KEYS)
    assert redis.ask("HGET", f"{name}h", "l:t") == "1"


def test_a_late_seal_under_the_floor_drops_its_rows(store, redis, name):
    redis.ask("HSET", f"{name}h", "floor", 3)
    write(store, 3, rows(b"1"), 1)
    assert redis.ask("EXISTS", f"{name}t:d:3:uuid") == 0
    assert redis.ask("HEXISTS", f"{name}h", "l:t") == 0


@pytest.mark.parametrize("applied", [KEYS[:-1], [*KEYS, b"more"]])
def test_a_seal_refuses_what_is_not_counted_right(applied, store, redis, name):
    apply(store, 1, rows(b"1", applied))
    with pytest.raises(IncompleteError):
        seal(store, 1, rows(b"1"))
    assert redis.ask("HEXISTS", f"{name}h", "l:t") == 0


def test_one_wrong_table_keeps_all_of_the_key_group_unsealed(store, redis, name):
    both = {"t": {b"a": b"1"}, "u": {b"a": b"1"}}
    apply(store, 1, {"t": {b"a": b"1"}})
    with pytest.raises(IncompleteError):
        seal(store, 1, both)
    assert redis.ask("HKEYS", f"{name}h") == ["u", "s"]


def test_only_the_oldest_layer_is_merged(store, redis, name):
    for version in (1, 2, 3):
        put(store, version, rows(b"%d" % version), 1)
    store.announce(3)
    assert merge(store, 3)[0] == 0
    assert redis.ask("HGET", f"{name}h", "l:t") == "3,2"
    assert redis.ask("HGET", f"{name}t:b", "k0") == "+1"
    assert redis.ask("HGET", f"{name}h", "floor") == "1"
    assert merge(store, 3)[0] == 0
    assert merge(store, 3)[0] == 1
    assert redis.ask("HGET", f"{name}t:b", "k0") == "+3"


def test_a_merge_is_stopped_between_two_steps_and_done_by_the_next(store, redis, name):
    """Neither step holds the server up for long, and a close waits for one of them only."""
    keys = [b"k%d" % at for at in range(3_000)]
    put(store, 1, rows(b"1", [*keys, b"another"]), 1)
    put(store, 2, rows(b"2", keys), 1)
    store.announce(2)
    assert store.retire(stamp(1), counts_of(rows(b"", keys), 1), iter(()))
    asked = iter([False, False, True])
    assert not store.retire(stamp(2), counts_of(rows(b"", keys), 1), iter(()), lambda: next(asked))
    assert 0 < redis.ask("HLEN", f"{name}t:d:2:uuid") < 3_000
    assert get(store, "t", keys, 2) == [b"2"] * 3_000
    assert store.retire(stamp(2), counts_of(rows(b"", keys), 1), iter(()))
    assert redis.ask("EXISTS", f"{name}t:d:2:uuid") == 0
    assert get(store, "t", keys, 2) == [b"2"] * 3_000


def test_a_dropped_table_leaves_no_key_and_no_field(store, redis, name):
    put(store, 1, {"t": {b"k0": b"1"}, "u": {b"k0": b"1"}}, 1)
    put(store, 2, {"t": {b"k0": b"2"}}, 1, u=0)
    put_drop(store, 3, "t", u=0)
    store.announce(3)
    assert store.retire(stamp(1), counts_of({"t": {b"k0": b"1"}, "u": {b"k0": b"1"}}, 1), iter(()))
    assert redis.ask("KEYS", f"{name}t:*")
    for version, changes in ((2, {"t": {b"k0": b"2"}}), (3, {})):
        assert store.retire(stamp(version), counts_of(changes, 1), iter(()))
    assert redis.ask("KEYS", f"{name}t:*") == []
    assert [field for field in redis.ask("HKEYS", f"{name}h") if ":t" in field] == []
    assert get(store, "u", [b"k0"], 3) == [b"1"]


def test_a_merge_waits_below_the_horizon(store, redis, name):
    """Readers at the horizon keep what they read, whatever ``retire`` is asked for."""
    for version in (1, 2, 3):
        put(store, version, rows(b"%d" % version), 1)
    store.announce(1)
    for version in (1, 2, 3):
        store.retire(stamp(version), counts_of(rows(b""), 1), iter(()))
    assert redis.ask("HGET", f"{name}h", "l:t") == "3,2"
    for version in (1, 2, 3):
        assert get(store, "t", KEYS, version) == [b"%d" % version] * len(KEYS)


@pytest.mark.parametrize("late", [1, 2, 3])
def test_a_late_apply_of_a_dropped_namespace_meets_nothing_of_the_new_one(late, store, redis, namespace):
    """It is a plain HSET: nothing asks whose it is, and rows of the same keys would be counted right.

    Late for a version that is visible, one that is applied and not sealed, one that is still to come.
    """
    put(store, 1, rows(b"old"), 1)  # the first apply of a table asks, and would be refused
    RedisStore(redis.url, namespace).drop()
    newer = RedisStore(redis.url, namespace)
    newer.create(Identity("another", namespace, 1))
    newer.claim(1, "writer")
    put(newer, 1, rows(b"new"), 1)
    apply(newer, 2, rows(b"new"))
    came = KEYS if late < 3 else [*KEYS, b"more"]
    apply(store, late, rows(b"old", came))
    seal(newer, 2, rows(b"new"))
    assert newer.publish(entry(2), 1)
    put(newer, 3, rows(b"new"), 1)
    for version in (1, 2, 3):
        assert get(newer, "t", KEYS, version) == [b"new"] * len(KEYS)
    dry = newer.vacuum(dry_run=True, thorough=True)  # no list names the rows of a dropped namespace
    assert dry.rows == newer.vacuum(thorough=True).rows == len(came)
    assert not [key for key in redis.ask("KEYS", f"tg:{{{namespace}/*") if key.endswith(":uuid")]
    newer.close()


def test_changes_that_are_not_listed_are_never_looked_at(store, redis, name):
    put(store, 1, rows(b"1"), 1)
    put(store, 2, rows(b"2", KEYS[:1]), 1)
    store.announce(2)
    redis.ask("HSET", f"{name}t:d:0:uuid", "k1", "+never", "zz", "+never")
    store.retire(stamp(1), counts_of(rows(b""), 1), iter(()))
    apply(store, 1, rows(b"late"))  # a zombie, after its layer was merged
    apply(store, 3, rows(b"early"))
    wanted = {key: b"2" if key == KEYS[0] else b"1" for key in KEYS}
    assert scanned(store, "t", 2, key_groups=1) == wanted
    assert get(store, "t", [*KEYS, b"zz"], 2) == [*wanted.values(), None]
    store.retire(stamp(2), counts_of(rows(b""), 1), iter(()))
    assert scanned(store, "t", 2, key_groups=1) == wanted
    assert redis.ask("HGET", f"{name}t:b", "k1") == "+1"


def test_every_step_of_a_merge_is_right_for_readers(redis, store, name):
    """Of deletes and replaced tables too; interrupted at every step, with cursors of another time."""
    redis.ask("CONFIG", "SET", "hash-max-listpack-entries", "0")
    try:
        many = [b"r%d" % n for n in range(40)]
        put(store, 1, rows(b"1", many), 1)
        put(store, 2, {"t": {key: None if n % 2 else b"2" for n, key in enumerate(many)}}, 1)
        put(store, 3, rows(b"3", many[:10]), 1, t=3)
        put(store, 4, rows(None, many[:5]), 1, t=3)
        store.announce(4)
        wanted = dict.fromkeys(many[5:10], b"3")
        done, steps = 0, 0
        while not done:
            done, *_ = merge(store, 4, 3, b"%d" % (steps * 7), b"1")
            steps += 1
            assert steps < 1000
            assert scanned(store, "t", 4, 3, key_groups=1) == wanted
            assert get(store, "t", many, 4, 3) == [wanted.get(key) for key in many]
        with pytest.raises(SnapshotExpiredError):
            get(store, "t", many[:1], 2)
    finally:
        redis.ask("CONFIG", "SET", "hash-max-listpack-entries", "128")


def test_a_header_that_is_gone_is_not_an_empty_key_group(store, redis, name):
    put(store, 1, rows(b"1"), 1)
    redis.ask("UNLINK", f"{name}h")
    for read in (lambda: get(store, "t", KEYS, 1), lambda: scanned(store, "t", 1, key_groups=1)):
        with pytest.raises(StoreNotVerifiedError):
            read()
    with pytest.raises(StoreNotVerifiedError):
        write(store, 2, rows(b"2"), 1)
    assert redis.ask("EXISTS", f"{name}h") == 0


def test_a_scan_begins_anew_at_another_server(store, redis, monkeypatch):
    """A cursor means nothing to another server, and its layers may be others: what is pinned is refused."""
    monkeypatch.setattr(reads, "FEW_ROWS", 1)  # pages, where one call would do
    put(store, 1, rows(b"1"), 1)
    put(store, 2, rows(b"2"), 1)
    space, pinned = store._space, []
    asked = space.asked_of_scan

    def moved(calls):
        if calls[0].server and not pinned:
            pinned.append(calls[0].server)
            calls = [calls[0]._replace(server=b"0" * 40)]
        return asked(calls)

    space.asked_of_scan = moved
    assert scanned(store, "t", 2, key_groups=1) == dict.fromkeys(KEYS, b"2")
    assert pinned == [redis.info("replication")["master_replid"].encode()]


@pytest.mark.parametrize("count, wanted", [(100, "listpack"), (200, "hashtable"), (600, "hashtable")])
def test_many_short_rows_are_not_put_into_a_list(redis, store, name, count, wanted):
    """Redis would look through the list for each of them."""
    redis.ask("CONFIG", "SET", "hash-max-listpack-entries", "512")
    try:
        changes = {"t": {b"r%d" % n: b"%d" % n for n in range(count)}}
        apply(store, 1, changes)
        assert redis.ask("OBJECT", "ENCODING", f"{name}t:d:1:uuid") == wanted
        seal(store, 1, changes)
        assert store.publish(entry(1, changes), EPOCH) is True
        assert scanned(store, "t", 1, key_groups=1) == changes["t"]
    finally:
        redis.ask("CONFIG", "SET", "hash-max-listpack-entries", "128")


def test_a_merge_tells_how_many_rows_it_moved(redis, store):
    """By that its steps are cut."""
    few, many = [b"k%d" % n for n in range(3)], [b"r%d" % n for n in range(100)]
    put(store, 1, rows(b"1", many), 1)
    put(store, 2, rows(b"2", many), 1)
    put(store, 3, rows(b"3", few), 1)
    store.announce(3)
    assert [int(part) for part in merge(store, 2)] == [0, 0, 0, 0], "the base of its own keys"
    assert [int(part) for part in merge(store, 2)] == [1, 0, 100, 0], "the same keys"
    assert [int(part) for part in merge(store, 3)] == [1, 0, 0, 3]
