"""The rows of a task, key by key, with each key's state: streamed, one Arrow batch at a time.

A key's rows may extend over any number of batches; rows that its function leaves unread are
skipped.

No pyspark is imported here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.spark.state.read import ReadChunks

ROWS = pa.schema([pa.field("g", pa.int32()), pa.field("k", pa.binary()), pa.field("v", pa.binary())])
"""Key group, key and row of the batches, sorted by g, k and then by the order of a key's rows."""

Waiting = Callable[[], contextlib.AbstractContextManager[None]]


class _Run(NamedTuple):
    """Adjacent rows of one key in a batch."""

    key: bytes
    start: int
    end: int


class KeyRows:
    """An iterator over keys: the key's bytes, its state's (None: it has none), and its rows' values.

    ``batches`` have the columns of ``ROWS``; ``read`` returns, for some rows of a batch, the state
    of their keys, which begin in it. It is called between two keys, and its errors pass through.
    ``waiting`` is entered during the wait for batches. An error of theirs is raised where the next
    row was requested, and kept as ``fault``, since the function there may swallow it.
    """

    def __init__(self, batches: Iterable[Any], read: Callable[[Any], Any], waiting: Waiting) -> None:
        self._batches = iter(batches)
        self._read, self._chunks = read, ReadChunks()
        self._waiting = waiting
        self._values: list[bytes] = []
        self._runs: list[_Run] = []  # of the batch, the next one last
        self._begin: Iterator[Any] = iter(())  # the keys that begin in it and are not read yet, in parts
        self._states: list[bytes | None] = []  # of those read, the next one last
        self._key: bytes | None = None
        self.fault: BaseException | None = None

    def __iter__(self) -> Iterator[tuple[bytes, bytes | None, Generator[bytes, None, None]]]:
        while self._runs or self._fill():
            run = self._runs.pop()
            if run.key == self._key:
                continue  # unread rows of the previous key
            self._key = run.key
            state, rows = self._state(), self._rows(run)
            yield run.key, state, rows
            rows.close()  # a reference kept by the function yields no rows of other keys

    def _rows(self, run: _Run) -> Generator[bytes, None, None]:
        while True:
            for place in range(run.start, run.end):
                yield self._values[place]
            if self._runs or not self._fill() or self._runs[-1].key != run.key:
                return
            run = self._runs.pop()

    def _state(self) -> bytes | None:
        """Return the state of the next key that begins in the batch."""
        if not self._states:
            states = self._chunks.counted(self._read(next(self._begin)))
            self._states = states.to_pylist()[::-1]
        return self._states.pop()

    def _fill(self) -> bool:
        """Load the next batch with rows; False when there is none. Memory holds one batch (I11)."""
        self._values = []
        try:
            with self._waiting():
                for batch in self._batches:
                    if batch.num_rows:
                        self._take(batch)
                        return True
        except BaseException as error:
            self.fault = error
            raise
        return False

    def _take(self, batch: Any) -> None:
        keys = batch["k"]
        differs = pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
        starts = np.concatenate(([0], np.flatnonzero(differs) + 1))
        firsts = batch.select(["g", "k"]).take(pa.array(starts))
        first_keys = firsts["k"].to_pylist()
        self._begin = self._chunks.of(firsts.slice(int(first_keys[0] == self._key)))
        ends = [*starts[1:].tolist(), batch.num_rows]
        self._runs = list(map(_Run, first_keys, starts.tolist(), ends))[::-1]
        self._values = batch["v"].to_pylist()
