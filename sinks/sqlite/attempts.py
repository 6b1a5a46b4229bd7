"""The noted attempts of a SQLite store: in ``meta.sqlite``, and discarded ones in every shard file too.

A process may sleep between its read of ``meta.sqlite`` and its transaction on a shard. So a
discarded attempt is also noted in the shard, where the transaction that writes rows checks again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from tidegate.sinks.records import Stamp
from tidegate.sinks.rules.attempts import DISCARDED, DISCARDED_MAX, fenced, other_attempt
from tidegate.sinks.rules.reads import dropped
from tidegate.sinks.sqlite.disk.files import Files
from tidegate.sinks.sqlite.disk.tables import META_FILE, NOTES, has_table, tables_in
from tidegate.sinks.sqlite.rows import Shards

# Created by the first call that writes to them: folders of older releases have none.
BEGUN = """CREATE TABLE IF NOT EXISTS begun (version INTEGER PRIMARY KEY, attempt TEXT NOT NULL,
    decided_at_us INTEGER NOT NULL)"""
DISCARDS = """CREATE TABLE IF NOT EXISTS discarded (attempt TEXT PRIMARY KEY, version INTEGER NOT NULL,
    decided_at_us INTEGER NOT NULL) WITHOUT ROWID"""
ABOVE_VISIBLE = """SELECT version, decided_at_us, attempt FROM {table}
    WHERE version > (SELECT visible FROM pointer)"""
DISCARD = "INSERT OR IGNORE INTO discarded VALUES (?, ?, ?)"
FORGET = """DELETE FROM discarded WHERE attempt NOT IN
    (SELECT attempt FROM discarded ORDER BY decided_at_us DESC LIMIT ?)"""


def begin(meta: sqlite3.Connection, where: str, stamp: Stamp, epoch: int) -> bool:
    """Note the attempt, in the caller's transaction on ``meta.sqlite``; as ``Attempts.begin``."""
    row = meta.execute("SELECT visible, epoch, writer FROM pointer").fetchone()
    if row is None:
        raise dropped(where)
    visible, standing, writer = row
    if standing > epoch:
        raise fenced(where, stamp, standing, epoch, writer)
    if stamp.version <= visible:
        return False
    refuse_other(meta, where, stamp)
    meta.execute(BEGUN)
    meta.execute("DELETE FROM begun WHERE version <= ?", (visible,))
    row = stamp.version, stamp.attempt, stamp.decided_at_us
    meta.execute("INSERT OR REPLACE INTO begun VALUES (?, ?, ?)", row)
    return True


def refuse_other(meta: sqlite3.Connection, where: str, stamp: Stamp) -> None:
    """Raise WalGapError if another attempt of the version was begun, or this one was discarded."""
    if not stamp.attempt:
        return
    if has_table(meta, "begun"):
        noted = meta.execute("SELECT attempt FROM begun WHERE version = ?", (stamp.version,)).fetchone()
        if noted is not None and noted[0] != stamp.attempt:
            raise other_attempt(where, stamp, noted[0])
    refuse_discarded(meta, where, stamp)


def refuse_discarded(connection: sqlite3.Connection, where: str, stamp: Stamp) -> None:
    """Raise WalGapError if this connection's file has the discard of this attempt."""
    if stamp.attempt and has_table(connection, "discarded"):
        sql = "SELECT 1 FROM discarded WHERE attempt = ?"
        if connection.execute(sql, (stamp.attempt,)).fetchone() is not None:
            raise other_attempt(where, stamp)


def above_visible(meta: sqlite3.Connection) -> list[Stamp]:
    """As ``Attempts.begun``."""
    stamps = []
    for table in ("begun", "discarded"):
        if has_table(meta, table):
            stamps += [
                Stamp(version, at_us, attempt if table == "begun" else DISCARDED)
                for version, at_us, attempt in meta.execute(ABOVE_VISIBLE.format(table=table))
            ]
    return sorted(stamps, key=lambda stamp: (stamp.version, stamp.decided_at_us))


def discard(files: Files, shards: Shards, lost: Sequence[Stamp], epoch: int) -> None:
    """As ``Attempts.discard``: refuse in meta and every shard, then drop rows, then notes."""
    lowest = min(lost, key=lambda stamp: (stamp.version, stamp.decided_at_us))
    with files.writing(META_FILE, durable=True) as meta:
        row = meta.execute("SELECT epoch, writer FROM pointer").fetchone()
        if row is None:
            raise dropped(files.where)
        if row[0] > epoch:
            raise fenced(files.where, lowest, row[0], epoch, row[1])
        _remember(meta, lost)
    for name, _ in shards.files():
        with files.writing(name, durable=True) as connection:
            _remember(connection, lost)
            for table in (*tables_in(connection), *NOTES):
                connection.execute(f"DELETE FROM {table} WHERE version >= ?", (lowest.version,))
    with files.writing(META_FILE, durable=True) as meta:
        if has_table(meta, "begun"):
            meta.execute("DELETE FROM begun WHERE version >= ?", (lowest.version,))


def _remember(connection: sqlite3.Connection, lost: Sequence[Stamp]) -> None:
    connection.execute(DISCARDS)
    rows = [(stamp.attempt, stamp.version, stamp.decided_at_us) for stamp in lost]
    connection.executemany(DISCARD, rows)
    connection.execute(FORGET, (DISCARDED_MAX,))
