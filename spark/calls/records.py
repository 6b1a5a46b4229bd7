"""The calls of a transaction, checked and noted: one record per kind, each with only its own fields."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from pyspark.sql import Column, DataFrame

from tidegate.base.names import LOCAL
from tidegate.spark.state.local_state import Redistribute, Step
from tidegate.spark.state.reduce import ReducedColumn
from tidegate.spark.state.udf_runner import Migrate
from tidegate.spark.state.update import Functions
from tidegate.wal.record import Column as SchemaColumn
from tidegate.wal.record import TableSchema
from tidegate.wal.staging.own_tables import deleted_table, timeout_tables


@dataclasses.dataclass(frozen=True)
class AnyCall:
    """The fields that each call has: a table, rows for it, and the table's key.

    ``schema`` is the table's after the call; None, of a delete: only the table's other calls know it.
    ``step`` is the call's name in the manifest (``calls/collected.py``).
    """

    kind: ClassVar[str]
    table: str
    rows: DataFrame
    key_columns: tuple[SchemaColumn, ...]
    schema: TableSchema | None
    step: str = dataclasses.field(default="", kw_only=True)

    @property
    def emits_to(self) -> tuple[str, ...]:
        """The tables that it writes besides its own."""
        return ()

    @property
    def touches(self) -> dict[str, str]:
        """The tables that it writes, each with the kind of change."""
        return {self.table: self.kind, **dict.fromkeys(self.emits_to, "emit")}


@dataclasses.dataclass(frozen=True)
class KeyedCall(AnyCall):
    """A call whose rows have a key and a stored value, as columns.

    ``order`` decides which change of a key wins within this call. The calls of a transaction act in the
    order in which they were made.
    """

    key: Column
    value: Column
    order: tuple[Column, ...]


class Upsert(KeyedCall):
    """Set keys to these rows."""

    kind = "upsert"


@dataclasses.dataclass(frozen=True)
class UpsertNewer(KeyedCall):
    """Set keys to these rows where they are newer than the stored ones."""

    kind = "upsert(newer_by)"
    newer_by: ReducedColumn


class Replace(KeyedCall):
    """Make the table contain exactly these rows."""

    kind = "replace"


@dataclasses.dataclass(frozen=True)
class Patch(KeyedCall):
    """Set some columns of keys; those of ``partial`` stay where a row leaves them as they are."""

    kind = "patch"
    partial: tuple[str, ...] = ()


class Delete(KeyedCall):
    """Remove keys."""

    kind = "delete"


@dataclasses.dataclass(frozen=True)
class Reduce(KeyedCall):
    """Combine each key's state with the batch's own aggregates, which are the rows."""

    kind = "reduce"
    reduced: tuple[ReducedColumn, ...]


@dataclasses.dataclass(frozen=True)
class Update(KeyedCall):
    """Call a function for each key; ``row_columns`` are the columns of its rows.

    ``timeout_us`` None: its states have no timeout.
    """

    kind = "update"
    functions: Functions
    row_columns: tuple[SchemaColumn, ...]
    outputs: tuple[str, ...]
    timeout_us: int | None

    @property
    def emits_to(self) -> tuple[str, ...]:
        """The tables that the functions may emit to, and those of the timeout."""
        own = () if self.timeout_us is None else sorted(timeout_tables(self.table))
        return (*self.outputs, *own)


@dataclasses.dataclass(frozen=True)
class ApplyChanges(KeyedCall):
    """Apply captured changes, of each key the newest by ``sequence``; ``partial`` as for a patch."""

    kind = "apply_changes"
    sequence: tuple[ReducedColumn, ...]
    partial: tuple[str, ...] = ()

    @property
    def emits_to(self) -> tuple[str, ...]:
        """The table of remembered deletes."""
        return (deleted_table(self.table),)


@dataclasses.dataclass(frozen=True)
class LocalState(AnyCall):
    """Call a function for each instance of a step; ``table`` holds the step's items.

    ``parallelism`` is the number of instances; None: the batch's tasks. ``migrated`` is the table's schema
    at the base version, if all items get a newer state version now.
    """

    kind = "local_state"
    name: str
    fn: Step
    by: tuple[str, ...]
    order_by: tuple[str, ...]
    redistribute: Redistribute
    parallelism: int | None
    outputs: tuple[str, ...]
    migrate: Migrate | None
    migrated: TableSchema | None

    @property
    def emits_to(self) -> tuple[str, ...]:
        """The table of instances, and the tables that the function may emit to."""
        return (LOCAL, *self.outputs)


Call = Upsert | UpsertNewer | Replace | Patch | Delete | Reduce | Update | ApplyChanges | LocalState
FUNCTION_CALLS = (Update, LocalState)
"""Calls with a user's function."""
CACHED_STATE_CALLS = (UpsertNewer, Reduce, Patch, Update)
"""Calls that read their table's state at the base version, through the caches of state."""
STATE_CALLS = (*CACHED_STATE_CALLS, ApplyChanges, LocalState)
"""Calls that read some state at the base version."""
CONTINUED_CALLS = (Reduce, Patch, Update, ApplyChanges, LocalState)
"""Calls whose state the same rows, read once more, may change."""
