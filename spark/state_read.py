"""How a stateful step reads the state of its keys: in bulk, the same way for every kind of step."""

from __future__ import annotations

from collections.abc import Callable
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
