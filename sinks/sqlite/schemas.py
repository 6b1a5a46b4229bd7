"""The schemas of a SQLite store, in ``meta.sqlite``; the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from tidegate.sinks.records import CatalogEntry, Pointer
from tidegate.sinks.rules.reads import decode
from tidegate.sinks.rules.schemas import SchemaLooks, stored_schema, unnamed
from tidegate.sinks.sqlite import attempts
from tidegate.wal.record import TableSchema

PUT = "INSERT OR REPLACE INTO schemas VALUES (?, ?)"


def put(meta: sqlite3.Connection, schemas: Iterable[TableSchema]) -> None:
    """Store these schemas under their ids."""
    meta.executemany(PUT, [(schema.schema_id, stored_schema(schema).decode()) for schema in schemas])


def forget(meta: sqlite3.Connection, where: str, looks: SchemaLooks) -> None:
    """Remove the schemas that no version names, if a look is due and no version has begun."""
    row = meta.execute("SELECT visible, horizon FROM pointer").fetchone()
    if row is None or not looks.is_due(row[1]) or attempts.above_visible(meta):
        return
    pointer = Pointer(visible=row[0], horizon=row[1])
    stored = [schema_id for (schema_id,) in meta.execute("SELECT schema_id FROM schemas")]
    entries = meta.execute("SELECT entry FROM catalog WHERE version >= ? ORDER BY version", (row[1],))
    unused = unnamed(stored, pointer, [decode(where, entry, CatalogEntry) for (entry,) in entries])
    meta.executemany("DELETE FROM schemas WHERE schema_id = ?", [(schema_id,) for schema_id in unused])
    looks.ended(pointer)
