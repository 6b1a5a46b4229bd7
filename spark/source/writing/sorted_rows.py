"""Sort a task's rows by their place, in bounded memory: Spark sorts no rows in front of ``writeStream``.

Runs that are full are written to files that have no name: they go with the process, however it ends. The
buffer of the cache of state is not used for them: its units outlive their process, and the cache drops those
that its index does not name.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.sinks.cache.compaction import cut
from tidegate.wal.staging.last_per_key import PLACE

RUN_BYTES = 64 * 1024 * 1024
"""The bytes of rows that are sorted in memory."""
PIECE_BYTES = 1024 * 1024
"""The bytes of a batch, of which each run has one in memory while the runs are merged."""
FOLDERS = "SPARK_LOCAL_DIRS"
"""The variable by which Spark gives its Python workers the folders for temporary files."""


def sorted_by_place(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows sorted by the column ``place``; equal places in any order.

    Memory holds a run, or while runs are merged a piece of each.
    """
    with contextlib.ExitStack() as files:
        runs: list[Iterator[Any]] = []
        buffer: list[Any] = []
        size = 0
        for batch in batches:
            buffer.append(batch)
            size += batch.nbytes
            if size >= RUN_BYTES:
                runs.append(_on_disk(files, _in_order(buffer)))
                buffer, size = [], 0
        if buffer:
            runs.append(_pieces(_in_order(buffer)))
        yield from _merged(runs) if len(runs) > 1 else (piece for run in runs for piece in run)


def _in_order(batches: list[Any]) -> Any:
    rows = pa.Table.from_batches(batches).combine_chunks()
    return rows.take(pa.array(np.argsort(rows[PLACE].to_numpy(), kind="stable")))


def _pieces(rows: Any) -> Iterator[Any]:
    for piece in cut(rows, PIECE_BYTES):
        yield from piece.to_batches()


def _on_disk(files: contextlib.ExitStack, rows: Any) -> Iterator[Any]:
    """Write a run; return its batches, each read when it is wanted. Raises: OSError: the disk is full."""
    folder = os.environ.get(FOLDERS, "").partition(",")[0] or None
    file = files.enter_context(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115 - it is entered here
    with pa.ipc.new_stream(pa.PythonFile(file, "w"), rows.schema) as stream:
        for piece in _pieces(rows):
            stream.write_batch(piece)
    file.seek(0)
    return iter(pa.ipc.open_stream(pa.PythonFile(file, "r")))


def _merged(runs: list[Iterator[Any]]) -> Iterator[Any]:
    """Merge sorted runs: of the first batch of each, all rows up to the smallest last place come next."""
    heads = [(batch, run) for run in runs if (batch := next(run, None)) is not None]
    while heads:
        bound = min(batch[PLACE][-1].as_py() for batch, _ in heads)
        parts, rest = [], []
        for batch, run in heads:
            end = int(np.searchsorted(batch[PLACE].to_numpy(), bound, side="right"))
            parts.append(batch.slice(0, end))
            left = batch.slice(end) if end < batch.num_rows else next(run, None)
            if left is not None:
                rest.append((left, run))
        heads = rest
        rows = pa.concat_batches(parts)
        yield rows.take(pa.array(np.argsort(rows[PLACE].to_numpy(), kind="stable")))
