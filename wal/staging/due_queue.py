"""The rows of the tables for timeouts: the due times of a state's keys, and the same keys by due time.

``spark/state/timeouts.py`` describes the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tidegate.keys.groups import encode_key
from tidegate.wal.staging.own_tables import QUEUE_SCHEMA

PART_BYTES = 64 * 1024
"""The approximate bytes of the keys of one row of the queue."""
TIMES = -1, 0
"""Time and number of the row that lists a group's times."""


class Due(msgspec.Struct, frozen=True):
    """A row of ``_due.<table>``: the due time of a key, and the time by which the queue has it."""

    due_us: int
    queued_us: int


class Parts(msgspec.Struct, array_like=True):
    """The rows of a group's time in the queue, by their numbers: ``first`` to ``end`` - 1."""

    due_us: int
    first: int
    end: int


def place_key(group: int, due_us: int, part: int) -> bytes:
    """Return the key of a row of the queue: those of a key group, of one time, with this number."""
    return encode_key([group, due_us, part], QUEUE_SCHEMA.key_types)


def parts_of(keys: Iterable[bytes], value_bytes_max: int) -> Iterator[list[bytes]]:
    """Cut keys into rows of the queue: as many as fit, at least one. A key takes up to 5 bytes more there."""
    bytes_max = min(PART_BYTES, value_bytes_max)
    some: list[bytes] = []
    size = 5
    for key in keys:
        if some and size + len(key) + 5 > bytes_max:
            yield some
            some, size = [], 5
        some.append(key)
        size += len(key) + 5
    if some:
        yield some
