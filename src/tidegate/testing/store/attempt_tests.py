"""The store suite: begin, begun, discard. Rows of an attempt that the log lost never mix with another's."""

from __future__ import annotations

import contextlib

import msgspec
import pytest

from tidegate.errors import FencedError, IncompleteError, WalGapError
from tidegate.sinks.records import Stamp
from tidegate.sinks.rules.attempts import DISCARDED
from tidegate.sinks.store import Store
from tidegate.testing.concurrency import in_threads
from tidegate.testing.store.harness import (
    EPOCH,
    KEY_GROUPS,
    Changes,
    StoreHarness,
    chunks_of,
    counts_of,
    entry,
    group_of,
    put,
    scanned,
    stamp,
)
from tidegate.testing.store.pointer_tests import SCHEMA

FIRST = {"t": {b"%d" % i: b"1" for i in range(12)}}
LOST = {"t": {b"0": b"lost", b"1": b"lost", b"2": None, **{b"ghost-%d" % i: b"lost" for i in range(8)}}}
NEW = {"t": {b"0": b"new", b"3": b"new"}}
AFTER_NEW = FIRST["t"] | NEW["t"]
OTHER, MINE = "00000000000000aa", "00000000000000bb"


def of(attempt: str, version: int = 2, at_us: int = 0) -> Stamp:
    return Stamp(version, stamp(version).decided_at_us + at_us, attempt)


def apply_and_seal(store: Store, noted: Stamp, changes: Changes) -> None:
    store.apply(noted, *chunks_of(changes, rows_max=3))
    store.seal(noted, counts_of(changes))


def late(store: Store, noted: Stamp, changes: Changes) -> None:
    """Send the late writes of an attempt that may not write any more; an error is allowed, not required."""
    with contextlib.suppress(WalGapError, IncompleteError):
        apply_and_seal(store, noted, changes)


class AttemptTests(StoreHarness):
    def test_a_version_is_begun_by_one_attempt(self, store: Store) -> None:
        put(store, 1, FIRST)
        assert store.begun() == []
        assert store.begin(of(OTHER), [SCHEMA], EPOCH)
        assert store.begin(of(OTHER), [SCHEMA], EPOCH)
        assert store.schemas() == {SCHEMA.schema_id: SCHEMA}
        assert store.begun() == self.reopen(store).begun() == [of(OTHER)]
        for instance in (store, self.reopen(store)):
            with pytest.raises(WalGapError, match=r"tidegate recover --discard-lost"):
                instance.begin(of(MINE), [], EPOCH)
        assert store.begun() == [of(OTHER)]

    def test_what_is_visible_is_not_begun_again(self, store: Store) -> None:
        assert store.begin(of(OTHER, 1), [], EPOCH)
        apply_and_seal(store, of(OTHER, 1), FIRST)
        assert store.publish(entry(1), EPOCH)
        assert store.begun() == []
        assert not store.begin(of(OTHER, 1), [SCHEMA], EPOCH)
        assert not store.begin(of(MINE, 1), [], EPOCH)
        assert store.begun() == []
        assert scanned(store, "t", 1) == FIRST["t"]

    def test_versions_are_begun_in_order_and_again(self, store: Store) -> None:
        """A repair concurrent with a pipeline begins later versions before earlier ones are visible."""
        put(store, 1, FIRST)
        for version in (2, 3, 4):
            assert store.begin(of(OTHER, version), [], EPOCH)
        for version in (2, 3):
            assert store.begin(of(OTHER, version), [], EPOCH)
            apply_and_seal(store, of(OTHER, version), NEW)
            assert store.publish(entry(version), EPOCH)
        assert store.begun() == [of(OTHER, 4)]

    def test_i6_behind_a_claim_no_older_driver_begins(self, store: Store) -> None:
        put(store, 1, FIRST)
        assert store.claim(EPOCH + 1, "newer") == EPOCH + 1
        with pytest.raises(FencedError, match="epoch 2"):
            store.begin(of(OTHER), [], EPOCH)
        assert store.begun() == []
        assert store.begin(of(MINE), [], EPOCH + 1)

    def test_of_many_that_begin_at_once_one_wins_at_most(self, store: Store) -> None:
        put(store, 1, FIRST)
        attempts = [f"{number:016x}" for number in range(4)]
        mine = [self.reopen(store) for _ in attempts]
        done = in_threads(
            *(lambda m=m, a=a: m.begin(of(a), [], EPOCH) for m, a in zip(mine, attempts, strict=True))
        )
        assert done.count(True) <= 1
        assert all(one is True or isinstance(one, WalGapError) for one in done)

    @pytest.mark.parametrize("sealed", [False, True])
    def test_rows_of_another_attempt_are_not_mixed_in(self, store: Store, *, sealed: bool) -> None:
        """The log lost a version's decision when it was applied; it is decided again, with other rows."""
        put(store, 1, FIRST)
        assert store.begin(of(OTHER), [], EPOCH)
        store.apply(of(OTHER), *chunks_of(LOST, rows_max=3))
        if sealed:
            store.seal(of(OTHER), counts_of(LOST))
        with pytest.raises(WalGapError):
            store.begin(of(MINE, at_us=1), [], EPOCH)
        store.discard([of(OTHER)], EPOCH)
        assert store.begun() == [of(DISCARDED)]
        for twice in (False, True):
            late(self.reopen(store), of(OTHER), LOST)
            assert store.begin(of(MINE, at_us=1), [], EPOCH), twice
            apply_and_seal(store, of(MINE, at_us=1), NEW)
        late(self.reopen(store), of(OTHER), LOST)
        new = msgspec.structs.replace(
            entry(2, NEW), attempt=MINE, decided_at_us=of(MINE, at_us=1).decided_at_us
        )
        assert store.publish(new, EPOCH)
        late(self.reopen(store), of(OTHER), LOST)
        assert scanned(store, "t", 2) == AFTER_NEW
        assert scanned(store, "t", 1) == FIRST["t"]
        assert store.verify(of(MINE, at_us=1), counts_of(NEW)) == []

    def test_what_was_discarded_never_begins_again(self, store: Store) -> None:
        put(store, 1, FIRST)
        assert store.begin(of(OTHER), [], EPOCH)
        for _ in range(2):
            store.discard([of(OTHER)], EPOCH)
        with pytest.raises(WalGapError):
            self.reopen(store).begin(of(OTHER), [], EPOCH)
        assert store.begin(of(MINE, at_us=1), [], EPOCH)
        with pytest.raises(WalGapError):
            store.begin(of(OTHER), [], EPOCH)
        assert [one.attempt for one in store.begun()] == [DISCARDED, MINE]

    def test_a_discard_leaves_the_versions_below_it(self, store: Store) -> None:
        put(store, 1, FIRST)
        for version in (2, 3):
            assert store.begin(of(OTHER, version), [], EPOCH)
        apply_and_seal(store, of(OTHER, 2), NEW)
        apply_and_seal(store, of(OTHER, 3), LOST)
        store.discard([of(OTHER, 3)], EPOCH)
        assert store.begun() == [of(OTHER, 2), of(DISCARDED, 3)]
        assert store.publish(entry(2, NEW), EPOCH)
        assert scanned(store, "t", 2) == AFTER_NEW

    def test_an_older_driver_discards_nothing(self, store: Store) -> None:
        put(store, 1, FIRST)
        assert store.begin(of(OTHER), [], EPOCH)
        apply_and_seal(store, of(OTHER), NEW)
        assert store.claim(EPOCH + 1, "newer") == EPOCH + 1
        with pytest.raises(FencedError):
            store.discard([of(OTHER)], EPOCH)
        assert store.begun() == [of(OTHER)]
        assert store.publish(entry(2, NEW), EPOCH + 1)
        assert scanned(store, "t", 2) == AFTER_NEW

    def test_rows_are_discarded_where_they_lie(self, store: Store) -> None:
        put(store, 1, FIRST)
        before = self.stored_rows(store)
        assert store.begin(of(OTHER), [], EPOCH)
        apply_and_seal(store, of(OTHER), LOST)
        assert self.stored_rows(store) > before
        store.discard([of(OTHER)], EPOCH)
        assert self.stored_rows(store) == before

    def test_more_key_groups_than_the_new_attempt_has(self, store: Store) -> None:
        """The sealed rows are in key groups that the new attempt never touches."""
        put(store, 1, FIRST)
        key = next(b"%d" % i for i in range(100) if group_of(b"%d" % i) == KEY_GROUPS - 1)
        assert store.begin(of(OTHER), [], EPOCH)
        apply_and_seal(store, of(OTHER), {"t": {key: b"lost"}})
        store.discard([of(OTHER)], EPOCH)
        only = {"t": {next(b"%d" % i for i in range(100) if group_of(b"%d" % i) == 0): b"new"}}
        assert store.begin(of(MINE, at_us=1), [], EPOCH)
        apply_and_seal(store, of(MINE, at_us=1), only)
        assert store.publish(entry(2, only), EPOCH)
        assert scanned(store, "t", 2) == FIRST["t"] | only["t"]
