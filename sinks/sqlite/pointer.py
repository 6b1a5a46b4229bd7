"""The pointer of a SQLite store: one row of ``meta.sqlite``, and each step that moves it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from tidegate.base.clock import Clock
from tidegate.errors import CorruptError
from tidegate.sinks.records import CatalogEntry, Pointer, heartbeat_ages
from tidegate.sinks.rules.reads import dropped, encode
from tidegate.sinks.sqlite import newest
from tidegate.sinks.sqlite.disk.files import Files
from tidegate.sinks.sqlite.disk.tables import META_FILE
from tidegate.sinks.sqlite.rows import Shards

CLAIM = "UPDATE pointer SET epoch = ?, writer = ? WHERE epoch < ?"
PUBLISH = """UPDATE pointer SET visible = :version, digest = :digest, epoch = :epoch
    WHERE visible = :version - 1 AND horizon < :version AND epoch <= :epoch"""

POINTER_TYPES = tuple((int, int, int, str, str, heartbeat) for heartbeat in (int, type(None)))


def read(files: Files, clock: Clock) -> Pointer:
    """Read the pointer. Raises: CorruptError: it has values of other types."""
    with files.connection(META_FILE) as meta:
        row = meta.execute(
            "SELECT visible, digest, epoch, writer, horizon, heartbeat_us FROM pointer"
        ).fetchone()
    if row is None:
        raise dropped(files.where)
    visible, digest, epoch, writer, horizon, heartbeat_us = row
    types = type(visible), type(epoch), type(horizon), type(digest), type(writer), type(heartbeat_us)
    if types not in POINTER_TYPES or min(visible, epoch, horizon) < 0:
        raise CorruptError(
            f"{files.where}: {files.folder / META_FILE}: the pointer is {row!r:.200}: restore the"
            " store from a copy"
        )
    ages = heartbeat_ages(heartbeat_us, clock.now_us())
    return Pointer(visible, digest, epoch, writer, horizon, *ages)


def one_of(meta: sqlite3.Connection, where: str, column: str) -> int:
    """Return a number of the pointer, in the caller's transaction on ``meta.sqlite``."""
    row = meta.execute(f"SELECT {column} FROM pointer").fetchone()
    if row is None:
        raise dropped(where)
    return int(row[0])


def claim(files: Files, epoch: int, writer: str) -> int:
    """Raise the epoch to at least this one; return the one in force. As ``Store.claim``."""
    with files.writing(META_FILE, durable=True) as meta:
        meta.execute(CLAIM, (epoch, writer, epoch))
        return one_of(meta, files.where, "epoch")


def put_heartbeat(files: Files, noted_us: int, epoch: int) -> None:
    """Note a heartbeat, or the end of one as a negative time, if the epoch is the claimed one."""
    with files.writing(META_FILE, durable=False) as meta:  # a lost one is followed by the next
        meta.execute("UPDATE pointer SET heartbeat_us = ? WHERE epoch = ?", (noted_us, epoch))


def flip(
    files: Files, shards: Shards, update: str, entries: Sequence[CatalogEntry], epoch: int, now_us: int
) -> bool:
    """Make the last of these versions visible, and all of them readable."""
    shown = entries[-1]
    rows = [
        (entry.version, encode(msgspec.structs.replace(entry, published_at_us=now_us)).decode())
        for entry in entries
    ]
    values = {
        "version": shown.version,
        "digest": shown.digest,
        "epoch": epoch,
        "filled": entries[0].version,
    }
    sealed = newest.sealed_up_to(files, files.expected, shown.version)
    with files.writing(META_FILE, durable=True) as meta:
        flipped = meta.execute(update, values).rowcount
        if flipped:
            shards.make_tables({table for entry in entries for table in entry.tables})
            newest.note(meta, sealed)
            meta.executemany("INSERT OR REPLACE INTO catalog VALUES (?, ?)", rows)
    return flipped == 1
