"""The store suite: horizon, leases, retirement, and late writes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import msgspec
import pytest

from tidegate.errors import SnapshotExpiredError
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.leases import Lease
from tidegate.sinks.store import Store
from tidegate.testing.concurrency import in_threads
from tidegate.testing.store.harness import (
    EPOCH,
    KEY_GROUPS,
    Changes,
    Row,
    StoreHarness,
    chunks_of,
    counts_of,
    entry,
    get,
    group_of,
    put,
    put_drop,
    put_each,
    retire_version,
    runs_of,
    scanned,
    stamp,
)
from tidegate.wal.frame import Chunk
from tidegate.wal.record import Column, TableAt, TableSchema

KEY = (Column("id", "bigint"),)
KEYS = [b"key-%02d" % i for i in range(30)]


class RetireTests(StoreHarness):
    # -- the horizon ---------------------------------------------------------------------------

    def test_the_horizon_moves_up_to_the_visible_version_and_never_back(self, store: Store) -> None:
        assert store.announce(3) == 0
        put_each(store, 4)
        assert store.announce(2) == 2
        assert store.announce(1) == 2
        assert self.reopen(store).pointer().horizon == 2
        assert store.announce(9) == 4
        assert store.pointer().horizon == 4

    def test_below_the_horizon_reads_are_refused(self, store: Store) -> None:
        """I8: also before anything was deleted, also where nothing will be."""
        put_each(store, 3, "t")
        store.announce(2)
        for version in (0, 1):
            with pytest.raises(SnapshotExpiredError):
                store.get_many(ReadAt("t", version), [b"k"])
            with pytest.raises(SnapshotExpiredError):
                store.get_many(ReadAt("other", version), [])
            with pytest.raises(SnapshotExpiredError):
                list(store.scan(ReadAt("t", version), group_of(b"k")))
        assert get(store, "t", [b"k"], 2) == [b"2"]

    def test_the_catalog_leaves_retired_versions_out(self, store: Store) -> None:
        put_each(store, 5, "t")
        store.announce(3)
        assert [one.version for one in store.catalog()] == [3, 4, 5]
        for version in (1, 2, 3):
            retire_version(store, version, [Chunk(0, runs_of({"t": {b"k": b"%d" % version}}))])
        assert [one.version for one in store.catalog()] == [3, 4, 5]
        assert store.catalog(1, 2) == []

    # -- leases --------------------------------------------------------------------------------

    def test_a_lease_holds_the_horizon_back_until_it_is_given_back(self, store: Store) -> None:
        put_each(store, 5)
        self.reopen(store).lease(Lease("a", 2), 3_600)
        store.lease(Lease("b", 3), 3_600)
        assert store.announce(5) == 2
        store.release("a")
        store.release("a")
        store.release("never taken")
        assert store.announce(5) == 3
        store.release("b")
        assert store.announce(4) == 4

    def test_no_lease_below_the_horizon(self, store: Store) -> None:
        """In the other order: the version was read, the horizon passed it, then the lease is requested."""
        put_each(store, 3)
        assert store.announce(2) == 2
        with pytest.raises(SnapshotExpiredError):
            store.lease(Lease("a", 1), 3_600)
        assert store.announce(3) == 3  # the refused lease holds nothing
        store.lease(Lease("a", 3), 3_600)

    def test_an_expired_lease_does_not_hold(self, store: Store) -> None:
        put_each(store, 3)
        store.lease(Lease("a", 1), 60)
        assert store.announce(3) == 1
        self.advance(store, 61)
        assert store.announce(3) == 3
        with pytest.raises(SnapshotExpiredError):
            store.lease(Lease("a", 1), 60)

    def test_a_lease_is_renewed_from_now(self, store: Store) -> None:
        put_each(store, 3)
        for _ in range(4):
            store.lease(Lease("a", 1), 60)
            self.advance(store, 40)
            assert store.announce(3) == 1
        self.advance(store, 30)  # expired, but the horizon has not passed it: it can still be renewed
        store.lease(Lease("a", 1), 60)
        assert store.announce(3) == 1

    def test_a_renewed_lease_may_go_on_to_a_newer_version(self, store: Store) -> None:
        put_each(store, 3)
        store.lease(Lease("a", 1), 3_600)
        store.lease(Lease("a", 2), 3_600)
        assert store.announce(3) == 2

    def test_lease_and_announce_are_atomic(self, store: Store) -> None:
        """In either order, a lease that was granted is never below the horizon."""
        put_each(store, 12)
        for version in range(1, 12):
            granted, horizon = in_threads(
                functools.partial(self.reopen(store).lease, Lease("a", version), 3_600),
                functools.partial(store.announce, version + 1),
            )
            if granted is None:
                assert horizon == store.pointer().horizon == version
                store.release("a")
                store.announce(version + 1)
            else:
                assert isinstance(granted, SnapshotExpiredError)
                assert horizon == version + 1

    # -- retirement ----------------------------------------------------------------------------

    def test_retirement_changes_no_answer_at_or_above_the_horizon(self, store: Store) -> None:
        history = self._history(store)
        before = {version: scanned(store, "t", version) for version in (3, 4, 5)}
        store.announce(3)
        for version in (1, 2, 3):
            retire_version(store, version, [Chunk(0, runs_of(history[version]))])
            assert {version: scanned(store, "t", version) for version in before} == before
        assert get(store, "t", KEYS, 4) == [before[4].get(key) for key in KEYS]

    def test_a_torn_retirement_leaves_every_readable_version_whole(self, store: Store) -> None:
        """T39: a crash between two key groups, or between two chunks; then all of it again."""
        history = self._history(store)
        before = {version: scanned(store, "t", version) for version in (3, 4, 5)}
        store.announce(3)
        for version in (1, 2, 3):
            chunks = chunks_of(history[version], rows_max=3)
            for chunk in chunks[::2]:
                retire_version(self.reopen(store), version, [chunk])
                assert {version: scanned(store, "t", version) for version in before} == before
            retire_version(store, version, iter(chunks))
            retire_version(store, version, chunks)
            assert {version: scanned(store, "t", version) for version in before} == before
        rows = {key for table, _, key, version in self.stored_rows(store) if version < 3}
        assert not rows & set(history[3]["t"])

    def test_a_retirement_that_is_stopped_anywhere_is_done_by_the_next(self, store: Store) -> None:
        """A closing driver does not wait for all of it: it may end between any two steps, repeatedly."""
        first: Changes = {"t": {b"%d" % i: b"1" for i in range(2_000)}, "u": dict.fromkeys(KEYS, b"1")}
        second: Changes = {"t": {key: b"2" if i % 2 else None for i, key in enumerate(first["t"])}, "u": {}}
        put(store, 1, first)
        put(store, 2, second, u=2)
        before, steps = scanned(store, "t", 2), 0
        store.announce(2)
        for version, changes in ((1, first), (2, second)):
            chunks, done = chunks_of(changes, rows_max=400), False
            while not done:
                done = retire_version(self.reopen(store), version, chunks, after(steps))
                assert scanned(store, "t", 2) == before
                assert scanned(store, "u", 2, 2) == {}
                steps += 0 if done else 1
        assert steps > 1, "it was never stopped on the way"
        assert store.vacuum(dry_run=True).rows == 0

    def test_retirement_drops_what_was_replaced(self, store: Store) -> None:
        put(store, 1, {"t": {b"a": b"1", b"b": b"1", b"c": b"1"}})
        put(store, 2, {"t": {b"a": b"2", b"b": None}})
        put(store, 3, {"t": {b"a": b"3"}})
        assert held(self.stored_rows(store)) == {
            *((b"a", 1), (b"a", 2), (b"a", 3), (b"b", 1), (b"b", 2), (b"c", 1))
        }
        store.announce(2)
        retire_version(store, 1, [Chunk(0, runs_of({"t": {b"a": b"1", b"b": b"1", b"c": b"1"}}))])
        retire_version(store, 2, [Chunk(0, runs_of({"t": {b"a": b"2", b"b": None}}))])
        assert held(self.stored_rows(store)) == {(b"a", 2), (b"a", 3), (b"c", 1)}
        assert get(store, "t", [b"a", b"b", b"c"], 2) == [b"2", None, b"1"]
        assert get(store, "t", [b"a", b"b", b"c"], 3) == [b"3", None, b"1"]

    def test_retirement_of_an_emptied_table_drops_what_did_not_come_back(self, store: Store) -> None:
        first = {"t": dict.fromkeys(KEYS, b"1"), "u": {b"a": b"1"}}
        second = {"t": {KEYS[0]: b"2"}}
        put(store, 1, first)
        put(store, 2, second, t=2, u=0)
        put(store, 3, {}, t=2, u=0)
        store.announce(3)
        retire_version(store, 1, [Chunk(0, runs_of(first))])
        retire_version(store, 2, [Chunk(0, runs_of(second))])
        retire_version(store, 3, [])
        rows = self.stored_rows(store)
        assert held(rows) == {(KEYS[0], 2), (b"a", 1)}
        assert scanned(store, "t", 3, 2) == {KEYS[0]: b"2"}
        assert get(store, "u", [b"a"], 3) == [b"1"]
        store.apply(stamp(1), Chunk(0, runs_of(first)))  # late
        assert held(self.stored_rows(store)) == {(KEYS[0], 2), (b"a", 1)}

    def test_an_emptied_table_is_scanned_in_pages_after_more_retirements(self, store: Store) -> None:
        """Cassandra failed a page whose limit ends it within a range tombstone over all keys."""
        keys, history = [b"k%03d" % number for number in range(40 * KEY_GROUPS)], {}
        for version in range(1, 7):
            history[version] = {"t": dict.fromkeys(keys, b"%d" % version)}
            put(store, version, history[version], t=2 if version > 1 else 0)
        store.announce(6)
        for version in range(1, 7):
            retire_version(store, version, [Chunk(0, runs_of(history[version]))])
        assert scanned(store, "t", 6, 2) == history[6]["t"]

    def test_a_dropped_table_leaves_no_row_and_its_name_is_free(self, store: Store) -> None:
        first, again = {"t": dict.fromkeys(KEYS, b"1"), "u": {b"a": b"1"}}, {"t": {KEYS[0]: b"3"}}
        put(store, 1, first)
        put_drop(store, 2, "t", u=0)
        put(store, 3, again, t=2, u=0)
        assert scanned(store, "t", 1) == first["t"]
        assert scanned(store, "t", 3, 2) == again["t"]
        store.announce(2)
        retire_version(store, 1, [Chunk(0, runs_of(first))])
        retire_version(store, 2, [])
        assert held(self.stored_rows(store)) == {(KEYS[0], 3), (b"a", 1)}
        assert scanned(store, "t", 3, 2) == again["t"]
        assert get(store, "u", [b"a"], 3) == [b"1"]
        self.reopen(store).apply(stamp(1), Chunk(0, runs_of({"t": first["t"]})))  # late
        assert held(self.stored_rows(store)) == {(KEYS[0], 3), (b"a", 1)}
        put(store, 4, {"t": {KEYS[1]: b"4"}}, t=2, u=0)
        assert scanned(store, "t", 4, 2) == {KEYS[0]: b"3", KEYS[1]: b"4"}

    def test_a_dropped_table_leaves_no_row_if_another_driver_has_moved_the_horizon_on(
        self, store: Store
    ) -> None:
        first, more = {"t": dict.fromkeys(KEYS, b"1"), "u": {b"a": b"1"}}, {"u": {b"a": b"3"}}
        put(store, 1, first)
        put_drop(store, 2, "t", u=0)
        put(store, 3, more, u=0)
        store.announce(3)
        for version, changes in ((1, chunks_of(first)), (2, []), (3, chunks_of(more))):
            retire_version(store, version, changes)
        assert {count.table for count in store.row_counts(["t", "u"])} == {"u"}
        assert store.vacuum(dry_run=True).rows == 0
        assert get(store, "u", [b"a"], 3) == [b"3"]

    def test_vacuum_removes_a_dropped_table_that_retirement_left(self, store: Store) -> None:
        first = {"t": dict.fromkeys(KEYS, b"1"), "u": {b"a": b"1"}}
        put(store, 1, first)
        put_drop(store, 2, "t", u=0)
        put(store, 3, {}, u=0)
        store.announce(3)
        assert store.vacuum(dry_run=True).rows == len(KEYS)
        assert store.vacuum().rows == len(KEYS)
        assert held(self.stored_rows(store)) == {(b"a", 1)}
        assert get(store, "u", [b"a"], 3) == [b"1"]

    # -- schemas --------------------------------------------------------------------------------

    def test_schemas_that_no_version_names_are_forgotten(self, store: Store) -> None:
        """200 changes of a schema at two kept versions leave a handful; a pinned version keeps its own."""
        changed = [TableSchema(KEY, (Column(f"c{n}", "int"),)) for n in range(1, 201)]
        horizon = 0
        for version, schema in enumerate(changed, 1):
            self._change_schema(store, version, schema)
            if version == 100:
                store.lease(Lease("pin", 100), 3_600)
            before, horizon = horizon, store.announce(version - 1)
            for old in range(before + 1, horizon + 1):
                retire_version(store, old, [])
            if version == 120:
                assert store.schemas()[changed[99].schema_id] == changed[99]
                store.release("pin")
        schemas = store.schemas()
        assert schemas.keys() >= {schema.schema_id for schema in changed[-2:]}
        assert len(schemas) <= 5
        assert store.schemas_of([changed[-1].schema_id])[changed[-1].schema_id] == changed[-1]

    def test_a_schema_that_a_begun_version_brings_back_is_not_forgotten(self, store: Store) -> None:
        first, second = (TableSchema(KEY, (Column(name, "int"),)) for name in ("a", "b"))
        for version, schema in ((1, first), (2, second), (3, second)):
            self._change_schema(store, version, schema)
        assert self.reopen(store).begin(stamp(4), [first], EPOCH)
        store.announce(3)
        for version in (1, 2, 3):
            retire_version(store, version, [])
        named = entry(4, {}, t=0)
        tables = {"t": TableAt(first.schema_id)}
        assert store.publish(msgspec.structs.replace(named, tables=tables), EPOCH)
        store.announce(4)
        retire_version(self.reopen(store), 4, [])
        assert store.schemas() == {first.schema_id: first}

    @staticmethod
    def _change_schema(store: Store, version: int, schema: TableSchema) -> None:
        assert store.begin(stamp(version), [schema], EPOCH)
        tables = {"t": TableAt(schema.schema_id)}
        assert store.publish(msgspec.structs.replace(entry(version), tables=tables), EPOCH)

    # -- late writes ----------------------------------------------------------------------------

    def test_a_late_apply_brings_nothing_back(self, store: Store) -> None:
        """Write, delete, both retired; then a zombie applies the write again."""
        written, deleted = {"t": {b"k": b"1"}}, {"t": {b"k": None}}
        self._put_and_retire(store, written, deleted)
        for version, changes in ((1, written), (2, deleted)):
            self.reopen(store).apply(stamp(version), Chunk(0, runs_of(changes)))
            assert get(store, "t", [b"k"], 2) == [None]
            assert scanned(store, "t", 2) == {}

    def test_a_late_apply_under_the_floor_leaves_no_rows(self, store: Store) -> None:
        first, second = {"t": {b"k": b"1"}}, {"t": {b"k": b"2"}}
        self._put_and_retire(store, first, second)
        for version, changes in ((1, first), (2, second)):
            store.apply(stamp(version), Chunk(7, runs_of(changes)))
        assert get(store, "t", [b"k"], 2) == [b"2"]
        assert held(self.stored_rows(store)) == {(b"k", 2)}

    @pytest.mark.parametrize("late", ["seal", "apply and seal", "seal with other counts"])
    def test_a_late_seal_under_the_floor_is_content(self, store: Store, late: str) -> None:
        first, second = {"t": {b"k": b"1"}}, {"t": {b"k": b"2"}}
        self._put_and_retire(store, first, second)
        for version, changes in ((1, first), (2, second)):
            if late == "apply and seal":
                store.apply(stamp(version), Chunk(0, runs_of(changes)))
            counts = counts_of(changes)
            store.seal(stamp(version), {group_of(b"k"): {"t": 5}} if "other" in late else counts)
            assert store.verify(stamp(version), counts) == []
        assert get(store, "t", [b"k"], 2) == [b"2"]
        put(store, 3, {"t": {b"k": b"3"}})
        assert get(store, "t", [b"k"], 3) == [b"3"]

    def test_versions_above_the_floor_are_still_applied_and_sealed(self, store: Store) -> None:
        first = {"t": {b"k": b"1"}}
        put(store, 1, first)
        store.announce(1)
        store.apply(stamp(2), Chunk(0, runs_of({"t": {b"k": b"2"}})))
        retire_version(store, 1, [Chunk(0, runs_of(first))])
        store.seal(stamp(2), counts_of({"t": {b"k": b"2"}}))
        put(store, 2, {"t": {b"k": b"2"}})
        assert get(store, "t", [b"k"], 1) == [b"1"]
        assert get(store, "t", [b"k"], 2) == [b"2"]

    def test_reads_race_with_retirement_and_are_right_or_refused(self, store: Store) -> None:
        """T28: a reader fetched the version, then retirement removes it during the read."""
        last = 12
        put(store, 1, {"t": dict.fromkeys(KEYS, b"1")})

        def write_and_retire() -> None:
            for version in range(2, last + 1):
                changes = {"t": {key: b"%d" % version if i % 2 else None for i, key in enumerate(KEYS)}}
                put(store, version, changes)
                store.announce(version)
                retire_version(store, version, chunks_of(changes))

        def read(answer: Callable[[Store, int], list[bytes | None]]) -> list[str]:
            reader, wrong, version = self.reopen(store), [], 0
            while version < last:
                version = reader.pointer().visible
                try:
                    values = answer(reader, version)
                except SnapshotExpiredError:
                    continue
                right = [b"%d" % version if i % 2 or version == 1 else None for i in range(len(KEYS))]
                if values != right:
                    wrong.append(f"version {version}: {values}")
            reader.close()
            return wrong

        def by_key(reader: Store, version: int) -> list[bytes | None]:
            return get(reader, "t", KEYS, version)

        def by_scan(reader: Store, version: int) -> list[bytes | None]:
            rows = scanned(reader, "t", version)
            return [rows.get(key) for key in KEYS]

        done = in_threads(write_and_retire, lambda: read(by_key), lambda: read(by_scan))
        assert done == [None, [], []]

    # -- helpers -------------------------------------------------------------------------------

    @staticmethod
    def _history(store: Store) -> dict[int, dict[str, dict[bytes, bytes | None]]]:
        history: dict[int, dict[str, dict[bytes, bytes | None]]] = {
            version: {
                "t": {
                    key: None if (i * 7 + version) % 5 == 0 else b"%d" % version
                    for i, key in enumerate(KEYS)
                    if (i + version) % 3
                }
            }
            for version in range(1, 6)
        }
        for version, changes in history.items():
            put(store, version, changes)
        return history

    @staticmethod
    def _put_and_retire(store: Store, *versions: Changes) -> None:
        for version, changes in enumerate(versions, start=1):
            put(store, version, changes)
        store.announce(len(versions))
        for version, changes in enumerate(versions, start=1):
            retire_version(store, version, [Chunk(0, runs_of(changes))])


def held(rows: set[Row]) -> set[tuple[bytes, int]]:
    return {(row.key, row.version) for row in rows}


def after(steps: int) -> Callable[[], bool]:
    """Make a ``stopped`` that returns True after ``steps`` calls."""
    calls = itertools.count()
    return lambda: next(calls) >= steps
