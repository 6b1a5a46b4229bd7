"""Values of a batch combined with their tables' state: one merge for all tables of a staging task.

No pyspark is imported here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.base.decoders import json_decoder
from tidegate.errors import CorruptError
from tidegate.spark.state.apply_changes import ChangedTable, NewerTable, TieCounter, changed, newer
from tidegate.spark.state.read import ReadChunks, ReadState
from tidegate.spark.state.reduce import ReduceStep, reduced
from tidegate.wal.staging.changelog import Merge
from tidegate.wal.staging.last_per_key import TABLE_BITS
from tidegate.wal.staging.quarantine import MergedRefusals
from tidegate.wal.staging.spec import CHANGES, StageSpec

# -- patches: some columns of a row are set, the others keep their value at the base version ----------------

_decoder = json_decoder(dict[str, msgspec.Raw])
_NULL = b"null"


class PatchedTable(msgspec.Struct, frozen=True):
    """A table written by ``patch`` in this batch: its index, name, start at the base, all its columns.

    Those of ``partial`` are null in a row's value where they stay, or the object ``{"v": the value}``.
    """

    index: int
    name: str
    start: int
    columns: tuple[str, ...]
    partial: frozenset[str] = frozenset()


def patched(stored: Any, table: PatchedTable, rows: Any) -> Any:
    """Return stored values: ``stored`` (null: no state) overwritten by the columns of the rows' values."""
    names = [(name, msgspec.json.encode(name) + b":") for name in table.columns]
    values = []
    for state, value in zip(stored.to_pylist(), rows["v"].to_pylist(), strict=True):
        try:
            fields = {} if state is None else _decoder.decode(state)
        except msgspec.MsgspecError as error:
            msg = f"table {table.name}: the stored value {state[:60]!r} is no JSON object: {error}"
            raise CorruptError(msg) from error
        given = _decoder.decode(memoryview(value)[1:])
        for name in table.partial:
            if bytes(given[name]) == _NULL:
                del given[name]
            else:
                given[name] = _decoder.decode(given[name])["v"]
        fields.update(given)
        pieces = [lead + bytes(fields[name]) if name in fields else lead + _NULL for name, lead in names]
        values.append(b"+{" + b",".join(pieces) + b"}")
    return pa.array(values, pa.binary())


# -- the merge of all tables of a task ---------------------------------------------------------------------

MergedTable = ReduceStep | PatchedTable | ChangedTable | NewerTable


def merge_with(
    read: ReadState,
    tables: Sequence[MergedTable],
    base_version: int,
    spec: StageSpec,
    read_uncached: ReadState | None = None,
    spent: list[float] | None = None,
    ties: TieCounter | None = None,
) -> Merge:
    """Return a merge for ``stage_task``: values of these tables become state combined with batch.

    ``read_uncached`` reads for changes in any order, which need two tables for each key. ``spent`` has the
    seconds that each of the tables took so far, ``ties`` counts those of changes.
    """
    chunks, refusals = ReadChunks(), MergedRefusals(spec)
    took = [0.0] * len(tables) if spent is None else spent

    def counted(reading: ReadState) -> ReadState:
        return lambda *request: chunks.counted(reading(*request))

    def merge(batch: Any) -> Iterator[Any]:
        for part in chunks.of(batch):
            merged = part
            for number, table in enumerate(tables):
                began = time.perf_counter()
                mine = pc.equal(merged["t"], table.index)
                if not pc.any(mine).as_py():
                    continue
                all_mine = pc.all(mine).as_py()
                rows = merged if all_mine else merged.filter(mine)
                if isinstance(table, ChangedTable):
                    new = [changed(counted(read_uncached or read), table, rows, ties)]
                else:
                    new = _merged(rows, table, counted(read), base_version, refusals)
                others = [] if all_mine else [merged.filter(pc.invert(mine))]
                merged = _in_order([*others, *new])
                took[number] += time.perf_counter() - began
            yield merged

    return merge


def _merged(
    rows: Any,
    table: ReduceStep | PatchedTable | NewerTable,
    read: ReadState,
    base_version: int,
    refusals: MergedRefusals,
) -> list[Any]:
    """Return the batches to write for a table's rows, which are one per key."""
    stored = read(table.name, table.start, rows)
    if isinstance(table, NewerTable):
        return [newer(stored, table, rows)]
    if isinstance(table, PatchedTable):
        return [_with_values(rows, patched(stored, table, rows))]
    values, bad, own = reduced(stored, table, base_version, rows)
    written = _with_values(rows, values)
    if not bad:
        return [written]
    fits = np.ones(len(rows), dtype=bool)
    fits[[one.row for one in bad]] = False
    return [written.filter(pa.array(fits)), refusals.set_aside(_with_values(rows, own), bad)]


def _in_order(batches: list[Any]) -> Any:
    """Join batches, each in the order of key groups and tables, into one that is."""
    if len(batches) == 1:
        return batches[0]
    rows = pa.concat_batches(batches)
    groups, tables = (rows[name].to_numpy().astype(np.int64) for name in ("g", "t"))
    return rows.take(pa.array(np.argsort(groups << TABLE_BITS | tables, kind="stable")))


def _with_values(rows: Any, values: Any) -> Any:
    return pa.record_batch([rows["g"], rows["t"], rows["k"], values], schema=CHANGES)
