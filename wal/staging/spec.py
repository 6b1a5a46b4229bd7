"""The specification of a stage: the parameters of its tasks, and the schema of the rows that they stage."""

from __future__ import annotations

import msgspec
import pyarrow as pa

CHANGES = pa.schema(
    [
        pa.field("g", pa.int32()),  # key group
        pa.field("t", pa.int32()),  # index of the table
        pa.field("k", pa.binary()),  # key bytes
        pa.field("v", pa.binary()),  # stored value with its flags byte
    ]
)
"""The columns of a batch of changes: ordered by g and t, rows of a k adjacent, the last one wins."""


class StageSpec(msgspec.Struct, frozen=True):
    """The parameters by which a task stages its part of an attempt. Plain data that travels to tasks.

    ``key_types`` holds, per table, the types of its key columns. ``quarantine`` is the index of the
    table that takes refused rows, or None when a refused row fails the batch.

    ``at_us`` is the attempt's time: later than the last decision, no later than its own decision.
    State is read as of it. ``ttls_us`` holds, per table, how long after it the rows expire; 0:
    never. ``batch`` is the name of the attempt's rows in messages. ``key_names`` and
    ``time_columns`` hold, per table, the key columns, and field and name of the value columns that
    may hold dates or times. ``strides`` holds, per table, the distance of its key groups; empty: 1.
    ``stored``: the rows exist already, as stored, so one that does not fit is never quarantined.
    ``of_stores``: why the limit of values is that of a store, and the way; empty: it is the option's.
    """

    namespace: str
    attempt: str
    tables: tuple[str, ...]
    key_types: tuple[tuple[str, ...], ...]
    frame_bytes: int
    key_bytes_max: int
    value_bytes_max: int
    key_groups: int
    quarantine: int | None = None
    at_us: int = 0
    ttls_us: tuple[int, ...] = ()
    batch: str = ""
    key_names: tuple[tuple[str, ...], ...] = ()
    time_columns: tuple[tuple[tuple[str, str], ...], ...] = ()
    strides: tuple[int, ...] = ()
    stored: bool = False
    of_stores: str = ""

    def stride(self, table: str) -> int:
        """Return the distance between two key groups of a table."""
        return self.strides[self.tables.index(table)] if self.strides else 1

    def bytes_max(self, what: str) -> int:
        """Return the most bytes of a key or a value."""
        return self.key_bytes_max if what == "key" else self.value_bytes_max

    def size_advice(self, what: str) -> str:
        """Return the advice for a key or a value that is too long."""
        if what == "value" and self.of_stores:
            return f"make it smaller: {self.of_stores}"
        return "make it smaller or raise value_bytes_max" if what == "value" else "make it smaller"
