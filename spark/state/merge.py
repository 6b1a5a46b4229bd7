"""Values of a batch combined with their tables' state: one merge for all tables of a staging task.

No pyspark is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.base.decoders import json_decoder
from tidegate.errors import CorruptError
from tidegate.spark.state.apply_changes import ChangedTable, changed
from tidegate.spark.state.read import ReadChunks, ReadState
from tidegate.spark.state.reduce import ReduceStep, reduced
from tidegate.wal.staging.changelog import Merge
from tidegate.wal.staging.spec import CHANGES

# -- patches: some columns of a row are set, the others keep their value at the base version ----------------

_decoder = json_decoder(dict[str, msgspec.Raw])
_NULL = b"null"


class PatchedTable(msgspec.Struct, frozen=True):
    """A table written by ``patch`` in this batch: its index, name, start at the base, all its columns."""

    index: int
    name: str
    start: int
    columns: tuple[str, ...]


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
        fields.update(_decoder.decode(memoryview(value)[1:]))
        pieces = [lead + bytes(fields[name]) if name in fields else lead + _NULL for name, lead in names]
        values.append(b"+{" + b",".join(pieces) + b"}")
    return pa.array(values, pa.binary())


# -- the merge of all tables of a task ---------------------------------------------------------------------

MergedTable = ReduceStep | PatchedTable | ChangedTable


def merge_with(
    read: ReadState, tables: Sequence[MergedTable], base_version: int, read_uncached: ReadState | None = None
) -> Merge:
    """Return a merge for ``stage_task``: values of these tables become state combined with batch.

    ``read_uncached`` reads for changes in any order, which need two tables for each key.
    """
    chunks = ReadChunks()

    def counted(reading: ReadState) -> ReadState:
        return lambda *asked: chunks.counted(reading(*asked))

    def merge(batch: Any) -> Iterator[Any]:
        for part in chunks.of(batch):
            yield _merged(part, tables, base_version, counted(read), counted(read_uncached or read))

    return merge


def _merged(
    batch: Any, tables: Sequence[MergedTable], base_version: int, read: ReadState, read_uncached: ReadState
) -> Any:
    for table in tables:
        mine = pc.equal(batch["t"], table.index)
        if not pc.any(mine).as_py():
            continue
        all_mine = pc.all(mine).as_py()
        rows = batch if all_mine else batch.filter(mine)
        if isinstance(table, ChangedTable):
            others = [] if all_mine else [batch.filter(pc.invert(mine))]
            batch = pa.concat_batches([*others, changed(read_uncached, table, rows)])
            continue
        stored = read(table.name, table.start, rows)
        if isinstance(table, PatchedTable):
            values = patched(stored, table, rows)
        else:
            values = reduced(stored, table, base_version, rows)
        merged = values if all_mine else pc.replace_with_mask(batch["v"], mine, values)
        batch = pa.record_batch([batch["g"], batch["t"], batch["k"], merged], schema=CHANGES)
    return batch
