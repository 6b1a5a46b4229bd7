"""Changes to the files of a SQLite store apart from a batch: its fill from another one."""

from __future__ import annotations

from tidegate.sinks.sqlite.disk.files import Files
from tidegate.sinks.sqlite.disk.tables import META_FILE, NOTES, tables_in
from tidegate.sinks.sqlite.rows import RAISE_FLOOR, Shards

MARK = "UPDATE pointer SET horizon = :version WHERE visible = 0 AND horizon < :version AND epoch <= :epoch"
PUBLISH_FILLED = """UPDATE pointer SET visible = :version, digest = :digest, epoch = :epoch
    WHERE visible = 0 AND horizon = :filled AND epoch <= :epoch"""
STANDS = "SELECT horizon FROM pointer WHERE visible = 0 AND epoch <= ?"


def mark(files: Files, version: int, epoch: int) -> int:
    """Mark the store as being filled; return the version in force, 0 when nothing may be filled here."""
    with files.writing(META_FILE, durable=True) as meta:
        meta.execute(MARK, {"version": version, "epoch": epoch})
        row = meta.execute(STANDS, (epoch,)).fetchone()
    return 0 if row is None else int(row[0])


def raise_floors(files: Files, shards: Shards, floor: int) -> None:
    """Raise the floor of every key group to at least ``floor``. Durable: on return."""
    for name, groups in shards.files():
        with files.writing(name, durable=True) as connection:
            connection.executemany(RAISE_FLOOR, [(group, floor) for group in groups])


def drop_up_to(files: Files, shards: Shards, floor: int) -> None:
    """Drop every row and note of versions up to ``floor``: no reader and no fill needs them."""
    for name, _ in shards.files():
        with files.connection(name) as connection:
            tables = tables_in(connection)
        for table in (*tables, *NOTES):
            with files.writing(name, durable=False) as connection:
                connection.execute(f"DELETE FROM {table} WHERE version <= ?", (floor,))
