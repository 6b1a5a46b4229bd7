"""I11 Bounded: a staging task's memory does not grow with the rows of its batch."""

from __future__ import annotations

import contextlib
import os
import tracemalloc

import pyarrow as pa
import pytest

from tidegate.keys.groups import encode_key
from tidegate.spark.state import read as state_read
from tidegate.spark.state.key_rows import ROWS, KeyRows
from tidegate.spark.state.merge import PatchedTable, merge_with
from tidegate.wal.file.log import FileLog
from tidegate.wal.staging.changelog import stage_task
from tidegate.wal.staging.spec import CHANGES, StageSpec

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


@pytest.mark.parametrize("merge", [None, lambda batch: [batch]], ids=["plain", "merged"])
def test_ten_times_the_rows_take_no_more_memory_to_stage_i11(tmp_path, merge):
    peak_of_staging(tmp_path / "warm", 2, merge)
    python_1, arrow_1, few = peak_of_staging(tmp_path / "few", 8, merge)
    python_10, arrow_10, many = peak_of_staging(tmp_path / "many", 80, merge)
    assert (few.rows, many.rows) == (8 * BATCH_ROWS // 2, 80 * BATCH_ROWS // 2)
    more = 72 * BATCH_ROWS * VALUE_BYTES
    assert python_10 - python_1 < more / 20, (python_1, python_10)  # what a frame's address takes
    assert arrow_10 - arrow_1 < more / 20, (arrow_1, arrow_10)


# -- states that are large, of many keys -------------------------------------------------------------

KEYS, STATE_BYTES, PORTION = 2_000, 10_000, 1_000_000


class States:
    """A store whose states are large, and made as they are asked for; how much of them is held at once."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(state_read, "CHUNK_BYTES", PORTION)
        monkeypatch.setattr(state_read, "FIRST_ROWS", 50)
        self.pool = pa.default_memory_pool()
        self.before, self.peak, self.given = self.pool.bytes_allocated(), 0, 0
        self.content = b'{"s":"%s","n":1}' % (b"x" * STATE_BYTES)

    def read(self, rows):
        self.look()
        self.given += len(rows)
        found = pa.array([self.content] * len(rows), pa.binary())
        self.look()
        return found

    def look(self):
        self.peak = max(self.peak, self.pool.bytes_allocated() - self.before)


@contextlib.contextmanager
def python_peak():
    tracemalloc.start()
    peak = []
    try:
        yield peak
        peak.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def test_large_states_of_many_keys_are_patched_in_bounded_memory_i11(tmp_path, monkeypatch):
    """All keys come in one batch of Spark's; their states together are twenty times a portion."""
    states = States(monkeypatch)
    table = PatchedTable(0, "t", 0, ("n", "s"))
    keys = pa.array([encode_key([f"{n:05}"], ["string"]) for n in range(KEYS)], pa.binary())
    columns = [pa.array([0] * KEYS, pa.int32())] * 2 + [keys, pa.array([b'+{"n":2}'] * KEYS, pa.binary())]
    log = FileLog(tmp_path, "n")
    log.create()
    spec = StageSpec("u", "a", ("t",), (("string",),), FRAME_BYTES, 100, 20_000, 1)
    merge = merge_with(lambda _table, _start, rows: states.read(rows), [table], 1, spec)
    states.before = states.pool.bytes_allocated()
    with python_peak() as peak:
        batches = [pa.record_batch(columns, schema=CHANGES)]
        ack = stage_task(batches, spec, log, task=0, task_attempt="0", host="h", merge=merge)
    assert (ack.rows, states.given) == (KEYS, KEYS)
    assert states.peak < 8 * PORTION, states.peak
    assert peak[0] < 8 * PORTION, peak


def test_large_states_of_many_keys_are_given_to_functions_in_bounded_memory_i11(monkeypatch):
    states = States(monkeypatch)
    keys = pa.array([b"%05d" % n for n in range(KEYS)], pa.binary())
    columns = [pa.array([0] * KEYS, pa.int32()), keys, pa.array([b"{}"] * KEYS, pa.binary())]
    batches = [pa.record_batch(columns, schema=ROWS)]
    seen = 0
    with python_peak() as peak:
        for _key, state, rows in KeyRows(batches, states.read, contextlib.nullcontext):
            seen += len(list(rows)) * (state == states.content)
    assert seen == states.given == KEYS
    assert states.peak < 3 * PORTION, states.peak
    assert peak[0] < 3 * PORTION, peak
