"""The tables that tidegate writes for itself: their names and schemas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

from tidegate.base.names import DELETED, DUE, LOCAL, QUEUE, UNLISTED
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


NotNegative: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class DueRow(msgspec.Struct):
    """A row of ``_due.<table>``."""

    due_us: NotNegative
    queued_us: NotNegative


class InstanceRow(msgspec.Struct):
    """A row of ``_local``."""

    items: NotNegative
    parallelism: Annotated[int, msgspec.Meta(ge=1)]


class RefusedRow(msgspec.Struct):
    """A row of ``_quarantine``."""

    table: str
    cause: str


def row_type_of(name: str) -> Any:
    """Return the type of an own table's rows, which tidegate reads; None: its rows are the user's."""
    kinds = {DUE: DueRow, LOCAL: InstanceRow if name == LOCAL else None, quarantine.TABLE: RefusedRow}
    return kinds.get(name.partition(".")[0])


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


def owner_of(name: str) -> str:
    """Return the name by which a table's companions know each other: the user's table, or ``_local``.

    >>> owner_of("t"), owner_of("_due_at.t"), owner_of("_deleted.t"), owner_of("_local.seen")
    ('t', 't', 't', '_local')
    """
    kind, _, of = name.partition(".")
    return LOCAL if kind == LOCAL else of if kind in (DELETED, DUE, QUEUE) and of else name


def companions(names: Iterable[str], existing: Iterable[str]) -> frozenset[str]:
    """Return these tables and the existing ones that hold something of their keys: they go together.

    A table of the user, its remembered deletes, its due times and their queue are companions. So are all
    local states: they share ``_local``, which has the lengths of their lists.

    >>> sorted(companions({"t"}, {"t", "_due.t", "_due_at.t", "_deleted.t", "u", "_due.u"}))
    ['_deleted.t', '_due.t', '_due_at.t', 't']
    """
    names = frozenset(names)
    owners = {owner_of(name) for name in names}
    return names | {name for name in existing if owner_of(name) in owners}


def of_one_stride(table: str) -> tuple[str, ...]:
    """Return the tables whose rows are staged with this one's, so that all have one stride; it is the first.

    >>> of_one_stride("_due.t"), of_one_stride("_due_at.t")
    (('_due.t', 't', '_deleted.t', '_due.t'), ('_due_at.t',))
    """
    of = owner_of(table)
    if table.partition(".")[0] in (LOCAL, QUEUE):
        return (table,)
    return table, of, deleted_table(of), due_table(of)


def stale_timeouts(replaced: Collection[str], existing: Collection[str]) -> frozenset[str]:
    """Return the tables of timeouts that are of other rows once these tables are replaced.

    >>> sorted(stale_timeouts({"t"}, {"t", "_due.t", "_due_at.t", "_due.u", "_due_at.u"}))
    ['_due.t', '_due_at.t']
    """
    return frozenset(filter(is_timeout, companions(replaced, existing))) - frozenset(replaced)


def is_timeout(name: str) -> bool:
    """Return whether a table holds due times, or is their queue."""
    return name.startswith(UNLISTED)


def queues_of(tables: Iterable[str]) -> dict[str, str]:
    """Map the queue of each table of due times among these to that table; both exist, or neither.

    >>> queues_of(["t", "_due.t"])
    {'_due_at.t': '_due.t'}
    """
    start = due_table("")
    return {queue_table(name.removeprefix(start)): name for name in sorted(tables) if name.startswith(start)}


def parted(tables: Collection[str], touched: Collection[str]) -> str:
    """Return a table of ``tables`` without its other half, among the companions of ``touched``; '': none.

    >>> parted({"t", "_due.t"}, {"t"}), parted({"t", "_due.t"}, {"u"}), parted({"_local"}, {"_local.seen"})
    ('_due.t', '', '_local')
    """
    owners = {owner_of(name) for name in touched}
    for name in sorted(name for name in tables if owner_of(name) in owners):
        kind, _, of = name.partition(".")
        if kind == LOCAL:
            whole = LOCAL in tables and any(other.startswith(f"{LOCAL}.") for other in tables)
        else:
            whole = not is_timeout(name) or {due_table(of), queue_table(of)} <= {*tables}
        if not whole:
            return name
    return ""


def check_companions(exported: Collection[str], existing: Collection[str]) -> None:
    """Refuse an export that has a part of what companions hold, or would end local states.

    A queue alone is no such part: it is made of the due times. Raises: ConfigError.
    """
    brought = frozenset(exported)
    for name in sorted(brought):
        of = owner_of(name)
        if of not in brought or (name == LOCAL and companions({LOCAL}, brought) == {LOCAL}):
            other = f"table {of}" if of not in brought else "the lists whose lengths are in it"
            raise ConfigError(
                f"the export has table {name} without {other}, and they belong together: export again, with"
                " all tables"
            )
    if LOCAL in brought and (lacking := companions({LOCAL}, existing) - brought):
        raise ConfigError(
            f"the export lacks {', '.join(sorted(lacking))}, which this namespace has: all local states share"
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
