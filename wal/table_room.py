"""The room for tables in a Decided record, which names every table of its namespace.

An entry grows: ``start`` gets digits when the table is emptied, ``expires`` is added when its rows
get an expiry. A new table is admitted only if all entries fit at their longest, so that a namespace
that runs is never too large for a later version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from tidegate.base.names import LOCAL
from tidegate.errors import ConfigError
from tidegate.wal.record import DECIDED_BYTES_MAX, TableAt

OTHER_BYTES = 4 * 1024
"""Reserved for the other fields of the record, without the source offsets."""
STRIDE_BYTES = len(',"stride":32768')
"""A table that has a stride has it for life."""
ENTRY_BYTES = len(msgspec.json.encode(TableAt("f" * 16, 9_999_999_999, expires=True))) + len('"":,')
"""The longest entry of a table, without its name."""
STEP_BYTES = len('"":32768,')
"""A local state is also a component, with its parallelism."""
WARN_AT = 0.75
NAMED_MAX = 3
"""New tables that the error names."""


class Room(NamedTuple):
    """The number of tables, and the number of tables with names of the same length that fit."""

    tables: int
    most: int
    fits: bool
    is_short: bool

    def __str__(self) -> str:
        return f"{self.tables} tables of about {self.most} with names of this length"


def entry_bytes(name: str, stride: int = 1) -> int:
    """Return the most bytes that a table ever takes in a Decided record."""
    prefix = f"{LOCAL}."
    step = len(name) + STEP_BYTES if name.startswith(prefix) else 0
    return len(name) + ENTRY_BYTES + step + STRIDE_BYTES * (stride > 1)


def tables_max(name_length: int) -> int:
    """Return the number of tables that fit into a namespace if their names have this length."""
    return (DECIDED_BYTES_MAX - OTHER_BYTES) // (name_length + ENTRY_BYTES)


def room_for(tables: Mapping[str, int]) -> Room:
    """Compare these tables, with their strides, with the room of a record."""
    needed, room = sum(entry_bytes(*table) for table in tables.items()), DECIDED_BYTES_MAX - OTHER_BYTES
    most = room * len(tables) // needed if needed else tables_max(1)
    return Room(len(tables), most, needed <= room, needed > WARN_AT * room)


def strides_of(tables: Mapping[str, TableAt]) -> dict[str, int]:
    """Return the stride of each table."""
    return {name: table_at.apart for name, table_at in tables.items()}


def check_room(existing: Mapping[str, TableAt], written: Mapping[str, int]) -> Room | None:
    """Admit the new tables of a barrier, given with the strides, before anything of it is staged.

    Return the room with them, or None if none is new. Raises: ConfigError: they do not fit.
    """
    new = sorted(set(written) - set(existing))
    if not new:
        return None
    room = room_for({**written, **strides_of(existing)})
    if not room.fits:
        names = ", ".join(new[:NAMED_MAX]) + (
            f" and {len(new) - NAMED_MAX} more" if len(new) > NAMED_MAX else ""
        )
        msg = (
            f"the namespace has {len(existing)} tables, and about {room.most} with names of this length fit:"
            f" the new tables {names} are refused, and nothing of this batch was staged; write them into"
            " another namespace, or use shorter names"
        )
        raise ConfigError(msg)
    return room
