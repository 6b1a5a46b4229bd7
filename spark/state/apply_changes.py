"""Change data capture: the newest change of each key by its sequence wins, whatever the order of arrival.

The sequence is part of a row's value. A deleted key has no row, so its sequence is kept in the
separate table ``_deleted.<table>``, whose rows expire. Changes are ordered by (sequence, deletes
after upserts, value bytes): a total order, so that every order of arrival and every division into
batches leaves the same rows. An upsert with ``newer_by`` has the same order, and no deletes. All in
Arrow columns.

No pyspark is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import ConfigError
from tidegate.spark.state.read import ReadState
from tidegate.spark.state.reduce import INTEGERS, TEXTS, ReducedColumn, parse_batch, parse_state
from tidegate.wal.record import Column
from tidegate.wal.staging.own_tables import deleted_table
from tidegate.wal.staging.spec import CHANGES
from tidegate.wal.value_flags import DELETE, VALUE, VALUE_END

SEQUENCE_TYPES = (*INTEGERS, *TEXTS)


class ChangedTable(msgspec.Struct, frozen=True):
    """A table written by ``apply_changes`` in this batch, and the table of the sequences of its deletes."""

    index: int
    name: str
    start: int
    deleted_index: int
    deleted_start: int
    sequence: tuple[ReducedColumn, ...]
    key_types: tuple[str, ...]


class NewerTable(msgspec.Struct, frozen=True):
    """A table written by an upsert with ``newer_by`` in this batch."""

    index: int
    name: str
    start: int
    newer_by: ReducedColumn
    key_types: tuple[str, ...]


def sequence_column(table: str, column: Column, argument: str = "sequence_by") -> ReducedColumn:
    """Return a sequence column. Raises: ConfigError, its type has no order that all sides agree on."""
    if column.type not in SEQUENCE_TYPES:
        raise ConfigError(
            f"table {table}: {argument} column {column.name} is {column.type}; a sequence is"
            f" {', '.join(SEQUENCE_TYPES)}: cast it, a decimal of up to 18 digits to bigint"
        )
    return ReducedColumn(column.field, column.type, "last")


def changed(read: ReadState, table: ChangedTable, rows: Any) -> Any:
    """Return the rows to write for these changes, one per key: only those newer than the known ones.

    Deletes also have a row with their sequence. A value of ``rows`` is ``+`` and the row, or ``-``
    and the sequence alone.
    """
    keys, values = rows["k"], rows["v"]
    deletes = pc.starts_with(values, DELETE)
    contents = pc.binary_slice(values, 1, VALUE_END)
    row_state = read(table.name, table.start, rows)
    deleted_state = read(deleted_table(table.name), table.deleted_start, rows)
    ours = parse_batch(table, keys, contents, table.sequence)
    theirs, of_deletes = (
        parse_state(table, keys, state, table.sequence) for state in (row_state, deleted_state)
    )
    over_row = _over_row(contents, ours, row_state, theirs, deletes)
    over_delete = pc.or_(pc.is_null(deleted_state), _compared(ours, of_deletes)[0])
    wins = pc.and_(over_row, over_delete)
    news, deletes = rows.filter(wins), deletes.filter(wins)
    if not news.num_rows:
        return news
    # A row is written as it came; a delete as a marker, and its sequence as a row of the separate table.
    marker = pa.scalar(DELETE, pa.binary())
    live = [news["g"], news["t"], news["k"], pc.if_else(deletes, marker, news["v"])]
    deleted = news.filter(deletes)
    if not deleted.num_rows:
        return pa.record_batch(live, schema=CHANGES)
    sequences = pc.binary_join_element_wise(
        pa.scalar(VALUE), pc.binary_slice(deleted["v"], 1, VALUE_END), pa.scalar(b"")
    )
    table_index = pa.repeat(pa.scalar(table.deleted_index, pa.int32()), deleted.num_rows)
    remembered = [deleted["g"], table_index, deleted["k"], sequences]
    return pa.concat_batches(
        [pa.record_batch(live, schema=CHANGES), pa.record_batch(remembered, schema=CHANGES)]
    )


def newer(stored: Any, table: NewerTable, rows: Any) -> Any:
    """Return the rows to write, one per key: those newer than ``stored`` (null: the key has no row)."""
    contents = pc.binary_slice(rows["v"], 1, VALUE_END)
    ours = parse_batch(table, rows["k"], contents, (table.newer_by,))
    theirs = parse_state(table, rows["k"], stored, (table.newer_by,))
    return rows.filter(_over_row(contents, ours, stored, theirs, pa.scalar(False)))  # noqa: FBT003


def _over_row(contents: Any, ours: Sequence[Any], stored: Any, theirs: Sequence[Any], deletes: Any) -> Any:
    """Return whether each row is above the stored one: later, or as late and larger, or a delete."""
    later, equal = _compared(ours, theirs)
    wins_tie = pc.or_(deletes, pc.greater(contents, pc.fill_null(stored, b"")))
    return pc.or_(pc.is_null(stored), pc.or_(later, pc.and_(equal, wins_tie)))


def _compared(ours: Sequence[Any], theirs: Sequence[Any]) -> tuple[Any, Any]:
    """Return, row by row, whether ours is later, and whether both are equal. No sequence is before
    any other.
    """
    later = pa.repeat(pa.scalar(False), len(ours[0]))  # noqa: FBT003
    equal = pa.repeat(pa.scalar(True), len(ours[0]))  # noqa: FBT003
    for mine, other in zip(ours, theirs, strict=True):
        above = pc.fill_null(pc.greater(mine, other), True)  # noqa: FBT003
        later = pc.or_(later, pc.and_(equal, above))
        equal = pc.and_(equal, pc.fill_null(pc.equal(mine, other), False))  # noqa: FBT003
    return later, equal
