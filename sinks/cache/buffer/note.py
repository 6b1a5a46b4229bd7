"""What the buffer knows of a unit: its segments, its account, and what the caller keeps beside them.

A **unit** is what its caller writes, moves and drops as one: the data of a key group, or of several. A
**segment** names bytes that were written into a file of the buffer and never change. A **note** is
all that is kept of one unit; it is the only index, so what no note names is free space. Its
bytes: ``TGBN1``, 8 bytes of XXH3-64, then MessagePack.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
import xxhash

from tidegate.base.decoders import msgpack_decoder

MAGIC = b"TGBN1"
HEAD_BYTES = len(MAGIC) + 8

Tier: TypeAlias = Literal["memory", "disk"]
"""Where bytes lie: in files of a memory file system, or in files on a disk. Never in both."""


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that were written: so many at ``offset`` of ``file``, in the tier's path number ``path``."""

    tier: Tier
    path: int
    file: str
    offset: int
    bytes: int
    checksum: int
    """XXH3-64 of the bytes."""


class UnitStats(msgspec.Struct, frozen=True, array_like=True):
    """What one unit takes up, and how often it is asked for."""

    memory_bytes: int = 0
    disk_bytes: int = 0
    rate: float = 0.0
    """Requests per batch, exponentially weighted, as of ``batch``."""
    batch: int = 0


class UnitManifest(msgspec.Struct, frozen=True, array_like=True):
    """All that is kept of one unit."""

    account: UnitStats = UnitStats()
    segments: tuple[Segment, ...] = ()
    """In the caller's order."""
    caller: bytes = b""
    """The caller's own: what the segments are valid for. Opaque here."""
    groups: tuple[int, int] = (0, 0)
    """The key groups that it has data of: the first, and the one behind the last."""


EMPTY = UnitManifest()


def encode_note(note: UnitManifest) -> bytes:
    body = msgspec.msgpack.encode(note)
    return MAGIC + xxhash.xxh3_64_digest(body) + body


def decode_note(content: bytes) -> UnitManifest | None:
    """The note, or None when the bytes are not what was written: the unit is then an empty one."""
    body = content[HEAD_BYTES:]
    if content[:HEAD_BYTES] != MAGIC + xxhash.xxh3_64_digest(body):
        return None
    try:
        return msgpack_decoder(UnitManifest).decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
