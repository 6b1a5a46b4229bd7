"""The bytes of the file log (published in docs/storage-format.md). This module does no I/O.

``decisions.log`` starts with 21 bytes, followed by one frame per record::

    4 bytes  TGDL
    1 byte   format, 1
    8 bytes  base: the position of the file's first byte, big-endian
    8 bytes  XXH3-64 of the 13 bytes before it, big-endian

``changelog/<segment>.seg`` starts with ``TGSG`` and the format byte, followed by one frame per
blob. A frame::

    4 bytes  length n of the content, big-endian
    4 bytes  XXH32 of these 4 bytes, big-endian
    8 bytes  XXH3-64 of the content, big-endian
    n bytes  content
    1 byte   line feed

The length has its own checksum so that a damaged length is never mistaken for a record that was cut
short. The line feed is there because it is not zero: a file that was extended but never written
ends in zeros, and a frame never does. So a **torn** tail (an append that did not finish) differs from
**damage** (bytes that were whole once).

Disks write sectors in any order, so a power cut may keep the end of an append and lose its front.
The last frame of a file is therefore also torn when a whole sector of it is zeros (etcd's rule: its
``isTornEntry``). Each append is synced before the next, so only the last frame can be torn.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Generator
from itertools import pairwise
from typing import NamedTuple

import xxhash

from tidegate.errors import ConfigError, CorruptError
from tidegate.wal.log import RECORD_BYTES_MAX
from tidegate.wal.record import checksum

FORMAT = 1
DECISIONS_MAGIC = b"TGDL"
SEGMENT_HEADER = b"TGSG" + bytes([FORMAT])
HEADER_BYTES = 21
PREFIX_BYTES = 16
END = b"\n"
FRAME_EXTRA_BYTES = PREFIX_BYTES + len(END)
LENGTH_MAX = 2**32 - 1
SECTOR_BYTES = 512
"""The unit that disks write whole or not at all. A larger physical sector is several of these."""

SEGMENT = re.compile(r"[a-z0-9-]{1,200}")
ADDRESS = re.compile(r"([a-z0-9-]{1,200}):(\d{1,18}):(\d{1,10})", re.ASCII)


class Address(NamedTuple):
    """A blob's location: its segment, its frame's offset there, its content's length."""

    segment: str
    offset: int
    length: int

    def __str__(self) -> str:
        return f"{self.segment}:{self.offset}:{self.length}"


class Damage(Exception):  # noqa: N818 - a finding; code that knows the file turns it into CorruptError
    """Bytes at ``offset`` that were whole once and are not any more."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"at byte {offset}: {why}")
        self.offset = offset


def parse_address(text: str, where: str) -> Address:
    """Parse an address. Raises: CorruptError when this log never returned such an address."""
    match = ADDRESS.fullmatch(text)
    if match is None or str(address := Address(match[1], int(match[2]), int(match[3]))) != text:
        msg = f"{where}: {text!r} is not an address of this log"
        raise CorruptError(msg)
    return address


def decisions_header(base: int) -> bytes:
    head = DECISIONS_MAGIC + struct.pack(">BQ", FORMAT, base)
    return head + checksum(head)


def parse_decisions_header(head: bytes, where: str) -> int:
    """Return the base position. Raises: CorruptError, not a header; ConfigError, a newer format."""
    if len(head) != HEADER_BYTES or head[:4] != DECISIONS_MAGIC:
        msg = f"{where}: the file does not start as a decision log does ({head[:8]!r})"
        raise CorruptError(msg)
    if checksum(head[:13]) != head[13:]:
        msg = f"{where}: the checksum of the file's header does not fit"
        raise CorruptError(msg)
    file_format, base = struct.unpack_from(">BQ", head, 4)
    if file_format != FORMAT:
        msg = f"{where}: file format {file_format} is not known to this release; upgrade tidegate"
        raise ConfigError(msg)
    return int(base)


def frame_prefix(content: bytes) -> bytes:
    """Return the bytes that precede the content in a frame."""
    length = struct.pack(">I", len(content))
    return length + xxhash.xxh32_digest(length) + checksum(content)


def frame_length(prefix: bytes) -> int | None:
    """Return the content's length, or None when the length's own checksum does not fit."""
    if xxhash.xxh32_digest(prefix[:4]) != prefix[4:8]:
        return None
    return int.from_bytes(prefix[:4], "big")


def frame_content(frame: bytes) -> bytes | None:
    """Return the content of a whole frame, or None when its checksum or its last byte does not fit."""
    content = frame[PREFIX_BYTES:-1]
    return content if frame[-1:] == END and checksum(content) == frame[8:PREFIX_BYTES] else None


Read = Callable[[int, int], bytes]
"""``read(offset, count)`` returns ``count`` bytes, fewer only at the end of the file."""


def scan(read: Read, start: int, end: int) -> Generator[tuple[int, int, bytes], None, int]:
    """Yield the whole frames in [start, end): offset, next offset, content. Return where they stop.

    The return value is ``end``, or the offset of a torn tail: a frame cut short, zeros up to the
    end, or a last frame that lacks a sector.

    Raises: Damage for a frame of full length that does not fit its checksum, and for any other
    misfit that is followed by more bytes.
    """
    pos = start
    while pos < end:
        prefix = read(pos, min(PREFIX_BYTES, end - pos))
        if len(prefix) < 8:
            return pos
        length = frame_length(prefix)
        if length is None:
            # Eight bytes of a prefix are there: only zeros that start inside them are a torn tail.
            if _zeros(read, pos + 7, end) or _lacks_its_prefix(read, pos, end):
                return pos
            raise Damage(pos, "the length of a record does not fit its checksum")
        if length > RECORD_BYTES_MAX:
            raise Damage(pos, f"a record claims {length} bytes, {RECORD_BYTES_MAX} are the most")
        following = pos + FRAME_EXTRA_BYTES + length
        if following > end:
            return pos
        frame = read(pos, following - pos)
        if len(frame) < following - pos:
            return pos
        content = frame_content(frame)
        if content is None:
            if _zeros(read, following - 1, end) or (following == end and _lacks_a_sector(frame[8:], pos + 8)):
                return pos
            raise Damage(pos, f"a record of {length} bytes does not fit its checksum")
        yield pos, following, content
        pos = following
    return pos


def _lacks_a_sector(piece: bytes, at: int) -> bool:
    """Return whether any sector under these bytes, which are at offset ``at``, is all zeros."""
    first = SECTOR_BYTES - at % SECTOR_BYTES
    starts = [0, *range(first, len(piece), SECTOR_BYTES)]
    return any(not any(piece[a:b]) for a, b in pairwise([*starts, len(piece)]))


def _lacks_its_prefix(read: Read, at: int, end: int) -> bool:
    """Return whether [at, end) is a last frame without the sector of its prefix, so of unknown length.

    The bytes of the length field do not count: its first ones are zeros in a whole frame, too. No frame is
    longer than the longest record's.
    """
    if end - at > FRAME_EXTRA_BYTES + RECORD_BYTES_MAX:
        return False
    to_boundary = SECTOR_BYTES - at % SECTOR_BYTES
    reaches = to_boundary if to_boundary >= PREFIX_BYTES else to_boundary + SECTOR_BYTES
    front = read(at, min(reaches, end - at))
    return _lacks_a_sector(front[4:], at + 4) and not _holds_a_frame(read(at, end - at))


def _holds_a_frame(tail: bytes) -> bool:
    """Return whether a whole frame starts anywhere after the first byte: the first is not the last then.

    A length begins with a zero.
    """
    start, last = 0, len(tail) - FRAME_EXTRA_BYTES
    while 0 <= (start := tail.find(b"\0", start + 1)) <= last:
        length = frame_length(tail[start : start + PREFIX_BYTES])
        if length is not None:
            frame = tail[start : start + FRAME_EXTRA_BYTES + length]
            if len(frame) == FRAME_EXTRA_BYTES + length and frame_content(frame) is not None:
                return True
    return False


def _zeros(read: Read, start: int, end: int) -> bool:
    """Return whether [start, end) is not empty and all zeros."""
    piece_bytes = 64 * 1024
    return start < end and not any(
        any(read(offset, min(piece_bytes, end - offset))) for offset in range(start, end, piece_bytes)
    )
