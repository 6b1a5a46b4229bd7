"""Frames: pieces of a change-log, one log message each.

A frame's bytes (published in docs/storage-format.md)::

    4 bytes  TGF1
    8 bytes  XXH3-64 of everything after it, big-endian
    4 bytes  length of the header, big-endian
    n bytes  header, MessagePack: FrameHeader
    n bytes  one Arrow IPC stream with one record batch: key binary, value binary

Rows are sorted by key group, then table, then key bytes, and each key occurs once. ``value`` is the
stored value with its flags byte (``sinks/rules/layout.py``): an apply copies it unchanged. The
header's index lists the runs of rows per key group and table.
"""

from __future__ import annotations

import functools
import struct
from typing import Any, NamedTuple

import msgspec

from tidegate.base.decoders import msgpack_decoder
from tidegate.base.extras import pa
from tidegate.errors import CorruptError
from tidegate.wal.record import CHECKSUM_BYTES, UNREADABLE, FrameRef, checksum

MAGIC = b"TGF1"
HEADER_AT = len(MAGIC) + CHECKSUM_BYTES
BODY_AT = HEADER_AT + 4
HEADER_BYTES_MAX = 16 * 1024 * 1024
HEADER_SLOT, COMPRESSION_SLOT = 2, 3
"""Slots in Arrow's flatbuffers (Message.fbs): the header of a Message, the compression of a RecordBatch."""


class FrameHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A frame's own description. The lists have one entry per run, in row order; tables index ``names``."""

    namespace: str
    attempt: str
    names: tuple[str, ...]
    groups: tuple[int, ...]
    tables: tuple[int, ...]
    rows: tuple[int, ...]


class Run(NamedTuple):
    """The changes of one table in one key group, sorted by key: two Arrow binary arrays."""

    group: int
    table: str
    keys: Any
    values: Any


class Chunk(NamedTuple):
    """The unit of an apply: runs of one frame. ``ordinal`` is the frame's number in its version."""

    ordinal: int
    runs: list[Run]


@functools.cache
def schema() -> Any:
    """Return the Arrow schema of a frame's rows."""
    return pa.schema([pa.field(name, pa.binary(), nullable=False) for name in ("key", "value")])


_encoder = msgspec.msgpack.Encoder()
_decoder = msgpack_decoder(FrameHeader)


def encode_frame(header: FrameHeader, keys: Any, values: Any) -> bytes:
    """Encode a frame. ``keys`` and ``values``: Arrow binary arrays of equal length, no nulls."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema()) as writer:
        writer.write_batch(pa.record_batch([keys, values], schema=schema()))
    head = _encoder.encode(header)
    rest = b"".join((struct.pack(">I", len(head)), head, sink.getvalue()))
    return MAGIC + checksum(rest) + rest


def frame_ref(address: str, content: bytes, header: FrameHeader) -> FrameRef:
    """Return the reference to a frame that is durable at ``address``."""
    stamp = content[len(MAGIC) : HEADER_AT].hex()
    return FrameRef(address, len(content), stamp, header.groups, header.tables, header.rows)


def decode_frame(content: bytes, expected: FrameRef, attempt: str, where: str) -> list[Run]:
    """Decode a frame's runs and check them against the manifest's entry ``expected``.

    Raises: CorruptError when length, checksum, attempt or index differ, or the Arrow data is not
    sound; the message names ``where``. Declared sizes are checked before anything is allocated.
    """

    def refuse(why: str) -> CorruptError:
        return CorruptError(f"{where}: {why}; this version cannot be applied from here")

    if len(content) != expected.bytes or len(content) < BODY_AT or content[: len(MAGIC)] != MAGIC:
        raise refuse(f"these {len(content)} bytes are not the frame of {expected.bytes} bytes that was acked")
    stamp = content[len(MAGIC) : HEADER_AT]
    if stamp.hex() != expected.checksum or checksum(memoryview(content)[HEADER_AT:]) != stamp:
        raise refuse("the frame's checksum does not fit")
    (length,) = struct.unpack_from(">I", content, HEADER_AT)
    if length > min(HEADER_BYTES_MAX, len(content) - BODY_AT):
        raise refuse(f"the frame's header claims {length} bytes")
    try:
        header = _decoder.decode(memoryview(content)[BODY_AT : BODY_AT + length])
        batch = _read_batch(pa.py_buffer(content)[BODY_AT + length :])
    except (*UNREADABLE, pa.ArrowException, OSError, MemoryError, struct.error) as error:
        raise refuse(f"the frame cannot be read: {error}") from error
    if header.attempt != attempt:
        raise refuse(f"the frame is of attempt {header.attempt}, not {attempt}")
    if (header.groups, header.tables, header.rows) != (expected.groups, expected.tables, expected.rows):
        raise refuse("the frame's index is not the one that was acked")
    if not _is_index(header):
        raise refuse("the frame's index makes no sense")
    if batch.num_rows != sum(header.rows):
        raise refuse(f"the frame has {batch.num_rows} rows, its index {sum(header.rows)}")
    keys, values = batch.columns
    runs, row = [], 0
    for group, table, rows in zip(header.groups, header.tables, header.rows, strict=True):
        runs.append(Run(group, header.names[table], keys.slice(row, rows), values.slice(row, rows)))
        row += rows
    return runs


def _is_index(header: FrameHeader) -> bool:
    """Return whether the header's lists describe runs: equally long, no run empty, every table named."""
    return (
        len(header.groups) == len(header.tables) == len(header.rows)
        and all(rows > 0 for rows in header.rows)
        and all(0 <= table < len(header.names) for table in header.tables)
    )


def _compressed(body: Any) -> bool:
    """Return whether a record batch of the stream is compressed, by its metadata alone (a flatbuffer)."""
    messages = pa.ipc.MessageReader.open_stream(body)
    return any(
        _has_compression(message.metadata.to_pybytes())
        for message in messages
        if message.type == "record batch"
    )


def _has_compression(metadata: bytes) -> bool:
    def number(form: str, at: int) -> int:
        value: int = struct.unpack_from(form, metadata, at)[0]
        return value

    def field(table: int, slot: int) -> int:
        """Return the offset of a table's field, or 0 when the table does not have it."""
        fields = table - number("<i", table)
        slot_offset = 4 + 2 * slot
        offset = number("<H", fields + slot_offset) if slot_offset < number("<H", fields) else 0
        return table + offset if offset else 0

    header = field(number("<I", 0), HEADER_SLOT)
    return field(header + number("<I", header), COMPRESSION_SLOT) > 0


def _read_batch(body: Any) -> Any:
    if _compressed(body):
        msg = "it is compressed, which frames never are: it may claim any size"
        raise pa.ArrowInvalid(msg)
    with pa.ipc.open_stream(body) as reader:
        if reader.schema != schema():
            msg = f"its schema is {reader.schema}"
            raise pa.ArrowInvalid(msg)
        batch = next(iter(reader), None)
    if batch is None:
        msg = "it holds no rows"
        raise pa.ArrowInvalid(msg)
    batch.validate(full=True)
    if any(column.null_count for column in batch.columns):
        msg = "it holds nulls"
        raise pa.ArrowInvalid(msg)
    return batch
