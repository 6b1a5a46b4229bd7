"""Unlogged batches of one partition, packed from Arrow arrays: no Python work per row.

The driver binds each value of each row by itself, which costs about ten times the rest. Here Arrow
joins the body of a BATCH message (native protocol 4 and 5, section 4.1.7): the part that is the
same for all rows of a partition is one constant, and keys and values are prefixed by their lengths.
A batch of one partition is one mutation for the server, atomic there and without a batch log.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from cassandra import protocol
from cassandra.query import BatchStatement, BatchType

from tidegate.base.extras import np, pa, pc

BATCH_BYTES = 128 * 1024
"""The size at which a batch is cut; a single larger row is a batch by itself."""
SMALL_BYTES = 16 * 1024
BATCH_ROWS = 4_000
PREPARED = b"\x01"
WITH_TIMESTAMP = 0x20
INT_FLAGS_SINCE = 5
"""The version of the protocol from which flags take four bytes."""


class Packed(NamedTuple):
    """Statements of one partition on the wire: their number and their bytes."""

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
        self.keyspace = keyspace  # lets the driver find the replicas of the partition
        self._statements_and_parameters = _Stamped(packed, timestamp_us)
        self._token_of = routing_key(partition)
        # It is repeatable, but it is sent to a second node only where that is a negligible load.
        self.is_idempotent = packed.weight <= SMALL_BYTES

    @property
    def routing_key(self) -> bytes:
        return self._token_of


class Protocol(protocol.ProtocolHandler):  # type: ignore[misc]
    """The driver's handler with packed batches; a session has it as its ``client_protocol_handler``."""

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
    """Return the bytes from which a composite partition key's token is computed (CompositeType)."""
    return b"".join(struct.pack(">H", len(part)) + part + b"\0" for part in partition)


def bound(*values: bytes) -> bytes:
    """Encode bound values for the wire: each one's length, then its bytes."""
    return b"".join(struct.pack(">i", len(value)) + value for value in values)


def statement(query_id: bytes, values: int) -> bytes:
    """Return the start of a prepared statement with this number of bound values, in a batch."""
    return PREPARED + struct.pack(">H", len(query_id)) + query_id + struct.pack(">H", values)


def bigint(number: int) -> bytes:
    return struct.pack(">q", number)


def single(head: bytes, *values: bytes) -> Packed:
    """Pack one statement."""
    return Packed(1, head + bound(*values))


def joined(parts: Iterable[Packed]) -> Packed:
    """Join all statements, in order."""
    packed_parts = list(parts)
    return Packed(
        sum(packed.statements for packed in packed_parts), b"".join(packed.body for packed in packed_parts)
    )


def rows(head: bytes, keys: Any, tail: bytes, values: Any = None) -> Iterator[Packed]:
    """Yield batches of one statement per key: ``head``, the key, ``tail``, and the value if there are values.

    ``head`` and ``tail`` contain the values that are the same for all, already bound.
    """
    yield from _batches(_joined([pa.scalar(head, pa.binary())], keys, tail, values), 0, len(keys))


def rows_of_groups(
    head: bytes, groups: Any, keys: Any, tail: bytes, values: Any = None
) -> Iterator[tuple[int, Iterator[Packed]]]:
    """As ``rows``, for each stretch of rows of one key group; all are packed at once.

    The key group is bound after ``head``. ``groups``: the key group of each row, as numpy integers.
    """
    bound_groups = [pa.scalar(head + struct.pack(">i", 4), pa.binary()), _four_bytes(groups)]
    joined = _joined(bound_groups, keys, tail, values)
    firsts = np.flatnonzero(np.diff(groups, prepend=-1))
    for first, last in itertools.pairwise([*firsts.tolist(), len(groups)]):
        yield int(groups[first]), _batches(joined, first, last)


def _joined(heads: list[Any], keys: Any, tail: bytes, values: Any) -> tuple[memoryview, Any]:
    """Return the statements of all rows, and the offsets of their starts and of the end."""
    parts = [*heads, _lengths(keys), keys, pa.scalar(tail, pa.binary())]
    if values is not None:
        parts += [_lengths(values), values]
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
    _, offsets, data = joined.buffers()
    ends = np.frombuffer(offsets, np.int32, len(joined) + 1, joined.offset * 4)
    return memoryview(b"" if data is None else data), ends


def _batches(joined: tuple[memoryview, Any], start: int, last: int) -> Iterator[Packed]:
    body, ends = joined
    while start < last:
        fits = int(np.searchsorted(ends, int(ends[start]) + BATCH_BYTES, "right")) - 1
        end = min(max(fits, start + 1), start + BATCH_ROWS, last)
        yield Packed(end - start, bytes(body[ends[start] : ends[end]]))
        start = end


def _lengths(values: Any) -> Any:
    """Return the length of each value as the four bytes that precede it."""
    return _four_bytes(pc.binary_length(values).to_numpy(zero_copy_only=False))


def _four_bytes(numbers: Any) -> Any:
    """Encode each number in four bytes, big-endian."""
    fixed = pa.Array.from_buffers(pa.binary(4), len(numbers), [None, pa.py_buffer(numbers.astype(">i4"))])
    return fixed.cast(pa.binary())
