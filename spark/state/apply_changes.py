"""Change data capture: the newest change of each key by its sequence wins, whatever the order of arrival.

The sequence is part of a row's value. A deleted key has no row, so its sequence is kept in the
separate table ``_deleted.<table>``, whose rows expire. Changes are ordered by (sequence, deletes
after upserts, value bytes): a total order, so that every order of arrival and every division into
batches leaves the same rows. An upsert with ``newer_by`` has the same order, and no deletes. All in
Arrow columns.

No pyspark is imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.base.decoders import json_decoder
from tidegate.errors import ConfigError
from tidegate.spark.state.read import ReadState
from tidegate.spark.state.reduce import INTEGERS, TEXTS, ReducedColumn, parse_batch, parse_state
from tidegate.wal.record import Column
from tidegate.wal.staging.own_tables import deleted_table
from tidegate.wal.staging.spec import CHANGES
from tidegate.wal.value_flags import DELETE, VALUE, VALUE_END

SEQUENCE_TYPES = (*INTEGERS, *TEXTS)
FIELDS = json_decoder(dict[str, msgspec.Raw])
NULL = b"null"


class ChangedTable(msgspec.Struct, frozen=True):
    """A table written by ``apply_changes`` in this batch, and the table of the sequences of its deletes.

    Columns of ``partial`` are objects in a row's value: ``v`` the value; ``s`` the sequence of its change,
    null where the row leaves it as it is; ``d`` the sequence of the key's last delete in the batch, or null.
    """

    index: int
    name: str
    start: int
    deleted_index: int
    deleted_start: int
    sequence: tuple[ReducedColumn, ...]
    key_types: tuple[str, ...]
    partial: tuple[str, ...] = ()


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


class TieCounter:
    """Counts how often a row lost to a delete of its key with the same sequence, by its table's index."""

    def __init__(self, tables: Iterable[object]) -> None:
        self._tables = [table for table in tables if isinstance(table, ChangedTable)]
        self.counts = dict.fromkeys((table.index for table in self._tables), 0)

    def superseded(self, older: Any, newer: Any) -> None:
        """Count rows of a batch, each followed by a delete of its key. See ``last_per_key``."""
        for table in self._tables:
            mine = pc.and_(pc.equal(older["t"], table.index), pc.starts_with(older["v"], VALUE))
            mine = pc.and_(mine, pc.starts_with(newer["v"], DELETE))
            if pc.any(mine).as_py():
                ours, theirs = (_sequences(table, rows.filter(mine)) for rows in (older, newer))
                self.add(table, _compared(ours, theirs)[1])

    def add(self, table: ChangedTable, ties: Any) -> None:
        """Count those that are true."""
        self.counts[table.index] += pc.sum(ties).as_py() or 0


def _sequences(table: ChangedTable, rows: Any) -> list[Any]:
    return parse_batch(table, rows["k"], pc.binary_slice(rows["v"], 1, VALUE_END), table.sequence)


def changed(read: ReadState, table: ChangedTable, rows: Any, ties: TieCounter | None = None) -> Any:
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
    after_delete, as_late = _compared(ours, of_deletes)
    wins = pc.and_(over_row, pc.or_(pc.is_null(deleted_state), after_delete))
    if ties is not None:
        ties.add(table, pc.if_else(deletes, _compared(ours, theirs)[1], as_late))
    if table.partial:
        whole = _whole(table, rows, row_state, theirs, of_deletes, deletes)
        rows = pa.record_batch([rows["g"], rows["t"], rows["k"], whole], schema=CHANGES)
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


def _whole(
    table: ChangedTable,
    rows: Any,
    stored: Any,
    theirs: Sequence[Any],
    of_deletes: Sequence[Any],
    deletes: Any,
) -> Any:
    """Return the rows' values, in which each column of ``partial`` is the batch's or the stored one.

    The batch's is as late as the stored row at least, and later than the remembered delete. A stored row that
    the batch deletes before has no columns any more.
    """
    values = rows["v"].to_pylist()
    is_delete = deletes.to_pylist()
    given = [
        None if deleted else FIELDS.decode(memoryview(value)[1:])
        for value, deleted in zip(values, is_delete, strict=True)
    ]
    changes = {
        name: [None if row is None else FIELDS.decode(row[name]) for row in given] for name in table.partial
    }

    def sequences(part: str, cells: Sequence[dict[str, msgspec.Raw] | None]) -> tuple[Any, list[Any]]:
        texts = [None if cell is None else bytes(cell[part]) for cell in cells]
        encoded = pa.array([None if text == NULL else text for text in texts], pa.binary())
        return pc.is_valid(encoded), parse_batch(table, rows["k"], encoded, table.sequence)

    taken: dict[str, list[bool]] = {}
    for name, cells in changes.items():
        has_one, changed_at = sequences("s", cells)
        later, equal = _compared(changed_at, theirs)
        after = pc.and_(pc.or_(later, equal), _compared(changed_at, of_deletes)[0])
        taken[name] = pc.and_(has_one, after).to_pylist()
    has_delete, deleted_at = sequences("d", changes[table.partial[0]])
    later, equal = _compared(deleted_at, theirs)
    is_reset = pc.and_(has_delete, pc.or_(later, equal)).to_pylist()
    for place, (row, state) in enumerate(zip(given, stored.to_pylist(), strict=True)):
        if row is None:
            continue
        before = {} if state is None or is_reset[place] else FIELDS.decode(state)
        for name, cells in changes.items():
            cell = cells[place]
            row[name] = cell["v"] if cell and taken[name][place] else before.get(name, msgspec.Raw(NULL))
        pieces = (msgspec.json.encode(name) + b":" + bytes(raw) for name, raw in row.items())
        values[place] = VALUE + b"{" + b",".join(pieces) + b"}"
    return pa.array(values, pa.binary())


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
