"""How a stateful step reads the state of its keys: in bulk, the same way for every kind of step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from tidegate.sinks.store import Store

ReadState = Callable[[str, int, Any], Any]
"""``read(table, start, rows)``: the values at the base version of the keys of these rows.

``rows`` is a record batch of ``CHANGES``, of which ``g`` and ``k`` are looked at; ``start`` is the
table's start at the base version. The answer is an Arrow binary array aligned with the rows, null
where there is no state. The store's errors pass through.
"""


def from_store(store: Store, base_version: int, at_us: int) -> ReadState:
    """Every key is asked of the store; before the first version there is no state."""

    def read(table: str, start: int, rows: Any) -> Any:
        if base_version == 0:
            return pa.nulls(len(rows), pa.binary())
        return store.get_many(table, rows["k"].to_pylist(), base_version, start, at_us)

    return read


PORTION_BYTES = 16 * 1024 * 1024
"""About so much state is in memory at once (I11); a value may take as much as that by itself."""
FIRST_ROWS = 200
"""So many keys of a task are asked for before it is known how large their states are."""


class ReadChunks:
    """Cuts a task's rows so that what is read of each part's state takes about ``PORTION_BYTES``.

    How many rows that are follows from what the part before took: nothing else says how large states are.
    For one thread.
    """

    def __init__(self) -> None:
        self._rows = FIRST_ROWS
        self._bytes = 0

    def of(self, rows: Any) -> Iterator[Any]:
        """The rows part by part; the state of one is to be read before the next one is asked for."""
        at = 0
        while at < len(rows):
            part, self._bytes = rows.slice(at, self._rows), 0
            yield part
            at += len(part)
            self._rows = max(1, PORTION_BYTES * len(part) // max(1, self._bytes))

    def noted(self, found: Any) -> Any:
        """What was read, as it is: so many bytes of it were for the part."""
        self._bytes += found.nbytes
        return found
