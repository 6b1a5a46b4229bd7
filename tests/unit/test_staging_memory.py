"""I11 Bounded: a staging task's memory does not grow with the rows of its batch."""

from __future__ import annotations

import os
import tracemalloc

import pyarrow as pa
import pytest

from tidegate.wal.bad_rows import CHANGES, StageSpec
from tidegate.wal.changelog import stage_task
from tidegate.wal.file_log import FileLog

BATCH_ROWS, VALUE_BYTES, FRAME_BYTES = 1_000, 200, 100_000


def sorted_batches(count):
    """Batches of changes of one key group in sort order, each key twice, made as they are asked for."""
    for batch in range(count):
        keys = [b"%010d" % ((batch * BATCH_ROWS + row) // 2) for row in range(BATCH_ROWS)]
        values = [b"+" + os.urandom(VALUE_BYTES // 2).hex().encode() for _ in keys]
        columns = [pa.array([0] * BATCH_ROWS, pa.int32())] * 2 + [
            pa.array(x, pa.binary()) for x in (keys, values)
        ]
        yield pa.record_batch(columns, schema=CHANGES)


def peak_of_staging(folder, batches, merge):
    """Peaks of Python's and of Arrow's memory above the start, in bytes, and the ack."""
    log = FileLog(folder, "n")
    log.create()
    spec = StageSpec("u", f"a{batches}", ("t",), (("string",),), FRAME_BYTES, 100, 10_000, 1)
    pool = pa.default_memory_pool()
    arrow_before, arrow_peak = pool.bytes_allocated(), 0

    def watched():
        nonlocal arrow_peak
        for batch in sorted_batches(batches):
            arrow_peak = max(arrow_peak, pool.bytes_allocated() - arrow_before)
            yield batch

    tracemalloc.start()
    try:
        ack = stage_task(watched(), spec, log, task=0, task_attempt="0", host="h", merge=merge)
        _, python_peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return python_peak, arrow_peak, ack


@pytest.mark.parametrize("merge", [None, lambda batch: batch], ids=["plain", "merged"])
def test_ten_times_the_rows_take_no_more_memory_to_stage_i11(tmp_path, merge):
    peak_of_staging(tmp_path / "warm", 2, merge)
    python_1, arrow_1, few = peak_of_staging(tmp_path / "few", 8, merge)
    python_10, arrow_10, many = peak_of_staging(tmp_path / "many", 80, merge)
    assert (few.rows, many.rows) == (8 * BATCH_ROWS // 2, 80 * BATCH_ROWS // 2)
    more = 72 * BATCH_ROWS * VALUE_BYTES
    assert python_10 - python_1 < more / 20, (python_1, python_10)  # what a frame's address takes
    assert arrow_10 - arrow_1 < more / 20, (arrow_1, arrow_10)
