"""Schemas in a store: what is stored of one, and when it is removed.

Retirement removes schemas that no version names any more.

A version stores its schemas when it begins, before it has a catalog entry. So a schema is removed only if no
entry of a version that can be read names it, and no version that has begun may name it. Most stores remove it
only while no version has begun. Cassandra writes a tombstone that is older than the writes of such a version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tidegate.keys.types import is_nested, parse, tree_of
from tidegate.sinks.records import CatalogEntry, Pointer
from tidegate.sinks.rules.reads import encode
from tidegate.wal.record import TableSchema


class SchemaLooks:
    """The looks of one store's instance for schemas that no version names.

    A look reads the entries of all versions that can be read. It is due only after the horizon has passed the
    version that was visible at the last look. So each entry is read about twice, whatever their number
    (I11).
    """

    def __init__(self) -> None:
        self._visible = 0

    def is_due(self, horizon: int) -> bool:
        """Return whether the entries were replaced since the last look."""
        return horizon > self._visible

    def ended(self, pointer: Pointer) -> None:
        """Note a look at the versions of this pointer, after its schemas were removed."""
        self._visible = pointer.visible


def unnamed(stored: Iterable[str], pointer: Pointer, entries: Sequence[CatalogEntry]) -> list[str]:
    """Return those of the stored schemas that no version of the pointer names.

    No schema, if the entry of one of them is missing: its server lost it, or the horizon has moved.
    """
    versions = range(max(pointer.horizon, 1), pointer.visible + 1)
    if not pointer.visible or [entry.version for entry in entries] != list(versions):
        return []
    named = {table_at.schema_id for entry in entries for table_at in entry.tables.values()}
    return sorted(set(stored) - named)


def stored_schema(schema: TableSchema) -> bytes:
    """Return the JSON of a schema as a store has it: a column of a nested type has a ``tree``.

    Readers in other languages need no parser of types. ``schema_id`` is the digest of the JSON without trees.
    """
    if not any(is_nested(column.type) for column in schema.columns):
        return encode(schema)
    plain = msgspec.to_builtins(schema)
    for columns in (plain["value"], *(older["value"] for older in plain.get("older", ()))):
        _add_trees(columns)
    return encode(plain)


def _add_trees(columns: Iterable[dict[str, Any]]) -> None:
    for column in columns:
        if is_nested(column["type"]):
            column["tree"] = tree_of(parse(column["type"]))
