"""The comparison of the number of rows of every version, key group and table with the manifests.

The rows of each version above the horizon are counted where its manifest has changes. Here all other rows of
the store are looked for, which readers would get all the same: in a key group or table that no change of the
version is in, of a version that was never decided, or of a time before their table was created.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tidegate.sinks.records import CatalogEntry, Counts, Finding, RowCount
from tidegate.sinks.store import Store


class Expected:
    """The expected numbers of rows.

    ``counts`` are the manifests' by version, of versions above the horizon that could be read. ``last`` is
    the last decided version, ``key_groups`` their number, and ``dropped_at`` the last version that dropped a
    table.
    """

    def __init__(self, counts: Mapping[int, Counts], last: int, key_groups: int, dropped_at: int = 0) -> None:
        self.counts, self.last, self.key_groups, self.dropped_at = counts, last, key_groups, dropped_at

    def of(self, row: RowCount) -> int | None:
        """Return the most rows that may be there; None: the manifest could not be read."""
        if row.version in self.counts:
            return self.counts[row.version].get(row.group, {}).get(row.table, 0)
        return None if 0 < row.version <= self.last else 0


def strangers(
    store: Store, rows: Sequence[RowCount], expected: Expected, horizon: int, entries: Sequence[CatalogEntry]
) -> Iterator[Finding]:
    """Yield rows that no manifest has.

    ``horizon`` and ``entries``, the catalog's, were read after ``rows``. At and below the horizon, where the
    rows of several versions are merged, only rows of tables that the horizon's entry lacks are looked for:
    readers' values of the others are compared key by key. Rows of a dropped table may still be there: until
    its drop is retired, or until a vacuum if the log no longer had the drop's changes.
    """
    for row in rows:
        if not _is_placed(row, expected.key_groups):
            yield Finding(_place(store, row), "rows of a version and a key group", f"{row.rows} rows")
        elif row.version < 1:
            yield Finding(_place(store, row), "no row: the first version is 1", f"{row.rows} rows")
        elif row.version > horizon:
            most = expected.of(row)
            if most is not None and row.rows > most:
                yield Finding(_place(store, row), _wanted(row, most, expected.last), f"{row.rows} rows")
        elif entries and entries[0].version == horizon and row.table not in entries[0].starts:
            starts = [entry.tables[row.table].start for entry in entries if row.table in entry.tables]
            may_be_left = row.version <= expected.dropped_at
            if min(starts) <= row.version if starts else not may_be_left:
                expectation = f"no row: version {horizon} has no such table"
                yield Finding(_place(store, row), expectation, f"{row.rows} rows")


def _is_placed(row: RowCount, key_groups: int) -> bool:
    return type(row.version) is int and type(row.group) is int and 0 <= row.group < key_groups


def _place(store: Store, row: RowCount) -> str:
    return f"{row.where or store.where}, version {row.version}, key group {row.group}, table {row.table}"


def _wanted(row: RowCount, most: int, last: int) -> str:
    if row.version > last:
        return f"no row: the last decided version is {last}"
    return f"{most} rows at most, as in the manifest" if most else "no row: its manifest has none here"
