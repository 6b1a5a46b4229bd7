"""Change data capture: the newest change of each key by its sequence wins, whatever the order of arrival.

The sequence is part of a row's value. A deleted key has no row, so its sequence is kept in the
separate table ``_deleted.<table>``, whose rows expire. Changes are ordered by (sequence, deletes
after upserts, value bytes): a total order, so that every order of arrival and every division into
batches leaves the same rows. All in Arrow columns.

No pyspark is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.base.names import DELETED
from tidegate.errors import BadRecordError, ConfigError
from tidegate.spark.state.read import ReadState
from tidegate.spark.state.reduce import INTEGERS, TEXTS, ReducedColumn, parse_batch, parse_state
from tidegate.wal.record import Column
from tidegate.wal.staging.spec import CHANGES
from tidegate.wal.staging.validate import shown_key
from tidegate.wal.value_flags import DELETE, UNUSABLE, VALUE, VALUE_END

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


def deleted_table(table: str) -> str:
    """Return the table for the sequences of deleted rows."""
    return f"{DELETED}.{table}"


def sequence_column(table: str, column: Column) -> ReducedColumn:
    """Return a sequence column. Raises: ConfigError, its type has no order that all sides agree on."""
    if column.type not in SEQUENCE_TYPES:
        raise ConfigError(
            f"table {table}: sequence_by column {column.name} is {column.type}; a sequence is"
            f" {', '.join(SEQUENCE_TYPES)}: cast it, a decimal of up to 18 digits to bigint"
        )
    return ReducedColumn(column.name, column.type, "last")


def changed(read: ReadState, table: ChangedTable, rows: Any) -> Any:
    """Return the rows to write for these changes, one per key: only those newer than the known ones.

    Deletes also have a row with their sequence. A value of ``rows`` is ``+`` and the row, or ``-``
    and the sequence alone. Raises: BadRecordError, a change has no sequence, or no operation.
    """
    keys, values = rows["k"], rows["v"]
    unusable = pc.index(pc.starts_with(values, UNUSABLE), True).as_py()
    if unusable >= 0:
        key = shown_key(keys[unusable].as_py(), table.key_types)
        raise BadRecordError(
            f"table {table.name}, key {key}: its change has a null in sequence_by or op_column, so it cannot"
            " be ordered; nothing was decided; filter such rows out"
        )
    deletes = pc.starts_with(values, DELETE)
    contents = pc.binary_slice(values, 1, VALUE_END)
    row_state = read(table.name, table.start, rows)
    deleted_state = read(deleted_table(table.name), table.deleted_start, rows)
    ours = parse_batch(table, keys, contents, table.sequence)
    theirs, of_deletes = (
        parse_state(table, keys, state, table.sequence) for state in (row_state, deleted_state)
    )
    later, equal = _compared(ours, theirs)
    over_row = pc.or_(
        later, pc.and_(equal, pc.or_(deletes, pc.greater(contents, pc.fill_null(row_state, b""))))
    )
    newer = pc.and_(
        pc.or_(pc.is_null(row_state), over_row),
        pc.or_(pc.is_null(deleted_state), _compared(ours, of_deletes)[0]),
    )
    news, deletes = rows.filter(newer), deletes.filter(newer)
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
