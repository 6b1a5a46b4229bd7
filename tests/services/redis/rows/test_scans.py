"""Scans and diffs of many key groups: few round trips, and the same rows by one call or by pages."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tracemalloc
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from services.support.redis.server import RedisServer
from tidegate.committers.operations import restore
from tidegate.committers.operations.repair_source import StoreSource
from tidegate.committers.steps import fill_groups
from tidegate.sinks.diff import differences_of_groups
from tidegate.sinks.records import Identity, ReadAt
from tidegate.sinks.redis import reads
from tidegate.sinks.redis.async_store import AsyncRedisStore
from tidegate.sinks.redis.client.aio.channel import Channel
from tidegate.sinks.redis.client.functions import library_name
from tidegate.sinks.redis.client.servers import Opened
from tidegate.sinks.redis.keys import header_key
from tidegate.sinks.redis.store import RedisStore
from tidegate.testing.store.harness import EPOCH, chunks_of, get, live, put, retire_version, stamp
from tidegate.wal.frame import Chunk

GROUPS = 1_024
MOST_TRIPS = 40
KEYS = [b"k%d" % number for number in range(10)]


@pytest.fixture
def make(redis: RedisServer, namespace: str) -> Iterator[Callable[[int], RedisStore]]:
    with contextlib.ExitStack() as closing:

        def made(key_groups: int) -> RedisStore:
            store = RedisStore(redis.url, namespace)
            closing.callback(store.close)
            store.create(Identity("uuid", namespace, key_groups))
            store.claim(EPOCH, "writer")
            return store

        yield made


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the requests that were sent, which are at least as many as the round trips."""
    sent: list[int] = []
    send = Opened.send_packed_command

    def counted(self, command, *args, **kwargs):
        sent.append(len(command))
        return send(self, command, *args, **kwargs)

    monkeypatch.setattr(Opened, "send_packed_command", counted)
    return sent


def two_versions(store: RedisStore) -> None:
    put(store, 1, {"t": dict.fromkeys(KEYS, b"1")}, GROUPS)
    put(store, 2, {"t": dict.fromkeys(KEYS, b"2")}, GROUPS)


def rows_of(store: RedisStore, groups: int, version: int, start: int = 0) -> dict[bytes, bytes]:
    rows: dict[bytes, bytes] = {}
    for _, batch in store.scan_groups(ReadAt("t", version, start, at_us=0), range(groups)):
        rows.update(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
    return rows


def test_a_scan_of_few_rows_in_many_key_groups_takes_few_round_trips(make, trips):
    """One call after the other, two for each key group, are minutes at a server some milliseconds away."""
    store = make(GROUPS)
    two_versions(store)
    del trips[:]
    assert rows_of(store, GROUPS, 2) == dict.fromkeys(KEYS, b"2")
    assert 0 < len(trips) <= MOST_TRIPS


def test_a_diff_of_few_rows_in_many_key_groups_takes_few_round_trips(make, trips):
    store = make(GROUPS)
    two_versions(store)
    one, two = store.catalog()
    del trips[:]
    batches = list(differences_of_groups(store, "t", range(GROUPS), one, two))
    assert 0 < len(trips) <= MOST_TRIPS
    changed = [row for batch in batches for row in batch.to_pylist()]
    assert {row["key"]: (row["before"], row["after"]) for row in changed} == dict.fromkeys(KEYS, (b"1", b"2"))


def test_a_scan_on_an_event_loop_takes_few_round_trips(make, redis, namespace, monkeypatch):
    two_versions(make(GROUPS))
    sent = []
    send = Channel.send

    async def counted(self, contents, *limit):
        sent.append(len(contents))
        return await send(self, contents, *limit)

    async def scanned() -> dict[bytes, bytes]:
        store = AsyncRedisStore(redis.url, namespace, {})
        try:
            await store.pointer()
            monkeypatch.setattr(Channel, "send", counted)
            rows: dict[bytes, bytes] = {}
            async for batch in store.scan_groups(ReadAt("t", 2, at_us=0), range(GROUPS)):
                rows.update(zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True))
            return rows
        finally:
            await store.close()

    assert asyncio.run(scanned()) == dict.fromkeys(KEYS, b"2")
    assert 0 < len(sent) <= MOST_TRIPS


@pytest.mark.parametrize("few, at_once", [(1, 10), (32, 50), (10**6, 10**6)])
@pytest.mark.parametrize("seed", range(3))
def test_a_scan_is_get_many_by_one_call_and_by_pages(few, at_once, seed, make, monkeypatch):
    monkeypatch.setattr(reads, "FEW_ROWS", few)
    monkeypatch.setattr(reads, "ROWS_AT_ONCE", at_once)
    monkeypatch.setattr(reads, "PAGE_ROWS", 7)
    chance, store, groups, start = random.Random(seed), make(5), 5, 0
    keys = [b"%d" % number for number in range(300)]
    state: dict[bytes, bytes | None] = {}
    written: list[list[Chunk]] = []
    for version in range(1, 9):
        if version == 4:
            start, state = version, {}
        chosen = chance.sample(keys, chance.choice([0, 3, 200]))
        changes = {key: None if chance.random() < 0.3 else b"%d" % version for key in chosen}
        state |= changes
        written.append(put(store, version, {"t": changes}, groups, t=start))
        assert rows_of(store, groups, version, start) == live(state), version
        assert live(dict(zip(keys, get(store, "t", keys, version, start), strict=True))) == live(state)
        if version > 2 and chance.random() < 0.5:
            store.announce(version)
            for older, chunks in enumerate(written, start=1):
                assert retire_version(store, older, chunks)
            assert rows_of(store, groups, version, start) == live(state), version


def test_retirement_of_an_emptied_table_touches_only_key_groups_with_rows(make, trips, redis):
    """Its rows go everywhere, and a key group without any costs a look at its header."""
    store = make(GROUPS)
    two_versions(store)
    changes = {"t": {KEYS[0]: b"3"}}
    put(store, 3, changes, GROUPS, t=3)
    store.announce(3)
    for version in (1, 2):
        retire_version(store, version, chunks_of({"t": dict.fromkeys(KEYS, b"1")}, GROUPS))
    before = calls_of(redis)
    del trips[:]
    retire_version(store, 3, chunks_of(changes, GROUPS))
    after = calls_of(redis)
    assert after["hmget"] - before.get("hmget", 0) <= GROUPS + 4 * len(KEYS)
    assert sum(after.values()) - sum(before.values()) <= GROUPS + 40 * len(KEYS)
    assert 0 < len(trips) <= MOST_TRIPS
    assert rows_of(store, GROUPS, 3, 3) == {KEYS[0]: b"3"}
    assert [count.rows for count in store.row_counts(())] == [1]


def calls_of(redis: RedisServer) -> dict[str, int]:
    return {name.removeprefix("cmdstat_"): of["calls"] for name, of in redis.info("commandstats").items()}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("finished", [True, False])
def test_a_scan_of_a_large_key_group_holds_a_part_of_its_rows(make, finished, redis):
    """Sorted by key, and the newest value of each, though Redis gives them in no order."""
    rows, store = 120_000, make(1)
    values = {b"%07d" % number: b"1" * 100 for number in range(rows)}
    put(store, 1, {"t": values}, 1)
    newer = dict.fromkeys(list(values)[::7], b"2")
    put(store, 2, {"t": newer}, 1)
    tracemalloc.start()
    try:
        scan = store.scan(ReadAt("t", 2, at_us=0), 0)
        keys, changed = [next(scan)["key"][0].as_py()], 0
        if finished:
            for batch in scan:
                first, last = batch["key"][0].as_py(), batch["key"][-1].as_py()
                assert keys[-1] < first <= last
                keys.append(last)
                changed += sum(len(value) == 1 for value in batch["value"].to_pylist())
            assert len(keys) == rows // 1_000
            assert changed == len(list(newer)) - len([key for key in newer if key < b"0001000"])
        scan.close()
        assert tracemalloc.get_traced_memory()[1] < 24 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_rows_of_many_bytes_come_in_answers_of_few_rows(make, redis, namespace):
    """The byte limit of an answer counted for none but the first, and only once all rows had been read."""
    store, row = make(1), 256 * 1024
    put(store, 1, {"t": {b"%d" % number: b"1" * row for number in range(64)}}, 1)
    server = redis.info("replication")["master_replid"]
    head = "FCALL_RO", f"{library_name()}_scan", 1, header_key(namespace, 0), "uuid", server, "t", 1, 0
    cursor, keys, sizes = "0", set(), []
    while not sizes or cursor != "0":
        _, cursor, _, page = redis.ask(*head, cursor, 1_000, 64 * 1024)
        keys.update(page[::2])
        sizes.append(sum(map(len, page)))
    assert len(keys) == 64
    assert max(sizes) < 16 * row


class Held:
    """A pin, which no test here needs."""

    def keep(self) -> None: ...


def read_by_restore(store: RedisStore) -> dict[bytes, bytes]:
    one, two = store.catalog()
    coordinator = SimpleNamespace(store=store, folded=SimpleNamespace(key_groups=GROUPS))
    rows: dict[bytes, bytes] = {}
    places = []
    for batch in restore._rows(coordinator, Held(), {"t": None}, one, two):
        groups, _, keys, values = (column.to_pylist() for column in batch.columns)
        rows.update(zip(keys, values, strict=True))
        places += groups
    assert places == sorted(places)
    return rows


def read_by_fill(store: RedisStore) -> dict[bytes, bytes]:
    rows: dict[bytes, bytes] = {}
    entry = store.catalog()[0]
    for group, tables in fill_groups.rows_by_group(store, entry, range(GROUPS), lambda: None):
        for run in fill_groups._runs(tables["t"].take(group), "t", group, stamp(1)):
            rows.update(zip(run.keys.to_pylist(), run.values.to_pylist(), strict=True))
    return rows


def read_by_repair(store: RedisStore) -> dict[bytes, bytes]:
    rows: dict[bytes, bytes] = {}
    source = StoreSource(store)
    source._held = Held()
    for run in source.runs(store.catalog()[0], range(GROUPS), GROUPS):
        rows.update(zip(run.keys.to_pylist(), run.values.to_pylist(), strict=True))
    return rows


@pytest.mark.parametrize("read", [read_by_restore, read_by_fill, read_by_repair])
def test_restore_fill_and_repair_read_many_key_groups_in_few_round_trips(make, trips, read):
    store = make(GROUPS)
    two_versions(store)
    del trips[:]
    assert read(store) == dict.fromkeys(KEYS, b"+1")
    assert 0 < len(trips) <= 4 * GROUPS // 64
