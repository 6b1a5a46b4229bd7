"""Bulk reads of the state of a step's keys, the same for every kind of step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tidegate.sinks.cache.state_at import StateAt
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.reads import values_at

ReadState = Callable[[str, int, Any], Any]
"""``read(table, start, rows)``: the values at the base version of the keys of these rows.

``rows`` is a record batch of ``CHANGES``, of which ``g`` and ``k`` are used; ``start`` is the
table's start at the base version. The result is an Arrow binary array aligned with the rows, null
where there is no state. Raises: the store's errors.
"""


def uncached(state: StateAt, at_us: int) -> ReadState:
    """Return a read of every key past the caches; before the first version there is no state."""

    def read(table: str, start: int, rows: Any) -> Any:
        read_at = ReadAt(table, state.base_version, start, at_us=at_us)
        stored = state.get_stored(table, start, rows)
        return values_at(state.store.where, read_at, rows["k"].to_pylist(), stored)

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
        offset = 0
        while offset < len(rows):
            part, self._bytes = rows.slice(offset, self._rows), 0
            yield part
            offset += len(part)
            self._rows = max(1, CHUNK_BYTES * len(part) // max(1, self._bytes))

    def counted(self, values: Any) -> Any:
        """Return the values unchanged, and count their bytes for the current part."""
        self._bytes += values.nbytes
        return values
