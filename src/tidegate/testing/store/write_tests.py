"""The store suite: apply, seal, verify."""

from __future__ import annotations

import itertools
import random

import pytest

from tidegate.errors import IncompleteError, VersionRegressedError
from tidegate.sinks.store import Store
from tidegate.testing.concurrency import in_threads
from tidegate.testing.store.harness import (
    EPOCH,
    KEY_GROUPS,
    Row,
    StoreHarness,
    chunks_of,
    counts_of,
    entry,
    get,
    group_of,
    live,
    put,
    runs_of,
    scanned,
    stamp,
    write,
)
from tidegate.wal.frame import Chunk

KEYS = [b"key-%02d" % i for i in range(40)]
FIRST = {"t": {key: b"1 " + key for key in KEYS}, "u": dict.fromkeys(KEYS[:5], b"u")}
SECOND = {"t": {key: b"2 " + key if i % 3 else None for i, key in enumerate(KEYS[::2])}}


class WriteTests(StoreHarness):
    # -- apply ---------------------------------------------------------------------------------

    def test_what_is_not_published_is_not_shown(self, store: Store) -> None:
        put(store, 1, FIRST)
        for apply_and_seal in (False, True):
            if apply_and_seal:
                write(store, 2, SECOND)
            else:
                store.apply(stamp(2), chunks_of(SECOND)[0])
            assert store.pointer().visible == 1
            assert scanned(store, "t", 1) == FIRST["t"]
            assert get(store, "t", KEYS, 1) == [FIRST["t"][key] for key in KEYS]
            assert [one.version for one in store.catalog()] == [1]
            with pytest.raises(VersionRegressedError):
                get(store, "t", KEYS, 2)
        assert store.publish(entry(2), EPOCH)
        assert get(store, "t", KEYS, 2) == [SECOND["t"].get(key, FIRST["t"][key]) for key in KEYS]

    @pytest.mark.parametrize("seed", range(3))
    def test_chunks_come_in_any_order_and_any_number_of_times(self, store: Store, seed: int) -> None:
        put(store, 1, FIRST)
        chunks = chunks_of(SECOND, rows_max=2)
        calls = chunks * 3
        rng = random.Random(seed)
        rng.shuffle(calls)
        while calls:
            at_once = rng.randint(1, 4)
            store.apply(stamp(2), *calls[:at_once])
            del calls[:at_once]
        store.seal(stamp(2), counts_of(SECOND))
        assert store.publish(entry(2), EPOCH)
        expected = {key: SECOND["t"].get(key, FIRST["t"][key]) for key in KEYS}
        assert scanned(store, "t", 2) == live(expected)
        assert scanned(store, "t", 1) == FIRST["t"]

    def test_one_frame_may_come_in_pieces_by_key_group(self, store: Store) -> None:
        """Tasks own key groups, frames may straddle them: each task sends the same ordinal."""
        for run in runs_of(FIRST):
            store.apply(stamp(1), Chunk(0, [run]))
        store.seal(stamp(1), counts_of(FIRST))

    def test_a_late_repeat_changes_nothing(self, store: Store) -> None:
        """T1, T31: a zombie task applies version 1 again when 2 is visible."""
        put(store, 1, FIRST)
        put(store, 2, SECOND)
        before = [scanned(store, "t", version) for version in (1, 2)]
        self.reopen(store).apply(stamp(1), Chunk(0, runs_of(FIRST)))
        store.seal(stamp(1), counts_of(FIRST))
        assert [scanned(store, "t", version) for version in (1, 2)] == before
        assert store.verify(stamp(1), counts_of(FIRST)) == []

    def test_threads_apply_different_key_groups_at_once(self, store: Store) -> None:
        changes = {"t": {b"%06d" % i: b"%d" % i for i in range(4_000)}}
        runs = runs_of(changes)
        tasks = [runs[index::4] for index in range(4)]
        done = in_threads(
            *(lambda n=n, task=task: store.apply(stamp(1), Chunk(n, task)) for n, task in enumerate(tasks))
        )
        assert done == [None] * 4
        store.seal(stamp(1), counts_of(changes))
        assert store.publish(entry(1), EPOCH)
        assert scanned(store, "t", 1) == changes["t"]

    def test_speculative_tasks_apply_and_seal_the_same_at_once(self, store: Store) -> None:
        """T2."""

        def task() -> None:
            mine = self.reopen(store)
            write(mine, 1, FIRST)
            mine.close()

        assert in_threads(task, task, task) == [None] * 3
        assert store.publish(entry(1), EPOCH)
        assert scanned(store, "t", 1) == FIRST["t"]
        assert store.verify(stamp(1), counts_of(FIRST)) == []

    def test_names_that_differ_little_are_different_tables(self, store: Store) -> None:
        """T47."""
        names = ["ab", "AB", "Ab", "a.b", "a_b", "a-b", "a__b", "_0", ".", "t" * 64, "t" * 63 + "T"]
        changes = {name: {b"k": name.encode()} for name in names}
        put(store, 1, changes)
        assert [get(store, name, [b"k"], 1) for name in names] == [[name.encode()] for name in names]
        put(store, 2, {"AB": {b"k": None}})
        assert get(store, "ab", [b"k"], 2) == [b"ab"]
        assert get(store, "AB", [b"k"], 2) == [None]

    # -- seal ----------------------------------------------------------------------------------

    def test_an_empty_version_is_sealed_and_published(self, store: Store) -> None:
        """T7."""
        store.seal(stamp(1), {})
        assert store.publish(entry(1), EPOCH)
        put(store, 2, FIRST)
        assert scanned(store, "t", 1) == {}
        assert scanned(store, "t", 2) == FIRST["t"]

    def test_a_missing_chunk_is_not_sealed(self, store: Store) -> None:
        chunks = chunks_of(FIRST, rows_max=2)
        for chunk in chunks[1:]:
            store.apply(stamp(1), chunk)
        for _ in range(2):  # had the first refusal sealed it, the second call would succeed
            with pytest.raises(IncompleteError):
                store.seal(stamp(1), counts_of(FIRST))
        store.apply(stamp(1), chunks[0])
        store.seal(stamp(1), counts_of(FIRST))

    def test_one_chunk_twice_does_not_stand_for_two(self, store: Store) -> None:
        changes = {"t": {key: b"v" for key in KEYS if group_of(key) == 3}}
        (first, second, *rest) = chunks_of(changes, rows_max=1)
        for chunk in (first, first, *rest):
            store.apply(stamp(1), chunk)
        with pytest.raises(IncompleteError):
            store.seal(stamp(1), counts_of(changes))
        store.apply(stamp(1), second)
        store.seal(stamp(1), counts_of(changes))

    @pytest.mark.parametrize("wrong", ["fewer", "more", "another table", "a table less", "another version"])
    def test_other_counts_are_not_sealed(self, store: Store, wrong: str) -> None:
        store.apply(stamp(1), Chunk(0, runs_of(FIRST)))
        group = group_of(KEYS[0])
        counts = counts_of(FIRST)
        if wrong == "fewer":
            counts[group]["t"] -= 1
        elif wrong == "more":
            counts[group]["t"] += 1
        elif wrong == "another table":
            counts[group]["w"] = 1
        elif wrong == "a table less":
            if not self.knows_every_table:
                pytest.skip("this store looks only for the tables that the counts name")
            del counts[group]["t"]
        for _ in range(2):
            with pytest.raises(IncompleteError):
                store.seal(stamp(2 if wrong == "another version" else 1), counts)
        store.seal(stamp(1), counts_of(FIRST))

    def test_a_refused_group_names_itself_and_the_others_may_go_on(self, store: Store) -> None:
        counts = counts_of(FIRST)
        groups = sorted(counts)
        for run in runs_of(FIRST):
            if run.group != groups[-1]:
                store.apply(stamp(1), Chunk(0, [run]))
        with pytest.raises(IncompleteError, match=rf"\b{groups[-1]}\b"):
            store.seal(stamp(1), counts)
        store.seal(stamp(1), {group: counts[group] for group in groups[:-1]})
        for run in runs_of(FIRST):
            store.apply(stamp(1), Chunk(0, [run]))
        store.seal(stamp(1), counts)

    def test_seal_may_be_repeated(self, store: Store) -> None:
        write(store, 1, FIRST)
        for instance in (store, self.reopen(store)):
            instance.seal(stamp(1), counts_of(FIRST))
        store.publish(entry(1), EPOCH)
        store.seal(stamp(1), counts_of(FIRST))

    def test_what_is_sealed_is_not_asked_again(self, store: Store) -> None:
        """Its rows may be in the middle of a merge when a late seal arrives."""
        put(store, 1, FIRST)
        store.seal(stamp(1), {group: {"t": 10_000} for group in counts_of(FIRST)})
        assert scanned(store, "t", 1) == FIRST["t"]

    def test_counts_of_zero_are_counts(self, store: Store) -> None:
        store.seal(stamp(1), {0: {"t": 0}, 1: {}})

    # -- verify --------------------------------------------------------------------------------

    def test_verify_finds_nothing_where_all_is_whole(self, store: Store) -> None:
        put(store, 1, FIRST)
        put(store, 2, SECOND)
        assert store.verify(stamp(1), counts_of(FIRST)) == []
        assert store.verify(stamp(2), counts_of(SECOND)) == []

    def test_verify_finds_a_lost_row_and_writes_nothing(self, store: Store) -> None:
        put(store, 1, FIRST)
        put(store, 2, SECOND)
        key = KEYS[0]
        self.lose_row(store, Row("t", group_of(key), key, 1))
        for _ in range(2):
            (finding,) = store.verify(stamp(1), counts_of(FIRST))
            assert "t" in finding.where
            assert finding.expected != finding.found
        assert store.verify(stamp(2), counts_of(SECOND)) == []
        if not self.lost_rows_can_be_put_back:
            return
        store.apply(stamp(1), Chunk(0, runs_of(FIRST)))  # repair
        assert store.verify(stamp(1), counts_of(FIRST)) == []

    def test_verify_finds_a_lost_count(self, store: Store) -> None:
        put(store, 1, FIRST)
        counts = counts_of(FIRST)
        for more in ({group_of(KEYS[0]): {**counts[group_of(KEYS[0])], "w": 2}}, {KEY_GROUPS - 1: {"w": 1}}):
            assert store.verify(stamp(1), {**counts, **more}) != []

    def test_verify_finds_what_was_never_applied(self, store: Store) -> None:
        some = dict(itertools.islice(FIRST["t"].items(), 10))
        store.apply(stamp(1), Chunk(0, runs_of({"t": some})))
        assert store.verify(stamp(1), counts_of(FIRST)) != []
