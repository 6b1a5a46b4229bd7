"""The check of a namespace in Cassandra: catalog against pointer, stored values, and counts of rows."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from tidegate.errors import CorruptError
from tidegate.sinks.cassandra.namespace import CassandraNamespace
from tidegate.sinks.cassandra.rows import Rows
from tidegate.sinks.records import CatalogEntry, Counts, Finding, Pointer, RowCount, Stamp
from tidegate.sinks.rules.layout import unpack
from tidegate.sinks.rules.seals import findings

LOOKS = 10
"""The most reads of pointer and catalog while a writer or a retirement changes the pointer in between."""


def verify(space: CassandraNamespace, rows: Rows, stamp: Stamp, counts: Counts) -> Iterator[Finding]:
    """As ``Store.verify``. A version that retirement has reached is left out."""
    if rows.is_merged(stamp.version):
        return
    sealed, _, _ = rows.notes_of(stamp, counts, older=True)
    for group in sorted(counts):
        where = f"{space.where}, version {stamp.version}, key group {group}"
        counted = {
            table: space.rows("count_version", table, group, stamp.version)[0][0] for table in counts[group]
        }
        yield from findings(where, counts[group], counted, is_sealed=group in sealed)


def check_catalog(
    where: str, read_pointer: Callable[[], Pointer], read_catalog: Callable[[], Sequence[CatalogEntry]]
) -> Iterator[Finding]:
    """Yield what differs between pointer and catalog while the pointer stays the same."""
    pointer = read_pointer()
    for _ in range(LOOKS):
        entries, before, pointer = read_catalog(), pointer, read_pointer()
        if _place_of(before) == _place_of(pointer):
            break
    else:
        return
    oldest, versions = max(pointer.horizon, 1), [entry.version for entry in entries]
    expected_count = 0 if pointer.filling_at else max(pointer.visible - oldest + 1, 0)
    if len(versions) != expected_count or versions != list(range(oldest, oldest + len(versions))):
        expected = f"versions {oldest} to {pointer.visible}" if expected_count else "no version"
        yield Finding(f"{where}, catalog", expected, f"versions {_ranges(versions)}")
    if entries and entries[-1].digest != pointer.digest:
        yield Finding(f"{where}, pointer", f"digest {entries[-1].digest}", f"digest {pointer.digest}")


def _place_of(pointer: Pointer) -> tuple[int, int, str]:
    return pointer.visible, pointer.horizon, pointer.digest


def _ranges(versions: Sequence[int]) -> str:
    """Describe ascending versions by the first and the last of each range."""
    ranges: list[list[int]] = []
    for version in versions:
        if ranges and ranges[-1][-1] == version - 1:
            ranges[-1][1:] = [version]
        else:
            ranges.append([version])
    return ", ".join(" to ".join(map(str, some)) for some in ranges) or "none"


def malformed(space: CassandraNamespace, rows: Rows) -> Iterator[Finding]:
    """Yield stored values that cannot be decoded."""
    for table, group, key, versions in rows.each_key():
        for version, (value, _) in versions.items():
            where = f"{space.where}, table {table}, key group {group}, key {key!r}, version {version}"
            if value is None:
                yield Finding(where, "a stored value", "none")
                continue
            try:
                unpack(value)
            except CorruptError as error:
                yield Finding(where, "a stored value", str(error))


def row_counts(space: CassandraNamespace, rows: Rows, tables: Collection[str]) -> Iterator[RowCount]:
    """Count the rows of each version, by key group and table."""
    for table in sorted({*tables, *rows.tables()}):
        for group in range(space.made.identity.key_groups):
            stored = space.session.stream("row_versions", space.made.space, table, group, level=space.read_at)
            for version, count in sorted(Counter(itertools.chain.from_iterable(stored)).items()):
                yield RowCount("", table, group, version, count)
