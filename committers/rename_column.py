"""A new name for a column of a table, by a version of its own that changes the schema and no row."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import NamedTuple

import xxhash

from tidegate.base.names import DELETED, RENAME_TOKEN, check_name, did_you_mean, listed, own_token
from tidegate.base.text import brief
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.steps.stored_rows import StoredRowsBarrier
from tidegate.errors import ConfigError
from tidegate.sinks.rules.visible import schemas_by_table
from tidegate.values.evolve import renamed
from tidegate.wal.fold import once_key
from tidegate.wal.manifest import TableChange
from tidegate.wal.record import LoadOrigin, TableSchema
from tidegate.wal.staging import own_tables

COLUMN_MAX = 1_000


class Renamed(NamedTuple):
    """The result of a rename. ``version`` is None if the column had the new name already."""

    recovered: list[int]
    version: int | None


def rename_column(coordinator: Coordinator, table: str, old: str, new: str) -> Renamed:
    """Give a value column another name. The driver is not open yet.

    Durable: on return the version is in the log, and visible in the primary. Repeatable: also after an
    interruption. Raises: as ``rename_barrier``, ``open_namespace`` and ``commit``.
    """
    recovered = open_namespace(coordinator, None, command="schema rename")
    tables, store = coordinator.folded.tables, coordinator.store
    known = store.schemas_of(sorted({table_at.schema_id for table_at in tables.values()}))
    schemas = schemas_by_table(store.where, coordinator.folded.last_version, tables, known)
    barrier = rename_barrier(coordinator, schemas, table, old, new)
    return Renamed(recovered, None if barrier is None else commit(coordinator, barrier).version)


def rename_barrier(
    coordinator: Coordinator, schemas: Mapping[str, TableSchema], table: str, old: str, new: str
) -> StoredRowsBarrier | None:
    """Return the barrier of the version that renames the column; None: it has that name already.

    ``schemas`` are those of all tables, by table. Raises: ConfigError: there is no such table or column, or
    it cannot be renamed.
    """
    check_name("table", table)
    for column in (old, new):
        check_column(table, column)
    if own_tables.is_own(table):
        raise ConfigError(f"table {table} is tidegate's own, and its columns keep their names")
    if table not in schemas:
        raise ConfigError(
            f"there is no table {table!r}; tables are {', '.join(listed(schemas)) or 'none yet'}"
            f"{did_you_mean(table, schemas)}"
        )
    deletes = schemas.get(f"{DELETED}.{table}")
    if deletes is not None and old in {column.name for column in deletes.value}:
        raise ConfigError(
            f"table {table}, column {old}: it orders captured changes, and its deletes are remembered by that"
            " name; write a new table (docs/schema-changes.md)"
        )
    change = xxhash.xxh3_64_hexdigest(f"{table}\0{old}\0{new}".encode())
    names = {column.name for column in schemas[table].value}
    if old not in names and new in names and _was_decided(coordinator, change):
        return None
    schema = renamed(table, schemas[table], old, new)
    if schema is None:
        return None
    state = coordinator.folded
    return StoredRowsBarrier(
        coordinator.log,
        LoadOrigin(own_token(RENAME_TOKEN, state.namespace, state.last_version, change)),
        {table: TableChange(schema)},
        lambda: iter(()),
        coordinator.clock,
    )


def check_column(table: str, column: object) -> None:
    """Refuse a name that no column gets. Raises: ConfigError."""
    if (
        not isinstance(column, str)
        or not 0 < len(column) <= COLUMN_MAX
        or any(unicodedata.category(character) == "Cs" for character in column)
    ):
        raise ConfigError(
            f"table {table}, column {brief(column)}: give the column's name, a text of 1 to {COLUMN_MAX}"
            " characters"
        )


def _was_decided(coordinator: Coordinator, change: str) -> bool:
    """Return whether the log has this rename: a column's second name leaves no trace in the schema."""
    lead, end = once_key(LoadOrigin(RENAME_TOKEN)), f" {change}"
    return any(token.startswith(lead) and token.endswith(end) for token in coordinator.folded.once)
