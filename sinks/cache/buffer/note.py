"""The manifest of a unit of the buffer: its segments, their sizes, its key groups, and the caller's bytes.

A **unit** is written, moved and dropped as a whole by its caller: the data of a key group, or of
several. A **segment** names bytes that were written into a file of the buffer and never change. A
**note** is the whole record of one unit. It is the only index, so space that no note names is free.
Its bytes: ``TGBN1``, 8 bytes of XXH3-64, then MessagePack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
import xxhash

from tidegate.base.decoders import msgpack_decoder

MAGIC = b"TGBN1"
HEAD_BYTES = len(MAGIC) + 8

Tier: TypeAlias = Literal["memory", "disk"]
"""The location of bytes: files of a memory file system, or files on a disk. Never both."""


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Written bytes: ``bytes`` of them at ``offset`` of ``file``, in the tier's path number ``path``."""

    tier: Tier
    path: int
    file: str
    offset: int
    bytes: int
    checksum: int
    """XXH3-64 of the bytes."""


class UnitStats(msgspec.Struct, frozen=True, array_like=True):
    """The size of one unit in each tier."""

    memory_bytes: int = 0
    disk_bytes: int = 0

    def of(self, tier: Tier) -> int:
        return self.memory_bytes if tier == "memory" else self.disk_bytes

    @classmethod
    def of_segments(cls, segments: Sequence[Segment]) -> UnitStats:
        sizes = {"memory": 0, "disk": 0}
        for segment in segments:
            sizes[segment.tier] += segment.bytes
        return cls(sizes["memory"], sizes["disk"])


class UnitManifest(msgspec.Struct, frozen=True, array_like=True):
    """The whole record of one unit."""

    account: UnitStats = UnitStats()
    segments: tuple[Segment, ...] = ()
    """In the caller's order."""
    caller: bytes = b""
    """The caller's own bytes: what the segments are valid for. Opaque here."""
    groups: tuple[int, int] = (0, 0)
    """The key groups of its data: the first, and the one after the last."""


EMPTY = UnitManifest()


def encode_note(note: UnitManifest) -> bytes:
    body = msgspec.msgpack.encode(note)
    return MAGIC + xxhash.xxh3_64_digest(body) + body


def decode_note(content: bytes) -> UnitManifest | None:
    """Decode a note; None when the bytes are damaged: the unit counts as empty then."""
    body = content[HEAD_BYTES:]
    if content[:HEAD_BYTES] != MAGIC + xxhash.xxh3_64_digest(body):
        return None
    try:
        return msgpack_decoder(UnitManifest).decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
