"""The tables that tidegate writes for itself: their names and schemas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tidegate.base.names import DELETED, DUE, LOCAL, QUEUE, listed
from tidegate.errors import ConfigError
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
DUE_COLUMNS = (Column("due_us", "bigint"), Column("queued_us", "bigint"))
"""Of ``_due.<table>``: the key's due time, and the time by which the queue has it."""
QUEUE_SCHEMA = TableSchema(
    (Column("key_group", "int"), Column("due_us", "bigint"), Column("part", "int")),
    (Column("value", "binary"),),
    "bytes",
)
"""Of ``_due_at.<table>``, the queue of the keys of a state with a timeout."""


def deleted_table(table: str) -> str:
    """Return the table for the sequences of deleted rows."""
    return f"{DELETED}.{table}"


def due_table(table: str) -> str:
    """Return the table for the due times of a state's keys."""
    return f"{DUE}.{table}"


def queue_table(table: str) -> str:
    """Return the table for the same keys by their due times."""
    return f"{QUEUE}.{table}"


def timeout_tables(table: str) -> frozenset[str]:
    """Return both tables of a state with a timeout."""
    return frozenset({due_table(table), queue_table(table)})


def companions(table: str) -> frozenset[str]:
    """Return the tables in which tidegate remembers things of a table's keys, whether they exist or not."""
    return timeout_tables(table) | {deleted_table(table)}


def stale_timeouts(replaced: Collection[str], existing: Collection[str]) -> frozenset[str]:
    """Return the tables of timeouts that are of other rows once these tables are replaced.

    >>> sorted(stale_timeouts({"t"}, {"t", "_due.t", "_due_at.t", "_due.u", "_due_at.u"}))
    ['_due.t', '_due_at.t']
    """
    return frozenset().union(*map(timeout_tables, replaced)) & frozenset(existing) - frozenset(replaced)


def local_tables(tables: Iterable[str]) -> frozenset[str]:
    """Return those of these tables that local states have: ``_local``, which all share, and the items'.

    >>> sorted(local_tables({"t", "_local", "_local.seen", "_due.t"}))
    ['_local', '_local.seen']
    """
    return frozenset(name for name in tables if name.partition(".")[0] == LOCAL)


def check_local_states(exported: Iterable[str], existing: Iterable[str]) -> None:
    """Refuse an export that would replace a part of a namespace's local states. Raises: ConfigError."""
    brought, here = local_tables(exported), local_tables(existing)
    if brought and (LOCAL not in brought or brought == {LOCAL}):
        raise ConfigError(
            f"the export has only {', '.join(listed(brought))} of its local states, and their lists are in a"
            f" table for each, the lengths of these in {LOCAL}: export again, with all tables"
        )
    if brought and (lacking := here - brought):
        raise ConfigError(
            f"the export lacks {', '.join(listed(lacking))}, which this namespace has: all local states share"
            f" table {LOCAL}, so the import would end those; import into a new namespace"
        )


def is_own(name: str) -> bool:
    """Return whether a table of this name is tidegate's, not a user's."""
    return name.startswith("_")


def fault_of(name: str, schema: TableSchema, others: Mapping[str, TableSchema]) -> str:
    """Return why an own table cannot have this schema, given those of the other tables; '' if it can."""
    local = f"{LOCAL}."
    kind, _, of = name.partition(".")
    if name in (quarantine.TABLE, LOCAL):
        fits = schema == (quarantine.SCHEMA if name == quarantine.TABLE else INSTANCES_SCHEMA)
    elif name.startswith(local):
        fits = schema.key == ITEM_KEY
    elif kind == QUEUE and of and not is_own(of):
        fits = schema == QUEUE_SCHEMA
    elif kind in (DELETED, DUE) and of and not is_own(of):
        of_kind = all(c.type in SEQUENCE_TYPES for c in schema.value)
        fits = schema.value_format == "json" and (of_kind if kind == DELETED else schema.value == DUE_COLUMNS)
        if fits and of in others and [c.type for c in others[of].key] != schema.key_types:
            return f"it has not the key of table {of}"
    else:
        return "names that start with an underscore are tidegate's own, and none is called so"
    return "" if fits else "tidegate's own table of that name has other columns"
