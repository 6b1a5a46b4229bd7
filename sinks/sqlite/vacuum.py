"""Vacuum of a SQLite store's shard.

Rows are read by pages, in the order of the primary key, outside any write transaction. Only
deletions are written, a page at a time, so that an apply never waits for more.
"""

from __future__ import annotations

from typing import NamedTuple

from tidegate.sinks.records import CatalogEntry, Vacuumed
from tidegate.sinks.rules.expiry import HEAD_BYTES, is_hidden
from tidegate.sinks.sqlite.disk.files import Files
from tidegate.sinks.sqlite.disk.tables import META_FILE, NOTES, has_table, tables_in
from tidegate.sinks.sqlite.rows import BEFORE_ALL, RAISE_FLOOR, RETIRE_ROWS, sql_name

ROWS = """SELECT key, version, substr(value, 1, {head}) FROM {table}
    WHERE kg = ? AND (key, version) > (?, ?) AND version <= ? ORDER BY key, version LIMIT ?"""
DROP_ROW = "DELETE FROM {table} WHERE kg = ? AND key = ? AND version = ?"


class _Row(NamedTuple):
    key: bytes
    version: int
    hides: bool


class Vacuum:
    """The vacuum of one shard file up to one horizon; ``entry`` is the horizon's, if there is one."""

    def __init__(
        self,
        files: Files,
        name: str,
        groups: range,
        horizon: int,
        entry: CatalogEntry | None,
        *,
        dry_run: bool,
    ) -> None:
        self._files, self._name, self._groups = files, name, groups
        self._horizon, self._entry, self._dry_run = horizon, entry, dry_run
        self._at_us = entry.decided_at_us if entry else 0

    def run(self) -> Vacuumed:
        """Return the counts of what was dropped, or would be."""
        if not self._dry_run:
            # Before any deletion: from here on no late apply brings back what a reader must not see.
            with self._files.writing(self._name, durable=False) as connection:
                connection.executemany(RAISE_FLOOR, [(group, self._horizon) for group in self._groups])
        started = (
            {sql_name(table): start for table, start in self._entry.starts.items()} if self._entry else {}
        )
        no_table = self._horizon if self._entry else 0  # no row of a table that the horizon lacks can be read
        with self._files.connection(self._name) as connection:
            tables = tables_in(connection)
        rows = sum(
            self._rows_of(table, group, started.get(table, no_table))
            for table in tables
            for group in self._groups
        )
        return Vacuumed(rows, self._notes())

    def _rows_of(self, table: str, group: int, start: int) -> int:
        """Vacuum one key group of one table. The newest row of each key may stay, if a reader can see it."""
        dropped, newest, full = 0, None, True
        while full:
            page = self._page(table, group, newest)
            drop: list[_Row] = []
            for row in page:
                if newest is not None and (newest.key == row.key or _is_hidden(newest, start)):
                    drop.append(newest)
                newest = row
            full = len(page) == RETIRE_ROWS
            if not full and newest is not None and _is_hidden(newest, start):
                drop.append(newest)
            self._drop(table, group, drop)
            dropped += len(drop)
        return dropped

    def _page(self, table: str, group: int, after: _Row | None) -> list[_Row]:
        last = (BEFORE_ALL, 0) if after is None else (after.key, after.version)
        with self._files.reading(self._name) as connection:
            if not has_table(connection, table):  # a retirement has removed a dropped table meanwhile
                return []
            sql = ROWS.format(table=table, head=HEAD_BYTES)
            rows = connection.execute(sql, (group, *last, self._horizon, RETIRE_ROWS)).fetchall()
        return [_Row(key, version, is_hidden(head, self._at_us)) for key, version, head in rows]

    def _drop(self, table: str, group: int, rows: list[_Row]) -> None:
        if rows and not self._dry_run:
            # In the order of versions, so that a marker is never dropped before what it hides (T27).
            with self._files.writing(self._name, durable=False) as connection:
                if has_table(connection, table):
                    connection.executemany(
                        DROP_ROW.format(table=table), [(group, row.key, row.version) for row in rows]
                    )

    def _notes(self) -> int:
        with self._files.connection(self._name) as connection:
            (count,) = connection.execute(
                "SELECT COUNT(*) FROM (SELECT kg, version FROM applied WHERE version <= ?1"
                " UNION SELECT kg, version FROM sealed WHERE version <= ?1)",
                (self._horizon,),
            ).fetchone()
        if count and not self._dry_run:
            for table in NOTES:
                for group in self._groups:
                    with self._files.writing(self._name, durable=False) as connection:
                        connection.execute(
                            f"DELETE FROM {table} WHERE kg = ? AND version <= ?",
                            (group, self._horizon),
                        )
        return int(count)


def vacuum_meta(files: Files, now_us: int, horizon: int, *, dry_run: bool) -> list[int]:
    """Drop leases that ran out, and entries below the horizon; return the counts, or what they would be."""
    counts = []
    for table, condition, value in (
        ("leases", "expires_us <= ?", now_us),
        ("catalog", "version < ?", horizon),
    ):
        with files.connection(META_FILE) as meta:
            sql = f"SELECT COUNT(*) FROM {table} WHERE {condition}"
            (count,) = meta.execute(sql, (value,)).fetchone()
        if count and not dry_run:
            with files.writing(META_FILE, durable=False) as meta:
                meta.execute(f"DELETE FROM {table} WHERE {condition}", (value,))
        counts.append(count)
    return counts


def _is_hidden(newest: _Row, start: int) -> bool:
    """Return whether no reader needs even the newest row of its key.

    Either everything that it hides is gone, or its table was emptied since.
    """
    return newest.hides or newest.version < start
