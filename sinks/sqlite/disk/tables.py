"""The SQL tables of a SQLite store's files, and looks at those of an open file."""

from __future__ import annotations

import sqlite3
from typing import Any

META_FILE = "meta.sqlite"
SHARDS_MAX = 16
FORMAT = 2
"""The format of the files, in the identity and as ``user_version`` of each of them. Format 1 has 0 there."""

META = """
CREATE TABLE IF NOT EXISTS namespace (one INTEGER PRIMARY KEY CHECK (one = 1), identity TEXT NOT NULL,
    ready INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS pointer (one INTEGER PRIMARY KEY CHECK (one = 1), visible INTEGER NOT NULL,
    digest TEXT NOT NULL, epoch INTEGER NOT NULL, writer TEXT NOT NULL, horizon INTEGER NOT NULL,
    heartbeat_us INTEGER);
INSERT OR IGNORE INTO pointer VALUES (1, 0, '', 0, '', 0, NULL);
CREATE TABLE IF NOT EXISTS leases (lease_id TEXT PRIMARY KEY, version INTEGER NOT NULL,
    taken_us INTEGER NOT NULL, expires_us INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS catalog (version INTEGER PRIMARY KEY, entry TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS schemas (schema_id TEXT PRIMARY KEY, schema TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS durable (one INTEGER PRIMARY KEY CHECK (one = 1), times INTEGER NOT NULL);
INSERT OR IGNORE INTO durable VALUES (1, 0);
"""

SHARD = """
CREATE TABLE IF NOT EXISTS shard (one INTEGER PRIMARY KEY CHECK (one = 1), uuid TEXT NOT NULL,
    number INTEGER NOT NULL, shards INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS floors (kg INTEGER PRIMARY KEY, floor INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS applied (kg INTEGER NOT NULL, version INTEGER NOT NULL, tbl TEXT NOT NULL,
    chunk INTEGER NOT NULL, rows INTEGER NOT NULL, PRIMARY KEY (kg, version, tbl, chunk)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sealed (kg INTEGER NOT NULL, version INTEGER NOT NULL,
    PRIMARY KEY (kg, version)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sealed_by_version ON sealed (version);
CREATE TABLE IF NOT EXISTS durable (one INTEGER PRIMARY KEY CHECK (one = 1), times INTEGER NOT NULL);
INSERT OR IGNORE INTO durable VALUES (1, 0);
"""

TABLE = """
CREATE TABLE IF NOT EXISTS {name} (kg INTEGER NOT NULL, key BLOB NOT NULL, version INTEGER NOT NULL,
    value BLOB NOT NULL, PRIMARY KEY (kg, key, version)) WITHOUT ROWID
"""

VIEW_OR_TRIGGER = "SELECT type, name FROM sqlite_master WHERE type NOT IN ('table', 'index') LIMIT 1"
ANY_TABLE = "SELECT 1 FROM sqlite_master LIMIT 1"

DURABLE = "UPDATE durable SET times = times + 1"
"""Part of every transaction that promises durability. SQLite does not write an unchanged page, and
a commit that writes no page does not fsync: this row always changes.
"""

NOTES = ("applied", "sealed")
"""The SQL tables of a shard file with notes of versions."""


def tables_in(connection: sqlite3.Connection) -> list[str]:
    """Return the SQL tables of a shard file with users' rows."""
    sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, 2) = 't_' ORDER BY name"
    return [name for (name,) in connection.execute(sql)]


def view_or_trigger(connection: sqlite3.Connection) -> str:
    """Return a view or a trigger of a file, in words; ``''``: it has none. No SQL of the file runs."""
    row = connection.execute(VIEW_OR_TRIGGER).fetchone()
    return "" if row is None else f"a {row[0]} {row[1]!r}"


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Return whether the file has this SQL table."""
    row: Any = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    return row is not None
