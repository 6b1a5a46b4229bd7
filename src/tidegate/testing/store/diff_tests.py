"""The store suite: the diff of two versions (``sinks/diff.py``), over each store's reads."""

from __future__ import annotations

import random

import msgspec
import pyarrow as pa
import pytest

from tidegate.errors import SnapshotExpiredError
from tidegate.sinks.diff import DIFFERENCES, stored_differences, untouched
from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.store import Store
from tidegate.testing.store.harness import (
    KEY_GROUPS,
    StoreHarness,
    group_of,
    live,
    put,
    retire_version,
)

Rows = dict[bytes, bytes]


class DiffTests(StoreHarness):
    @pytest.mark.parametrize("expires", [False, True])
    def test_a_diff_is_what_two_scans_differ_by(self, store: Store, *, expires: bool) -> None:
        """A random history with deletes, emptied tables and values written again: all pairs, both ways.

        ``expires``: by scans, as for tables whose rows expire.
        """
        chance = random.Random(7)
        keys = [b"", *(b"%d" % i for i in range(50))]
        states: list[dict[str, Rows]] = [{}]
        starts: dict[str, int] = {}
        for version in range(1, 5):
            state = {table: dict(rows) for table, rows in states[-1].items()}
            changes = {}
            for table in ("t", "late")[: 1 + (version > 2)]:
                emptied = chance.random() < 0.25
                if emptied:
                    starts[table], state[table] = version, {}
                changes[table] = changes_of(chance, keys)
                state[table] = live({**state.get(table, {}), **changes[table]})
            put(store, version, changes, **{"t": 0, **starts})
            states.append(state)
        entries = [None, *(with_tables(entry, expires=expires) for entry in store.catalog())]
        for before, was in zip(entries, states, strict=True):
            for after, now in zip(entries, states, strict=True):
                for table in ("t", "late"):
                    expected = differing(was.get(table, {}), now.get(table, {}))
                    assert differences(store, table, before, after) == expected

    def test_a_diff_loses_nothing_at_the_borders_of_its_pages(self, one_group: Store) -> None:
        first = {b"%06d" % i: b"1" for i in range(2 * self.page_rows + 1)}
        second: dict[bytes, bytes | None] = {b"%06d!" % i: b"2" for i in range(0, len(first), 3)}
        second |= {b"%06d" % i: None if i % 2 else b"2" for i in range(0, len(first), 5)}
        put(one_group, 1, {"t": first}, 1)
        put(one_group, 2, {"t": second}, 1)
        expected = differing(first, live({**first, **second}))
        for expires in (False, True):
            one, two = (with_tables(entry, expires=expires) for entry in one_group.catalog())
            assert differences(one_group, "t", one, two, 1) == expected

    def test_only_tables_that_may_differ_are_looked_at(self, store: Store) -> None:
        put(store, 1, {"t": {b"a": b"1"}, "u": {b"a": b"1"}, "v": {b"a": b"1"}})
        put(store, 2, {"u": {b"a": b"2"}}, t=0, u=0, v=0)
        put(store, 3, {"w": {b"a": b"2"}}, t=0, u=0, v=3)
        first, second, third = store.catalog()
        assert untouched(store, first, third) == {"t"}
        assert untouched(store, second, third) == {"t", "u"}
        assert untouched(store, None, third) == frozenset()

    def test_a_diff_whose_older_version_is_retired_raises(self, store: Store) -> None:
        """T28: a delete marker that retirement removed must not look like no difference."""
        put(store, 1, {"t": {b"a": b"1", b"b": b"1"}})
        second = put(store, 2, {"t": {b"a": None}})
        third = put(store, 3, {"t": {b"b": b"3"}})
        one, two, three = store.catalog()
        assert differences(store, "t", one, three) == {b"a": (b"1", None), b"b": (b"1", b"3")}
        store.announce(3)
        retire_version(store, 2, second)
        retire_version(store, 3, third)
        for before in (one, two):
            with pytest.raises(SnapshotExpiredError):
                differences(store, "t", before, three)


def changes_of(chance: random.Random, keys: list[bytes]) -> dict[bytes, bytes | None]:
    chosen = chance.sample(keys, chance.randrange(len(keys) // 2))
    return {key: None if chance.random() < 0.3 else b"%d" % chance.randrange(3) for key in chosen}


def differing(was: Rows, now: Rows) -> dict[bytes, tuple[bytes | None, bytes | None]]:
    return {key: (was.get(key), now.get(key)) for key in {*was, *now} if was.get(key) != now.get(key)}


def with_tables(entry: CatalogEntry, *, expires: bool) -> CatalogEntry:
    """Return the entry as the store has it, or as if rows of its tables could expire."""
    if not expires:
        return entry
    tables = {name: msgspec.structs.replace(state, expires=True) for name, state in entry.tables.items()}
    return msgspec.structs.replace(entry, tables=tables)


def differences(
    store: Store,
    table: str,
    before: CatalogEntry | None,
    after: CatalogEntry | None,
    key_groups: int = KEY_GROUPS,
) -> dict[bytes, tuple[bytes | None, bytes | None]]:
    """Return all differences of a table; check order, types and groups on the way."""
    changed: dict[bytes, tuple[bytes | None, bytes | None]] = {}
    for group in range(key_groups):
        keys: list[bytes] = []
        for batch in stored_differences(store, table, group, before, after):
            assert batch.schema.names == [*DIFFERENCES]
            assert set(batch.schema.types) == {pa.binary()}
            assert batch.num_rows > 0
            columns = (batch[name].to_pylist() for name in DIFFERENCES)
            for key, was, now in zip(*columns, strict=True):
                keys.append(key)
                changed[key] = (was, now)
        assert keys == sorted(set(keys))
        assert all(group_of(key, key_groups) == group for key in keys)
    return changed
