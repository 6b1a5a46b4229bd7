"""The comparison of a copy with its source: the same tables with the same rows, whatever their key groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import xxhash

from tidegate.committers.steps.fill_groups import live_rows
from tidegate.errors import CorruptError
from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.rules.visible import schemas_by_table
from tidegate.sinks.store import Store
from tidegate.wal.record import TableSchema

DIGEST_SPACE = 1 << 128


class VersionOf(NamedTuple):
    """A version of a namespace: its store, its entry with the tables to compare, its number of key groups."""

    namespace: str
    store: Store
    entry: CatalogEntry
    key_groups: int

    def __str__(self) -> str:
        return f"version {self.entry.version} of namespace {self.namespace}"


def compare(
    source: VersionOf, copy: VersionOf, keep: Callable[[], None], makes_again: Callable[[], str]
) -> dict[str, int]:
    """Compare two versions row by row, by a sum of digests; return the number of rows by table.

    A row that has expired at the later of their times is in neither. ``makes_again`` names the commands that
    make the copy again. Raises: CorruptError: they differ.
    """
    at_us = max(source.entry.decided_at_us, copy.entry.decided_at_us)
    (was, rows), (now, copied) = (
        ({name: schema.grouped(1) for name, schema in _schemas(side).items()}, _summed(side, at_us, keep))
        for side in (source, copy)
    )
    wrong = sorted(
        name
        for name in was.keys() | now.keys()
        if was.get(name) != now.get(name) or rows.get(name) != copied.get(name)
    )
    if wrong:
        raise CorruptError(
            f"{copy.store.where}: {copy} differs from {source}, of which it is a copy, in table"
            f" {', '.join(wrong)}; no alias was set: {makes_again()}"
        )
    return {name: rows[name][0] if name in rows else 0 for name in sorted(was)}


def _schemas(at: VersionOf) -> dict[str, TableSchema]:
    return schemas_by_table(at.store.where, at.entry.version, at.entry.tables, at.store.schemas())


def _summed(at: VersionOf, at_us: int, keep: Callable[[], None]) -> dict[str, tuple[int, int]]:
    """Return the number of rows of each table, and the sum of their digests, which knows no order."""
    counts, sums = Counter[str](), Counter[str]()
    names = sorted(at.entry.tables)
    for _, index, live in live_rows(at.store, at.entry, at.key_groups, at_us, keep):
        table = names[index]
        counts[table] += live.num_rows
        for key, value in zip(live["key"].to_pylist(), live["value"].to_pylist(), strict=True):
            digest = xxhash.xxh3_128_intdigest(b"%d:%b%b" % (len(key), key, value))
            sums[table] = (sums[table] + digest) % DIGEST_SPACE
    return {table: (count, sums[table]) for table, count in counts.items() if count}
