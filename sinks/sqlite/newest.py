"""A note in ``meta.sqlite`` of the newest version that was sealed in each shard file, as of the visible one.

The flip writes it in its own transaction. A shard that was copied without its ``-wal`` file lacks the end of
what it had, while ``meta.sqlite`` may have all of it: then rows of older versions would be read under the
visible one. So the note is compared whenever a shard file is opened (I10). Folders of older releases have
none.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

from tidegate.errors import CorruptError
from tidegate.sinks.sqlite.disk.files import Files
from tidegate.sinks.sqlite.disk.tables import META_FILE, has_table

NEWEST = """CREATE TABLE IF NOT EXISTS newest (shard TEXT PRIMARY KEY, version INTEGER NOT NULL)
    WITHOUT ROWID"""
NOTE = "INSERT OR REPLACE INTO newest VALUES (?, ?)"
# A retirement replaces seals by a floor, in one transaction. ``verify`` reports a floor above all versions.
SEALED = """SELECT max((SELECT coalesce(max(version), 0) FROM sealed WHERE version <= ?1),
    (SELECT min(coalesce(max(floor), 0), ?1) FROM floors))"""


def sealed_up_to(files: Files, names: Iterable[str], version: int) -> dict[str, int]:
    """Return, by file, the newest version up to this one that was sealed there."""
    newest = {}
    for name in names:
        with files.connection(name) as connection:
            (newest[name],) = connection.execute(SEALED, (version,)).fetchone()
    return newest


def note(meta: sqlite3.Connection, newest: Mapping[str, int]) -> None:
    """Write the note, in the caller's transaction on ``meta.sqlite``."""
    meta.execute(NEWEST)
    meta.executemany(NOTE, newest.items())


def check(files: Files) -> None:
    """Open the shard files that have a note, which compares them. Raises: as ``compare``."""
    with files.reading(META_FILE) as meta:
        noted = meta.execute("SELECT shard FROM newest").fetchall() if has_table(meta, "newest") else []
    for (name,) in noted:
        if name in files.expected:
            with files.connection(name):
                pass


def compare(files: Files, name: str, connection: sqlite3.Connection) -> None:
    """Compare an opened shard file with what was noted for it. Raises: CorruptError: it lacks that."""
    with files.reading(META_FILE) as meta:
        if not has_table(meta, "newest"):
            return
        noted = meta.execute("SELECT version FROM newest WHERE shard = ?", (name,)).fetchone()
        (visible,) = meta.execute("SELECT coalesce(max(visible), 0) FROM pointer").fetchone()
    # After the note: a seal is on disk before the flip that notes it.
    (newest,) = connection.execute(SEALED, (visible,)).fetchone()
    if noted is not None and newest < noted[0]:
        raise CorruptError(
            f"{files.where}: {files.folder / name} has version {newest} as its newest one, and version"
            f" {noted[0]} was sealed there: it lost its end, as in a copy without the file"
            f" {name}-wal; put the whole folder back from a copy, or fill a new store from another one"
            " (`tidegate store add NAME=URL`)"
        )
