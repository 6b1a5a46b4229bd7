"""The store suite: rows that expire. Versions are decided one microsecond apart (``stamp``)."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec
import pytest

from tidegate.errors import SnapshotExpiredError
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.layout import Stored, pack
from tidegate.sinks.rules.leases import Lease
from tidegate.sinks.store import Store
from tidegate.testing.store.harness import (
    EPOCH,
    KEY_GROUPS,
    StoreHarness,
    counts_of_runs,
    entry,
    get,
    group_of,
    retire_version,
    runs_of_stored,
    scanned,
    stamp,
)
from tidegate.wal.frame import Chunk

KEYS = [b"%d" % i for i in range(40)]
MANY_CALLS = 200

Rows = Mapping[bytes, bytes]
"""Stored values by key."""


def until(version: int, value: bytes = b"v") -> bytes:
    """Make a stored value whose last visible version is this one."""
    return pack(Stored(value, stamp(version + 1).decided_at_us))


def write_stored(store: Store, version: int, rows: Rows, start: int = 0) -> Chunk:
    """Write one version of table t, whose rows expire."""
    runs = runs_of_stored({"t": rows})
    store.apply(stamp(version), Chunk(0, runs))
    store.seal(stamp(version), counts_of_runs(runs))
    plain = entry(version, {"t": {}}, t=start)
    tables = {name: msgspec.structs.replace(state, expires=True) for name, state in plain.tables.items()}
    assert store.publish(msgspec.structs.replace(plain, tables=tables), EPOCH) is True
    return Chunk(0, runs)


def retire_up_to(store: Store, horizon: int, changes: Mapping[int, Chunk]) -> None:
    before = store.pointer().horizon
    assert store.announce(horizon) == horizon
    for version in range(max(before, 1), horizon + 1):
        retire_version(store, version, [changes[version]])


def drop_all_expired(store: Store, rows: int = 2_000) -> int:
    """Drop all expired rows, by enough calls for the whole table."""
    return sum(store.drop_expired(rows) for _ in range(KEY_GROUPS * 2))


class TtlTests(StoreHarness):
    def test_a_row_is_shown_at_versions_that_were_decided_before_it_expires(self, store: Store) -> None:
        """Only the version's time counts: a reader of version 2 gets the same rows, today and in a year."""
        rows = {b"a": until(2, b"a"), b"b": b"+b", b"never": until(0), b"c": until(3, b"c")}
        write_stored(store, 1, rows)
        for version in (2, 3, 4):
            write_stored(store, version, {})
        expected = {1: b"abc", 2: b"abc", 3: b"bc", 4: b"b"}
        for version, shown in expected.items():
            live = {bytes([key]): bytes([key]) for key in shown}
            assert get(store, "t", list(rows), version) == [live.get(key) for key in rows]
            assert scanned(store, "t", version) == live
            read_at = ReadAt("t", version, at_us=stamp(version).decided_at_us)
            assert [store.get(read_at, key) for key in rows] == [live.get(key) for key in rows]

    def test_a_write_sets_the_expiry_anew(self, store: Store) -> None:
        write_stored(store, 1, {b"a": until(2), b"b": until(2)})
        write_stored(store, 2, {b"a": until(4), b"b": b"+forever"})
        for version in (3, 4, 5):
            write_stored(store, version, {})
        assert [scanned(store, "t", version) for version in (2, 4, 5)] == [
            {b"a": b"v", b"b": b"forever"},
            {b"a": b"v", b"b": b"forever"},
            {b"b": b"forever"},
        ]

    def test_what_has_expired_does_not_show_what_it_replaced(self, store: Store) -> None:
        changes = {1: write_stored(store, 1, {b"a": b"+old"})}
        changes[2] = write_stored(store, 2, {b"a": until(2)})
        changes[3] = write_stored(store, 3, {b"a": until(5)})
        for version in (4, 5, 6, 7):
            changes[version] = write_stored(store, version, {})
        assert [get(store, "t", [b"a"], v)[0] for v in range(1, 8)] == [b"old", *[b"v"] * 4, None, None]
        retire_up_to(store, 7, changes)
        assert get(store, "t", [b"a"], 7) == [None]
        assert drop_all_expired(store) == 1
        assert get(store, "t", [b"a"], 7) == [None]
        assert store.get_stored_one(ReadAt("t", 7), b"a") is None
        assert store.vacuum().rows == 0

    def test_expired_rows_are_dropped_once_no_readable_version_shows_them(self, store: Store) -> None:
        rows = {key: until(3 if number % 2 else 4) for number, key in enumerate(KEYS)}
        changes = {1: write_stored(store, 1, {**rows, b"stays": b"+s"})}
        for version in range(2, 8):
            changes[version] = write_stored(store, version, {})
        retire_up_to(store, 3, changes)
        assert drop_all_expired(store) == 0
        assert len(scanned(store, "t", 3)) == 41
        retire_up_to(store, 4, changes)
        assert drop_all_expired(store) == 20
        shown = {key for number, key in enumerate(KEYS) if number % 2 == 0} | {b"stays"}
        assert (set(scanned(store, "t", 4)), set(scanned(store, "t", 5))) == (shown, {b"stays"})
        with pytest.raises(SnapshotExpiredError):
            get(store, "t", KEYS, 3)
        retire_up_to(store, 6, changes)
        assert drop_all_expired(store) == 20
        assert store.get_stored(ReadAt("t", 6), KEYS).null_count == len(KEYS)
        assert drop_all_expired(store) == 0
        assert store.vacuum().rows == 0
        assert scanned(store, "t", 6) == scanned(store, "t", 7) == {b"stays": b"s"}

    def test_a_call_looks_at_a_limited_number_of_rows(self, store: Store) -> None:
        """I11: rows that expired long ago do not make one version's retirement long."""
        keys = [b"%05d" % i for i in range(4_000)]
        changes = {1: write_stored(store, 1, dict.fromkeys(keys, until(1)))}
        changes[2] = write_stored(store, 2, {})
        retire_up_to(store, 2, changes)
        total, calls = 0, 0
        while total < len(keys):
            dropped = store.drop_expired(300)
            total, calls = total + dropped, calls + 1
            assert dropped <= 600
            assert calls < MANY_CALLS
        assert (total, drop_all_expired(store)) == (len(keys), 0)

    def test_a_lease_keeps_what_its_version_shows(self, store: Store) -> None:
        changes = {1: write_stored(store, 1, dict.fromkeys(KEYS, until(2)))}
        for version in (2, 3, 4):
            changes[version] = write_stored(store, version, {})
        store.lease(Lease("reader", 2), 600)
        assert store.announce(4) == 2
        assert drop_all_expired(store) == 0
        assert store.vacuum().rows == 0
        assert (len(scanned(store, "t", 2)), scanned(store, "t", 3)) == (len(KEYS), {})
        store.release("reader")
        retire_up_to(store, 4, changes)
        assert drop_all_expired(store) == len(KEYS)

    def test_vacuum_drops_all_that_has_expired_and_says_so_before(self, store: Store) -> None:
        write_stored(store, 1, {**dict.fromkeys(KEYS, b"+old"), b"plain": b"+p"})
        write_stored(store, 2, dict.fromkeys(KEYS[:30], until(3)))
        write_stored(store, 3, dict.fromkeys(KEYS[20:], until(9)))
        write_stored(store, 4, dict.fromkeys(KEYS[:10], until(3)))  # written, and never visible
        for version in (5, 6):
            write_stored(store, version, {})
        store.announce(5)
        before = {version: scanned(store, "t", version) for version in (5, 6)}
        assert set(before[5]) == {*KEYS[20:], b"plain"}
        would = store.vacuum(dry_run=True)
        assert would.rows == 30 + 10 + 10 + 10 + 10 + 10  # v1's of 0-29, v2's of 0-29, v4's and v1's of 30-39
        assert store.vacuum() == would
        assert {version: scanned(store, "t", version) for version in (5, 6)} == before
        assert store.vacuum().rows == 0

    def test_what_comes_late_does_not_bring_it_back(self, store: Store) -> None:
        changes = {1: write_stored(store, 1, {b"a": b"+old"}), 2: write_stored(store, 2, {b"a": until(3)})}
        for version in (3, 4):
            changes[version] = write_stored(store, version, {})
        retire_up_to(store, 4, changes)
        assert drop_all_expired(store) == 1
        for version in (1, 2):
            store.apply(stamp(version), changes[version])
            store.seal(stamp(version), {group_of(b"a"): {"t": 1}})
            retire_version(store, version, [changes[version]])
        assert get(store, "t", [b"a"], 4) == [None]
        write_stored(store, 5, {b"a": b"+new"})
        assert get(store, "t", [b"a"], 5) == [b"new"]

    def test_what_has_expired_hides_what_retirement_missed(self, store: Store) -> None:
        """A retirement was missed: the older row is removed with the one that hides it."""
        write_stored(store, 1, {b"a": b"+old", b"b": b"+old"})
        write_stored(store, 2, {b"a": until(2)})
        for version in (3, 4):
            write_stored(store, version, {})
        assert store.announce(4) == 4
        drop_all_expired(store)
        assert scanned(store, "t", 4) == {b"b": b"old"}
        store.vacuum()
        assert scanned(store, "t", 4) == {b"b": b"old"}
        assert store.get_stored_one(ReadAt("t", 4), b"a") is None

    def test_t28_who_fetched_a_version_before_is_refused_not_told_that_a_row_is_absent(
        self, store: Store
    ) -> None:
        changes = {1: write_stored(store, 1, {b"a": until(3)})}
        for version in (2, 3, 4):
            changes[version] = write_stored(store, version, {})
        other = self.reopen(store)
        assert get(other, "t", [b"a"], 3) == [b"v"]
        retire_up_to(store, 4, changes)
        assert drop_all_expired(store) == 1
        for read in (
            lambda: get(other, "t", [b"a"], 3),
            lambda: other.get(ReadAt("t", 3, at_us=stamp(3).decided_at_us), b"a"),
            lambda: scanned(other, "t", 3),
        ):
            with pytest.raises(SnapshotExpiredError):
                read()
        assert get(other, "t", [b"a"], 4) == [None]
        other.close()

    def test_nothing_is_looked_at_where_nothing_expires(self, store: Store) -> None:
        assert store.drop_expired(1_000) == 0
        store.apply(stamp(1), Chunk(0, []))
        assert store.publish(entry(1, {"t": {}}), EPOCH)
        store.announce(1)
        assert store.drop_expired(1_000) == 0

    @pytest.mark.parametrize("seed", range(4))
    def test_a_random_history_beside_a_dictionary(self, store: Store, seed: int) -> None:
        """Writes, deletes, replaced tables, retirement, sweeps and vacuums; reads at every version left."""
        chance = random.Random(seed)
        state: dict[bytes, tuple[bytes, int]] = {}  # key -> value, and the last version that shows it
        shown: dict[int, tuple[int, dict[bytes, bytes]]] = {}
        changes: dict[int, Chunk] = {}
        start = 0
        for version in range(1, 13):
            if chance.random() < 0.1:
                start, state = version, {}
            rows = {}
            for key in chance.sample(KEYS, chance.randrange(20)):
                value, last = b"%d" % version, version + chance.randrange(-1, 5)
                rows[key] = chance.choice([b"-", b"+" + value, until(last, value), until(last, value)])
                state[key] = value, 0 if rows[key] == b"-" else 99 if rows[key][:1] == b"+" else last
            changes[version] = write_stored(store, version, rows, start)
            shown[version] = start, {key: value for key, (value, last) in state.items() if version <= last}
            horizon = store.pointer().horizon
            target = chance.randrange(horizon, version + 1)
            if target > horizon:
                retire_up_to(store, target, changes)
            if chance.random() < 0.5:
                store.drop_expired(chance.choice([1, 30, 2_000]))
            if chance.random() < 0.2:
                store.vacuum()
            for readable in range(max(target, 1), version + 1):
                begin, live = shown[readable]
                assert scanned(store, "t", readable, begin) == live
                assert get(store, "t", KEYS, readable, begin) == [live.get(key) for key in KEYS]
