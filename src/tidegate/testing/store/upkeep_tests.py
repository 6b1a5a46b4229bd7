"""The store suite: rows of one version, the store's own check, vacuum and drop."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tidegate.errors import ConfigError, StoreLostError, VersionRegressedError
from tidegate.sinks.records import Identity, ReadAt, Vacuumed
from tidegate.sinks.rules.leases import Lease
from tidegate.sinks.store import Store
from tidegate.testing.store.harness import (
    EPOCH,
    KEY_GROUPS,
    Row,
    StoreHarness,
    get,
    group_of,
    live,
    put,
    retire_version,
    runs_of,
    scanned,
    stamp,
    write,
)
from tidegate.wal.frame import Chunk

KEYS = [b"key-%02d" % i for i in range(40)]
NOTHING = Vacuumed()


class UpkeepTests(StoreHarness):
    def test_above_the_visible_version_reads_are_refused(self, store: Store) -> None:
        put(store, 1, {"t": {b"k": b"1"}})
        write(store, 2, {"t": {b"k": b"2"}})
        for version in (2, 3):
            with pytest.raises(VersionRegressedError):
                store.get_many(ReadAt("t", version), [b"k"])
            with pytest.raises(VersionRegressedError):
                list(store.scan(ReadAt("t", version), group_of(b"k")))

    # -- rows of one version -------------------------------------------------------------------

    def test_rows_of_a_version_are_those_written_at_it(self, store: Store) -> None:
        put(store, 1, {"t": {b"a": b"1", b"b": b"1", b"": b""}})
        put(store, 2, {"t": {b"a": None, b"c": b"2"}})
        write(store, 3, {"t": {b"a": b"3"}})  # not visible
        keys = [b"c", b"a", b"", b"b", b"a", b"d"]
        expected = {
            0: [None] * 6,
            1: [None, b"+1", b"+", b"+1", b"+1", None],
            2: [b"+2", b"-", None, None, b"-", None],
            3: [None, b"+3", None, None, b"+3", None],
            4: [None] * 6,
        }
        for version, values in expected.items():
            rows = store.rows_of(ReadAt("t", version), keys)
            assert rows.type == pa.binary()
            assert rows.to_pylist() == values
        assert store.rows_of(ReadAt("other", 1), [b"a"]).to_pylist() == [None]
        assert store.rows_of(ReadAt("t", 1), []).to_pylist() == []

    def test_rows_of_a_version_are_given_below_the_horizon_too(self, store: Store) -> None:
        put(store, 1, {"t": {b"a": b"1"}})
        put(store, 2, {"t": {b"b": b"2"}})
        store.announce(2)
        retire_version(store, 2, [Chunk(0, runs_of({"t": {b"b": b"2"}}))])
        assert store.rows_of(ReadAt("t", 1), [b"a", b"b"]).to_pylist() == [b"+1", None]

    def test_a_whole_store_finds_nothing_wrong_with_itself(self, store: Store) -> None:
        put(store, 1, {"t": dict.fromkeys(KEYS, b"1")})
        assert list(store.self_check()) == []
        assert {store.part_of(group) for group in range(KEY_GROUPS)}

    def test_size_grows_with_what_is_stored(self, store: Store) -> None:
        if not self.size_follows_writes:
            pytest.skip("this store's size follows its writes later")
        before = store.size()
        put(store, 1, {"t": {key: bytes(1_000) for key in KEYS}})
        assert store.size() >= before + 40_000

    # -- vacuum --------------------------------------------------------------------------------

    def test_vacuum_of_what_is_needed_finds_nothing(self, store: Store) -> None:
        for version in range(1, 4):
            put(store, version, {"t": dict.fromkeys(KEYS[version:], b"%d" % version)})
        store.lease(Lease("a", 1), 3_600)
        before = self.stored_rows(store)
        assert store.vacuum(dry_run=True) == store.vacuum() == NOTHING
        assert self.stored_rows(store) == before
        assert store.verify(stamp(2), {}) == []

    def test_vacuum_drops_what_retirement_missed(self, store: Store) -> None:
        """The horizon moved, and the driver that should have retired never did."""
        put(store, 1, {"t": {b"a": b"1", b"b": b"1", b"c": b"1"}, "u": {b"a": b"1"}})
        put(store, 2, {"t": {b"a": b"2", b"b": None, b"never": None}})
        put(store, 3, {"t": {b"a": b"3"}}, u=0)
        put(store, 4, {"t": {b"a": b"4", b"c": None}}, u=0)
        store.announce(3)
        reads = {version: scanned(store, "t", version) for version in (3, 4)}
        would = store.vacuum(dry_run=True)
        assert (would.rows, would.entries) == (5, 2)
        before = self.stored_rows(store)
        assert store.vacuum() == would
        lost = {Row("t", group_of(key), key, v) for key, v in [(b"a", 1), (b"a", 2), (b"b", 1), (b"b", 2)]}
        assert before - self.stored_rows(store) == lost | {Row("t", group_of(b"never"), b"never", 2)}
        assert reads == {version: scanned(store, "t", version) for version in (3, 4)}
        assert get(store, "u", [b"a"], 3) == [b"1"]
        assert [one.version for one in store.catalog()] == [3, 4]
        assert store.vacuum() == NOTHING

    def test_vacuum_drops_rows_from_before_a_tables_start(self, store: Store) -> None:
        put(store, 1, {"t": dict.fromkeys(KEYS, b"1"), "u": {b"a": b"1"}})
        put(store, 2, {"t": {KEYS[0]: b"2"}}, t=2, u=0)
        put(store, 3, {}, t=2, u=0)
        store.announce(3)
        assert store.vacuum().rows == len(KEYS)
        assert {(row.key, row.version) for row in self.stored_rows(store)} == {(KEYS[0], 2), (b"a", 1)}
        assert scanned(store, "t", 3, 2) == {KEYS[0]: b"2"}

    def test_vacuum_drops_leases_that_ran_out(self, store: Store) -> None:
        put(store, 1, {})
        store.lease(Lease("a", 1), 10)
        store.lease(Lease("b", 1), 1_000)
        self.advance(store, 11)
        assert store.vacuum(dry_run=True).leases == 1
        assert store.vacuum().leases == 1
        assert store.vacuum() == NOTHING
        assert [info.lease_id for info in store.leases()] == ["b"]

    def test_after_vacuum_nothing_late_comes_back(self, store: Store) -> None:
        first, second = {"t": {b"k": b"1", b"l": b"1"}}, {"t": {b"k": None}}
        put(store, 1, first)
        put(store, 2, second)
        store.announce(2)
        assert store.vacuum().rows == 2
        for version, changes in ((1, first), (2, second)):
            store.apply(stamp(version), Chunk(0, runs_of(changes)))
            store.seal(stamp(version), {group_of(b"k"): {"t": 9}})
            retire_version(store, version, [Chunk(0, runs_of(changes))])
        assert get(store, "t", [b"k", b"l"], 2) == [None, b"1"]
        put(store, 3, {"t": {b"k": b"3"}})
        assert get(store, "t", [b"k", b"l"], 3) == [b"3", b"1"]

    def test_vacuum_reads_in_pages_and_loses_nothing_at_their_borders(self, one_group: Store) -> None:
        keys = [b"%06d" % i for i in range(self.page_rows + self.page_rows // 2)]
        chance = random.Random(3)
        state: dict[bytes, bytes | None] = {}
        for version in range(1, 6):
            changes = {key: chance.choice([None, b"%d" % version]) for key in keys if chance.random() < 0.7}
            put(one_group, version, {"t": changes}, 1)
            state.update(changes)
            if version == 4:
                at_4 = dict(state)
        one_group.announce(4)
        rows = len(self.stored_rows(one_group))
        would = one_group.vacuum(dry_run=True)
        assert one_group.vacuum() == would
        assert len(self.stored_rows(one_group)) == rows - would.rows
        for version, expected in ((4, at_4), (5, state)):
            assert scanned(one_group, "t", version, key_groups=1) == live(expected)
        remaining = {row.key for row in self.stored_rows(one_group) if row.version <= 4}
        assert remaining == {key for key, value in at_4.items() if value is not None}

    # -- drop ----------------------------------------------------------------------------------

    def test_drop_leaves_nothing_and_may_be_repeated(self, store: Store) -> None:
        put(store, 1, {"t": dict.fromkeys(KEYS, b"1")})
        store.lease(Lease("a", 1), 3_600)
        assert store.drop() is True
        assert store.drop() is False
        again = self.reopen(store)
        assert again.identity() is None
        assert again.drop() is False
        with pytest.raises(ConfigError):
            again.pointer()
        store.close()
        again.close()

    def test_drop_where_nothing_was_made(self) -> None:
        store = self.make_store()
        assert store.drop() is False
        assert store.identity() is None
        store.close()

    def test_after_drop_a_namespace_is_made_anew(self, store: Store) -> None:
        put(store, 1, {"t": {b"k": b"old", b"l": b"old"}})
        store.announce(1)
        store.drop()
        fresh = self.reopen(store)
        assert fresh.create(Identity("uuid-2", "suite", 2)).uuid == "uuid-2"
        pointer = fresh.pointer()
        assert (pointer.visible, pointer.epoch, pointer.horizon) == (0, 0, 0)
        assert (fresh.catalog(), fresh.schemas(), fresh.leases()) == ([], {}, [])
        fresh.claim(EPOCH, "writer-2")
        put(fresh, 1, {"t": {b"k": b"new"}}, 2)
        assert scanned(fresh, "t", 1, key_groups=2) == {b"k": b"new"}
        store.close()
        fresh.close()

    def test_who_has_it_open_is_refused_after_a_drop(self, store: Store) -> None:
        put(store, 1, {"t": {b"k": b"1"}})
        other = self.reopen(store)
        assert get(other, "t", [b"k"], 1) == [b"1"]
        store.drop()
        for use in (
            other.pointer,
            lambda: other.get_many(ReadAt("t", 1), [b"k"]),
            lambda: other.lease(Lease("a", 1), 60),
            lambda: other.claim(EPOCH + 1, "w"),
            lambda: other.announce(1),
            lambda: other.heartbeat(EPOCH),
        ):
            with pytest.raises((ConfigError, StoreLostError)):
                use()
        other.close()

    def test_who_knows_it_is_refused_where_another_of_its_name_was_made(self, store: Store) -> None:
        """A client that read rows or the identity is refused: with other key groups scans would miss rows."""
        put(store, 1, {"t": {b"k": b"old"}})
        read, looked = self.reopen(store), self.reopen(store)
        assert get(read, "t", [b"k"], 1) == [b"old"]
        assert looked.identity() is not None
        store.drop()
        fresh = self.reopen(store)
        fresh.create(Identity("uuid-2", "suite", 2))
        fresh.claim(EPOCH, "writer-2")
        for version in (1, 2):
            put(fresh, version, {"t": {b"k": b"new"}}, 2)
        for other in (read, looked):
            with pytest.raises(ConfigError):
                other.pointer()
            with pytest.raises(ConfigError):
                other.claim(EPOCH + 1, "w")
            other.close()
        assert (fresh.pointer().epoch, get(fresh, "t", [b"k"], 2)) == (EPOCH, [b"new"])
        store.close()
        fresh.close()

    def test_a_late_drop_leaves_another_of_its_name_alone(self, store: Store) -> None:
        """A drop that was delayed after its check is meant for the namespace that was checked."""
        late = self.reopen(store)
        assert late.identity() is not None
        store.drop()
        fresh = self.reopen(store)
        fresh.create(Identity("uuid-2", "suite", 2))
        with pytest.raises(ConfigError):
            late.drop()
        identity = fresh.identity()
        assert identity is not None
        assert (identity.uuid, identity.key_groups) == ("uuid-2", 2)
        last = self.reopen(store)
        assert last.drop() is True
        for each in (store, late, fresh, last):
            each.close()
