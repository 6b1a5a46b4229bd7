"""Part of the store suite: filling a new store from another one."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from tidegate.errors import (
    SnapshotExpiredError,
    StoreLostError,
    StoreNotVerifiedError,
    VersionRegressedError,
)
from tidegate.sinks.store import Store
from tidegate.testing.store.harness import (
    EPOCH,
    KEY_GROUPS,
    StoreHarness,
    chunks_of,
    counts_of,
    entry,
    get,
    put,
    retire_version,
    scanned,
    stamp,
    write,
)

STATE = {"t": {b"k%d" % n: b"at-5" for n in range(20)}}


class FillTests(StoreHarness):
    """Tests of filling a store that was created and claimed, and has no version."""

    @pytest.fixture
    def empty(self) -> Iterator[Store]:
        for new in self._created(KEY_GROUPS):
            if not new.can_be_filled:
                pytest.skip("this store cannot be filled from another one")
            yield new

    def test_a_filled_version_is_the_first_visible_one(self, empty: Store) -> None:
        assert empty.begin_fill(entry(5, STATE), EPOCH) == 5
        for read in (lambda: get(empty, "t", [b"k1"], 5), lambda: scanned(empty, "t", 5)):
            with pytest.raises((StoreLostError, StoreNotVerifiedError, VersionRegressedError)):
                read()  # a snapshot of before a loss may be open
        write(empty, 5, STATE)
        assert empty.pointer().visible == 0
        assert empty.publish_filled(entry(5, STATE), EPOCH) is True
        pointer = self.reopen(empty).pointer()
        assert (pointer.visible, pointer.digest, pointer.horizon) == (5, "digest-5", 5)
        assert scanned(empty, "t", 5) == STATE["t"]
        with pytest.raises(SnapshotExpiredError):
            get(empty, "t", [b"k1"], 4)
        put(empty, 6, {"t": {b"k1": None, b"new": b"at-6"}})
        assert get(empty, "t", [b"k0", b"k1", b"new"], 6) == [b"at-5", None, b"at-6"]
        assert [one.version for one in empty.catalog()] == [5, 6]

    def test_a_table_that_the_filled_version_dropped_may_be_made_again(self, empty: Store) -> None:
        filled = msgspec.structs.replace(entry(5, STATE), dropped=("gone",))
        assert empty.begin_fill(filled, EPOCH) == 5
        write(empty, 5, STATE)
        assert empty.publish_filled(filled, EPOCH) is True
        put(empty, 6, {"gone": {b"new": b"at-6"}}, t=0, gone=5)
        retire_version(empty, 5, chunks_of(STATE))
        assert scanned(empty, "gone", 6, 5) == {b"new": b"at-6"}
        assert scanned(empty, "t", 6) == STATE["t"]
        assert empty.vacuum(dry_run=True).rows == 0

    def test_the_mark_shows_and_only_goes_up(self, empty: Store) -> None:
        assert empty.pointer().filling_at == 0
        assert empty.begin_fill(entry(5, STATE), EPOCH) == 5
        assert empty.begin_fill(entry(3, STATE), EPOCH) == 5
        assert empty.begin_fill(entry(7, STATE), EPOCH) == 7
        assert self.reopen(empty).pointer().filling_at == 7
        assert empty.catalog() == []

    def test_only_the_marked_version_becomes_the_first(self, empty: Store) -> None:
        empty.begin_fill(entry(5, STATE), EPOCH)
        write(empty, 5, STATE)
        empty.begin_fill(entry(6, STATE), EPOCH)
        assert empty.publish_filled(entry(5, STATE), EPOCH) is False
        assert empty.publish_filled(entry(7, STATE), EPOCH) is False
        assert empty.pointer().visible == 0

    def test_a_late_fill_at_an_older_version_writes_nothing_and_what_it_wrote_is_gone(
        self, empty: Store
    ) -> None:
        empty.begin_fill(entry(3, STATE), EPOCH)
        write(empty, 3, {"t": {b"old-%d" % n: b"at-3" for n in range(20)}})
        empty.begin_fill(entry(5, STATE), EPOCH)
        for chunk in chunks_of({"t": {b"late-%d" % n: b"at-3" for n in range(20)}}):
            empty.apply(stamp(3), chunk)
        write(empty, 5, STATE)
        empty.publish_filled(entry(5, STATE), EPOCH)
        for chunk in chunks_of({"t": {b"later-%d" % n: b"at-5" for n in range(20)}}):
            empty.apply(stamp(5), chunk)
        assert scanned(empty, "t", 5) == STATE["t"]

    def test_version_1_that_was_begun_from_the_log_is_never_filled_and_stands_in_no_fill_s_way(
        self, empty: Store
    ) -> None:
        """Its delete markers and chunks differ from a fill's: the counts of both would never add up."""
        from_log = {"t": {b"k%d" % n: None if n % 5 == 0 else b"at-1" for n in range(30)}}
        chunks = chunks_of(from_log, rows_max=2)
        for chunk in chunks[: len(chunks) // 2]:
            empty.apply(stamp(1), chunk)
        with pytest.raises(ValueError, match="cannot be filled at version 1"):
            empty.begin_fill(entry(1, STATE), EPOCH)
        assert empty.pointer().filling_at == 0
        assert empty.begin_fill(entry(2, STATE), EPOCH) == 2
        for chunk in chunks:  # late, from a driver that was replaced
            empty.apply(stamp(1), chunk)
        write(empty, 2, STATE)
        empty.seal(stamp(1), counts_of(from_log))
        assert empty.begin_fill(entry(2, STATE), EPOCH) == 2  # again, after a crash: sealed parts stay sealed
        write(empty, 2, STATE)
        for epoch in (EPOCH - 1, EPOCH):  # late, from before the fill
            assert empty.publish(entry(1, from_log), epoch) is False
        assert (empty.pointer().visible, empty.pointer().filling_at) == (0, 2)
        assert empty.publish_filled(entry(2, STATE), EPOCH) is True
        for chunk in chunks:
            empty.apply(stamp(1), chunk)
        assert scanned(empty, "t", 2) == STATE["t"]
        put(empty, 3, {"t": {b"k1": b"at-3"}})
        empty.vacuum()
        assert scanned(empty, "t", 3) == {**STATE["t"], b"k1": b"at-3"}

    def test_a_fill_may_be_repeated_at_its_version(self, empty: Store) -> None:
        for _ in range(2):
            assert empty.begin_fill(entry(5, STATE), EPOCH) == 5
            write(empty, 5, STATE)
        assert empty.publish_filled(entry(5, STATE), EPOCH) is True
        assert empty.publish_filled(entry(5, STATE), EPOCH) is False
        assert empty.begin_fill(entry(9, STATE), EPOCH) == 0
        assert scanned(empty, "t", 5) == STATE["t"]
        assert empty.verify(stamp(5), counts_of(STATE)) == []  # merged

    def test_nothing_is_filled_where_something_is_visible(self, empty: Store) -> None:
        put(empty, 1, STATE)
        assert empty.begin_fill(entry(5, STATE), EPOCH) == 0
        assert empty.publish_filled(entry(5, STATE), EPOCH) is False
        assert (empty.pointer().visible, empty.pointer().horizon) == (1, 0)
        assert scanned(empty, "t", 1) == STATE["t"]

    def test_an_older_epoch_neither_marks_nor_publishes(self, empty: Store) -> None:
        empty.begin_fill(entry(5, STATE), EPOCH)
        write(empty, 5, STATE)
        empty.claim(EPOCH + 1, "writer-2")
        assert empty.begin_fill(entry(6, STATE), EPOCH) == 0
        assert empty.publish_filled(entry(5, STATE), EPOCH) is False
        assert (empty.pointer().visible, empty.pointer().filling_at) == (0, 5)
        assert empty.publish_filled(entry(5, STATE), EPOCH + 1) is True

    def test_a_vacuum_leaves_a_fill_alone(self, empty: Store) -> None:
        empty.begin_fill(entry(5, STATE), EPOCH)
        empty.vacuum()
        write(empty, 5, STATE)
        empty.vacuum()
        empty.publish_filled(entry(5, STATE), EPOCH)
        empty.vacuum()
        assert scanned(empty, "t", 5) == STATE["t"]
