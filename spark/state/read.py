"""Bulk reads of the state of a step's keys, the same for every kind of step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from tidegate.sinks.store import Store
from tidegate.wal.staging.spec import StageSpec

ReadState = Callable[[str, int, Any], Any]
"""``read(table, start, rows)``: the values at the base version of the keys of these rows.

``rows`` is a record batch of ``CHANGES``, of which ``g`` and ``k`` are used; ``start`` is the
table's start at the base version. The result is an Arrow binary array aligned with the rows, null
where there is no state. Raises: the store's errors.
"""


def from_store(store: Store, base_version: int, spec: StageSpec) -> ReadState:
    """Return a read of every key from the store; before the first version there is no state."""

    def read(table: str, start: int, rows: Any) -> Any:
        if base_version == 0:
            return pa.nulls(len(rows), pa.binary())
        of = base_version, start, spec.at_us, spec.stride(table)
        return store.get_many(table, rows["k"].to_pylist(), *of)

    return read


CHUNK_BYTES = 16 * 1024 * 1024
"""The approximate bytes of state in memory at once (I11); a single value may take as much by itself."""
FIRST_ROWS = 200
"""The number of a task's keys that are read before the size of their states is known."""


class ReadChunks:
    """A division of a task's rows into parts whose state takes about ``CHUNK_BYTES``.

    The number of rows in a part follows from the state's size in the part before, the only known
    size. For one thread.
    """

    def __init__(self) -> None:
        self._rows = FIRST_ROWS
        self._bytes = 0

    def of(self, rows: Any) -> Iterator[Any]:
        """Yield the rows part by part; the state of each must be read before the next is requested."""
        at = 0
        while at < len(rows):
            part, self._bytes = rows.slice(at, self._rows), 0
            yield part
            at += len(part)
            self._rows = max(1, CHUNK_BYTES * len(part) // max(1, self._bytes))

    def counted(self, values: Any) -> Any:
        """Return the values unchanged, and count their bytes for the current part."""
        self._bytes += values.nbytes
        return values
