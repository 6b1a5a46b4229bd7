"""Rows of older versions are written again, however late: nothing that was deleted or retired comes back."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence

import pytest

from services.support.cassandra.query import query_on
from services.support.cassandra.server import CassandraServer
from services.support.workloads.query import Reader
from tidegate.base.clock import Clock
from tidegate.errors import SnapshotExpiredError
from tidegate.sinks.cassandra.store import CassandraStore
from tidegate.sinks.records import Identity, ReadAt
from tidegate.testing.store.harness import (
    Changes,
    chunks_of,
    counts_of,
    get,
    put,
    retire_version,
    scanned,
    stamp,
)

pytestmark = pytest.mark.slow  # a case takes several seconds here

KEY_GROUPS = 2
OPTIONS = {"create": True, "replication": 1}


@pytest.fixture
def store(cassandra: CassandraServer) -> Iterator[CassandraStore]:
    made = CassandraStore(cassandra.url, f"late{uuid.uuid4().hex[:8]}", **OPTIONS)
    made.create(Identity("uuid", "late", KEY_GROUPS))
    made.claim(1, "writer")
    yield made
    made.close()


def apply_late(store: CassandraStore, version: int, changes: Changes) -> None:
    """A zombie that had looked at the horizon before it moved: it writes all the same."""
    rows = store._rows
    rows.is_merged = lambda _: False  # type: ignore[method-assign]
    try:
        for chunk in chunks_of(changes, KEY_GROUPS):
            store.apply(stamp(version), chunk)
    finally:
        del rows.is_merged  # type: ignore[method-assign]


LIVES: Sequence[Mapping[str, Mapping[bytes, bytes | None]]] = [
    {"t": {b"a": b"1", b"b": b"1", b"c": b"1", b"d": b"1"}},
    {"t": {b"a": None, b"b": b"2", b"d": None}},
    {"t": {b"a": b"3", b"c": None}},
    {"t": {b"a": None, b"b": None, b"d": b"4"}},
    {"t": {b"a": b"5", b"c": b"5", b"d": None}},
    {"t": {b"b": b"6", b"a": None}},
]
KEYS = [b"a", b"b", b"c", b"d"]


def at(version: int) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for changes in LIVES[:version]:
        for key, value in changes["t"].items():
            found.pop(key, None)
            if value is not None:
                found[key] = value
    return found


def check(store: CassandraStore, oldest: int, newest: int) -> None:
    for version in range(oldest, newest + 1):
        assert scanned(store, "t", version, key_groups=KEY_GROUPS) == at(version), version
        assert get(store, "t", KEYS, version) == [at(version).get(key) for key in KEYS], version
        assert [store.get(ReadAt("t", version), key) for key in KEYS] == [
            at(version).get(key) for key in KEYS
        ]


def test_every_older_version_is_applied_again_after_each_retirement(store: CassandraStore):
    versions = len(LIVES)
    chunks = [put(store, n, changes, KEY_GROUPS) for n, changes in enumerate(LIVES, 1)]
    for horizon in range(1, versions + 1):
        assert store.announce(horizon) == horizon
        retire_version(store, horizon, chunks[horizon - 1])
        check(store, horizon, versions)
        for late in range(1, horizon + 1):
            apply_late(store, late, LIVES[late - 1])
            check(store, horizon, versions)
        retire_version(store, horizon, chunks[horizon - 1])
        check(store, horizon, versions)
    store.vacuum()
    check(store, versions, versions)


def test_a_retirement_between_two_halves_of_a_late_apply(store: CassandraStore):
    """Half of version 1 came before version 2 was retired, half after it."""
    first, second = LIVES[0], LIVES[1]
    chunks = [put(store, n, changes, KEY_GROUPS) for n, changes in enumerate((first, second), 1)]
    store.announce(2)
    halves = [{"t": dict(list(first["t"].items())[part::2])} for part in (0, 1)]
    apply_late(store, 1, halves[0])
    for version in (1, 2):
        retire_version(store, version, chunks[version - 1])
    apply_late(store, 1, halves[1])
    check(store, 2, 2)


def test_a_table_that_was_emptied_stays_empty(store: CassandraStore):
    put(store, 1, LIVES[0], KEY_GROUPS)
    emptied = put(store, 2, {"t": {b"z": b"2"}}, KEY_GROUPS, t=2)
    store.announce(2)
    retire_version(store, 2, emptied)
    apply_late(store, 1, LIVES[0])
    assert scanned(store, "t", 2, 2, KEY_GROUPS) == {b"z": b"2"}
    assert scanned(store, "t", 2, 0, KEY_GROUPS) == {b"z": b"2"}


def test_a_late_apply_of_the_version_at_the_horizon_changes_nothing(store: CassandraStore):
    """Its own delete markers are gone, with a tombstone as old as they are: the tombstone wins."""
    chunks = [put(store, n, changes, KEY_GROUPS) for n, changes in enumerate(LIVES[:2], 1)]
    store.announce(2)
    for version in (1, 2):
        retire_version(store, version, chunks[version - 1])
    before = stored(store)
    for _ in range(2):
        apply_late(store, 2, LIVES[1])
        store.seal(stamp(2), counts_of(LIVES[1], KEY_GROUPS))
    assert stored(store) == before
    check(store, 2, 2)


def test_who_looked_before_a_retirement_is_refused_or_right(
    cassandra: CassandraServer, store: CassandraStore
):
    """T28, I8: it believes that the horizon is where it was. A row that is found is right; none found is not
    taken for a key that was never there."""
    chunks = [put(store, n, changes, KEY_GROUPS) for n, changes in enumerate(LIVES[:2], 1)]
    reader = CassandraStore(cassandra.url, store._space.namespace, **OPTIONS)
    try:
        check(reader, 1, 2)
        store.announce(2)
        for version in (1, 2):
            retire_version(store, version, chunks[version - 1])
        assert reader._space.made.highest.horizon == 0
        assert reader.get(ReadAt("t", 1), b"c") == b"1"
        assert get(reader, "t", [b"c", b"c"], 1) == [b"1", b"1"]
        reads = (
            lambda: reader.get_many(ReadAt("t", 1), KEYS),
            lambda: reader.get(ReadAt("t", 1), b"a"),
            lambda: scanned(reader, "t", 1, key_groups=KEY_GROUPS),
        )
        for read in reads:
            reader._space.made.highest.horizon = 0
            with pytest.raises(SnapshotExpiredError):
                read()
        check(reader, 2, 2)
    finally:
        reader.close()


def stored(store: CassandraStore) -> list[tuple[bytes, int]]:
    return [(key, version) for _, _, key, versions in store._rows.each_key() for version in versions]


# -- clocks ---------------------------------------------------------------------------------------------


class Shifted(Clock):
    """It goes wrong by so many seconds, as it is told."""

    by_s = 0.0

    def now_us(self) -> int:
        return super().now_us() + round(self.by_s * 1e6)


@pytest.mark.slow
def test_the_drivers_clock_is_wrong_by_an_hour_now_and_then(cassandra: CassandraServer, tmp_path):
    """What is deleted stays so, what is written again is there: stamps go up with the versions."""
    wrong_s = (3_500, 0, 1_800, -90, 3_550, 0, -40, 20)
    with query_on(cassandra.url, tmp_path) as query:
        clock = query.clock = Shifted()
        driver = query.run(1)
        with Reader(query) as reader:
            for batch_id, clock.by_s in enumerate(wrong_s, 1):
                query.commit(driver, batch_id)
                query.retire(driver)
            reader.wait_whole(len(wrong_s) + 1)
        stamps = [entry.decided_at_us for entry in driver.folded.recent]
        assert all(older < newer for older, newer in itertools.pairwise(stamps))
        assert stamps[-1] - stamps[0] > 3_400 * 1_000_000
        query.check(len(wrong_s) + 1)
