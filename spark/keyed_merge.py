"""Values of a batch combined with what their tables hold: one merge for all tables of a staging task.

No pyspark is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.spark.keyed_changes import ChangedTable, changed
from tidegate.spark.keyed_patch import PatchedTable, patched
from tidegate.spark.keyed_state import ReducedTable, reduced
from tidegate.spark.state_read import Portions, ReadState
from tidegate.wal.bad_rows import CHANGES
from tidegate.wal.changelog import Merge

MergedTable = ReducedTable | PatchedTable | ChangedTable


def merge_with(
    read: ReadState, tables: Sequence[MergedTable], base_version: int, beside: ReadState | None = None
) -> Merge:
    """A merge for ``stage_task``: values of these tables become state combined with batch.

    ``beside`` reads for changes in any order, which look at two tables for each key.
    """
    portions = Portions()

    def noted(reading: ReadState) -> ReadState:
        return lambda *asked: portions.noted(reading(*asked))

    def merge(batch: Any) -> Iterator[Any]:
        for part in portions.of(batch):
            yield _merged(part, tables, base_version, noted(read), noted(beside or read))

    return merge


def _merged(
    batch: Any, tables: Sequence[MergedTable], base_version: int, read: ReadState, beside: ReadState
) -> Any:
    for table in tables:
        mine = pc.equal(batch["t"], table.index)
        if not pc.any(mine).as_py():
            continue
        all_mine = pc.all(mine).as_py()
        rows = batch if all_mine else batch.filter(mine)
        if isinstance(table, ChangedTable):
            others = [] if all_mine else [batch.filter(pc.invert(mine))]
            batch = pa.concat_batches([*others, changed(beside, table, rows)])
            continue
        held = read(table.name, table.start, rows)
        if isinstance(table, PatchedTable):
            values = patched(held, table, rows)
        else:
            values = reduced(held, table, base_version, rows)
        merged = values if all_mine else pc.replace_with_mask(batch["v"], mine, values)
        batch = pa.record_batch([batch["g"], batch["t"], batch["k"], merged], schema=CHANGES)
    return batch
