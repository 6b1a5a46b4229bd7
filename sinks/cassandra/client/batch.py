"""Unlogged batches of one partition, packed from Arrow arrays: no Python work per row.

The driver binds each value of each row by itself, about ten times what the rest costs. Here the
body of a BATCH message (native protocol 4 and 5, section 4.1.7) is joined by Arrow: what is the
same for all rows of a partition is one constant, keys and values get their lengths in front. A
batch of one partition is one mutation for the server, atomic there and without a batch log.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cassandra import protocol
from cassandra.query import BatchStatement, BatchType

BATCH_BYTES = 128 * 1024
"""Where a batch is cut; a single larger row is a batch of its own."""
SMALL_BYTES = 16 * 1024
BATCH_ROWS = 4_000
PREPARED = b"\x01"
WITH_TIMESTAMP = 0x20
INT_FLAGS_SINCE = 5
"""The version of the protocol from which flags take four bytes."""


class Packed(NamedTuple):
    """Statements of one partition as they travel: how many, and their bytes."""

    statements: int
    body: bytes

    @property
    def weight(self) -> int:
        return len(self.body)


class PackedBatch(BatchStatement):  # type: ignore[misc]  # the driver has no types
    """An unlogged batch whose statements are packed, all written with one timestamp. Repeatable."""

    def __init__(
        self, keyspace: str, partition: tuple[bytes, ...], packed: Packed, timestamp_us: int, level: int
    ) -> None:
        super().__init__(BatchType.UNLOGGED, consistency_level=level)
        self.keyspace = keyspace  # with it the driver finds the replicas of the partition
        self._statements_and_parameters = _Stamped(packed, timestamp_us)
        self._token_of = routing_key(partition)
        # It may be repeated; but a second node is given it, too, only where that is no load to speak of.
        self.is_idempotent = packed.weight <= SMALL_BYTES

    @property
    def routing_key(self) -> bytes:
        return self._token_of


class Protocol(protocol.ProtocolHandler):  # type: ignore[misc]
    """The driver's, and packed batches; a session takes it as its ``client_protocol_handler``."""

    @classmethod
    def encode_message(cls, msg: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(msg, protocol.BatchMessage) and isinstance(msg.queries, _Stamped):
            packed = _PackedMessage(msg.batch_type, msg.queries, msg.consistency_level)
            packed.tracing, packed.custom_payload = msg.tracing, msg.custom_payload
            msg = packed
        return super().encode_message(msg, *args, **kwargs)


class _Stamped(NamedTuple):
    packed: Packed
    timestamp_us: int


class _PackedMessage(protocol.BatchMessage):  # type: ignore[misc]
    def send_body(self, f: Any, protocol_version: int) -> None:
        packed, timestamp_us = self.queries
        protocol.write_byte(f, self.batch_type.value)
        protocol.write_short(f, packed.statements)
        f.write(packed.body)
        protocol.write_consistency_level(f, self.consistency_level)
        write_flags = protocol.write_int if protocol_version >= INT_FLAGS_SINCE else protocol.write_byte
        write_flags(f, WITH_TIMESTAMP)
        protocol.write_long(f, timestamp_us)


# -- packing -------------------------------------------------------------------------------------


def routing_key(partition: tuple[bytes, ...]) -> bytes:
    """What the token of a composite partition key is computed of: CompositeType's serialization."""
    return b"".join(struct.pack(">H", len(part)) + part + b"\0" for part in partition)


def bound(*values: bytes) -> bytes:
    """Bound values as they travel: each one's length, then its bytes."""
    return b"".join(struct.pack(">i", len(value)) + value for value in values)


def statement(query_id: bytes, values: int) -> bytes:
    """The beginning of a prepared statement in a batch that binds so many values."""
    return PREPARED + struct.pack(">H", len(query_id)) + query_id + struct.pack(">H", values)


def bigint(number: int) -> bytes:
    return struct.pack(">q", number)


def one(head: bytes, *values: bytes) -> Packed:
    """One statement."""
    return Packed(1, head + bound(*values))


def joined(parts: Iterable[Packed]) -> Packed:
    """All their statements, in order."""
    some = list(parts)
    return Packed(sum(packed.statements for packed in some), b"".join(packed.body for packed in some))


def rows(head: bytes, keys: Any, tail: bytes, values: Any = None) -> Iterator[Packed]:
    """A statement per key, in batches: ``head``, the key, ``tail``, and the value if there are values.

    ``head`` and ``tail`` hold whatever values are the same for all, bound already.
    """
    yield from _batches(_joined([pa.scalar(head, pa.binary())], keys, tail, values), 0, len(keys))


def rows_of_groups(
    head: bytes, groups: Any, keys: Any, tail: bytes, values: Any = None
) -> Iterator[tuple[int, Iterator[Packed]]]:
    """As ``rows``, for each stretch of rows of one key group: all are packed at once. The key group is bound
    behind ``head``. ``groups``: of each row, as numpy integers.
    """
    bound_groups = [pa.scalar(head + struct.pack(">i", 4), pa.binary()), _four_bytes(groups)]
    joined = _joined(bound_groups, keys, tail, values)
    firsts = np.flatnonzero(np.diff(groups, prepend=-1))
    for first, last in itertools.pairwise([*firsts.tolist(), len(groups)]):
        yield int(groups[first]), _batches(joined, first, last)


def _joined(heads: list[Any], keys: Any, tail: bytes, values: Any) -> tuple[memoryview, Any]:
    """The statements of all rows, and where each begins; where the last one ends."""
    parts = [*heads, _lengths(keys), keys, pa.scalar(tail, pa.binary())]
    if values is not None:
        parts += [_lengths(values), values]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
    _, offsets, data = joined.buffers()
    ends = np.frombuffer(offsets, np.int32, len(joined) + 1, joined.offset * 4)
    return memoryview(b"" if data is None else data), ends


def _batches(joined: tuple[memoryview, Any], at: int, last: int) -> Iterator[Packed]:
    body, ends = joined
    while at < last:
        fits = int(np.searchsorted(ends, int(ends[at]) + BATCH_BYTES, "right")) - 1
        end = min(max(fits, at + 1), at + BATCH_ROWS, last)
        yield Packed(end - at, bytes(body[ends[at] : ends[end]]))
        at = end


def _lengths(values: Any) -> Any:
    """The length of each value, as the four bytes that go before it."""
    return _four_bytes(pc.binary_length(values).to_numpy(zero_copy_only=False))


def _four_bytes(numbers: Any) -> Any:
    """Each number, big-endian."""
    fixed = pa.Array.from_buffers(pa.binary(4), len(numbers), [None, pa.py_buffer(numbers.astype(">i4"))])
    return fixed.cast(pa.binary())
