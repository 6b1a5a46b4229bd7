"""The rows of the tables for timeouts: the due times of a state's keys, and the same keys by due time.

``spark/state/timeouts.py`` describes the queue. A row of a queue names its key group, which is another one in
a namespace with other key groups. A key's due times name the time by which the queue has it, so the whole
queue follows from them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from tidegate.base.decoders import json_decoder, msgpack_decoder
from tidegate.errors import CorruptError
from tidegate.keys.groups import encode_key
from tidegate.wal.record import UNREADABLE
from tidegate.wal.staging.own_tables import QUEUE_SCHEMA
from tidegate.wal.value_flags import VALUE

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


Kind = TypeVar("Kind")
KeysByTime = dict[int, list[bytes]]


def decoded(content: bytes, kind: type[Kind], where: str) -> Kind:
    """Decode a row's value of either table. Raises: CorruptError."""
    decoder: Any = json_decoder(kind) if kind is Due else msgpack_decoder(kind)
    try:
        return decoder.decode(content)  # type: ignore[no-any-return]
    except UNREADABLE as error:
        raise CorruptError(
            f"{where} has a row that cannot be read, {type(error).__name__}; run `tidegate verify`"
        ) from None


def queued_by_group(dues: Iterable[tuple[int, Any]], where: str) -> Iterator[tuple[int, KeysByTime]]:
    """Yield the keys of each key group by the time at which the queue has them.

    ``dues`` are the live rows of due times by key group: record batches of key and value, without flags. One
    key group is in memory. Raises: CorruptError.
    """
    for group, batches in itertools.groupby(dues, itemgetter(0)):
        by_time: KeysByTime = {}
        for _, batch in batches:
            for key, content in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True):
                by_time.setdefault(decoded(content, Due, where).queued_us, []).append(key)
        if by_time:
            yield group, by_time


def queue_of(groups: Iterable[tuple[int, KeysByTime]], value_bytes_max: int) -> Iterator[Any]:
    """Yield the rows of the queue of these keys: record batches of key and stored value."""
    for group, by_time in groups:
        keys, values, times = [], [], []
        for due_us, queued in sorted(by_time.items()):
            parts = list(parts_of(queued, value_bytes_max))
            for part, some in enumerate(parts):
                keys.append(place_key(group, due_us, part))
                values.append(VALUE + msgspec.msgpack.encode(some))
            times.append(Parts(due_us, 0, len(parts)))
        keys.append(place_key(group, *TIMES))
        values.append(VALUE + msgspec.msgpack.encode(times))
        yield pa.record_batch([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], ["key", "value"])
