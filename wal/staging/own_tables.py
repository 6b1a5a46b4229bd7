"""The tables that tidegate writes for itself: their names and schemas."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.base.names import DELETED, LOCAL
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.staging import quarantine

INSTANCES_SCHEMA = TableSchema(
    (Column("state", "string"), Column("instance", "int")),
    (Column("items", "bigint"), Column("parallelism", "int")),
)
"""Of ``_local``, which has a row for each instance of each local state."""
ITEM_KEY = (Column("instance", "int"), Column("item", "int"))
"""Of ``_local.<name>``, which has the items of one local state."""
SEQUENCE_TYPES = ("tinyint", "smallint", "int", "bigint", "string", "date", "timestamp", "timestamp_ntz")
"""Types that can order captured changes, and are kept for a deleted row in ``_deleted.<table>``."""


def is_own(name: str) -> bool:
    """Return whether a table of this name is tidegate's, not a user's."""
    return name.startswith("_")


def fault_of(name: str, schema: TableSchema, others: Mapping[str, TableSchema]) -> str:
    """Return why an own table cannot have this schema, given those of the other tables; '' if it can."""
    local, deleted = f"{LOCAL}.", f"{DELETED}."
    if name in (quarantine.TABLE, LOCAL):
        fits = schema == (quarantine.SCHEMA if name == quarantine.TABLE else INSTANCES_SCHEMA)
    elif name.startswith(local):
        fits = schema.key == ITEM_KEY
    elif name.startswith(deleted) and not is_own(of := name.removeprefix(deleted)):
        fits = schema.value_format == "json" and all(c.type in SEQUENCE_TYPES for c in schema.value)
        if fits and of in others and [c.type for c in others[of].key] != schema.key_types:
            return f"it has not the key of table {of}"
    else:
        return "names that start with an underscore are tidegate's own, and none is called so"
    return "" if fits else "tidegate's own table of that name has other columns"
