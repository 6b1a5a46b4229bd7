"""The check of the reference store: its rows against counts, key groups and floors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tidegate.keys.groups import key_group
from tidegate.sinks.memory.namespace import MemoryNamespace
from tidegate.sinks.records import Counts, Finding, RowCount
from tidegate.sinks.rules.seals import findings
from tidegate.sinks.rules.visible import floor_found


def verify(space: MemoryNamespace, where: str, version: int, counts: Counts) -> list[Finding]:
    """As ``Store.verify``."""
    misfits: list[Finding] = []
    with space.lock:
        for group, expected in sorted(counts.items()):
            if space.floors.get(group, 0) >= version:
                continue  # merged: its rows cannot be distinguished from newer ones
            place = f"{where}, version {version}, key group {group}"
            is_sealed = (group, version) in space.sealed
            counted = {
                table: sum(version in of_key for of_key in space.rows[table, group].values())
                for table in expected
            }
            misfits += findings(place, expected, counted, is_sealed=is_sealed)
    return misfits


def self_check(space: MemoryNamespace, where: str) -> Iterator[Finding]:
    """Yield keys in another key group than their own, and floors above the horizon.

    The key groups of a table that no visible version has are not known.
    """
    key_groups = space.identity.key_groups if space.identity else 1
    with space.lock:
        rows = [
            (*at, key, max(of_key)) for at, of in space.rows.items() for key, of_key in of.items() if of_key
        ]
        floors, pointer = dict(space.floors), space.pointer
        ats = {(name, at.start, at.apart) for of in space.catalog.values() for name, at in of.tables.items()}
    for table, group, key, newest in rows:  # a table that was dropped before had other key groups
        of_table = [apart for name, start, apart in ats if name == table and start <= newest]
        own = {key_group(key, key_groups, apart) for apart in of_table}
        if own and group not in own:
            yield Finding(
                f"{where}, table {table}, key group {group}", "keys of this key group", f"key {key!r}"
            )
    for group, floor in sorted(floors.items()):
        if floor > pointer.horizon:
            place, expected = f"{where}, key group {group}, floor", f"at most the horizon, {pointer.horizon}"
            yield Finding(place, expected, floor_found(floor, pointer.visible))


def row_counts(space: MemoryNamespace) -> Iterator[RowCount]:
    """Count the rows of each version, by key group and table."""
    with space.lock:
        counted = Counter(
            (table, group, version)
            for (table, group), of_group in space.rows.items()
            for of_key in of_group.values()
            for version in of_key
        )
    for (table, group, version), rows in sorted(counted.items()):
        yield RowCount("", table, group, version, rows)
