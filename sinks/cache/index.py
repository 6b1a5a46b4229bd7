"""The indexes of a cache of state: files that name the pieces of one run of a task, by version.

A file is ``TGS2``, XXH3-64 of its own name and of what follows, and an ``Index`` as MessagePack.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import xxhash

from tidegate.base.decoders import msgpack_decoder
from tidegate.errors import CorruptError
from tidegate.sinks.cache.links import Link
from tidegate.sinks.cache.runs import Run
from tidegate.wal.record import UNREADABLE

MAGIC = b"TGS2"
CHECKSUM_BYTES = 8


class TableRuns(msgspec.Struct, frozen=True):
    """The cached runs of one table, the oldest first; ``start`` is the table's start at that time."""

    start: int
    runs: tuple[Run, ...]


class Index(msgspec.Struct, frozen=True):
    """The cached rows of one run of a task at its version, of its key groups."""

    tables: dict[str, TableRuns]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgpack_decoder(Index)


def index_name(link: Link) -> str:
    return f"{link.version}-{link.token}.index"


def version_of(name: str) -> int:
    """Return the version of a file; 0 for a foreign name."""
    number = name.partition("-")[0]
    return int(number) if number.isdecimal() else 0


def write_index(path: Path, index: Index, run: str) -> None:
    """Write a temporary file, then rename it: the index is whole or absent, whichever process is killed."""
    body = _encoder.encode(index)
    fresh = path.with_name(f"{version_of(path.name)}-{run}.new")
    fresh.write_bytes(MAGIC + _checksum(path, body) + body)
    fresh.replace(path)


def read_index(path: Path) -> Index:
    """Read an index. Raises: OSError: it cannot be read. CorruptError: its content is not of this name."""
    content = path.read_bytes()
    start = len(MAGIC) + CHECKSUM_BYTES
    body = content[start:]
    if content[: len(MAGIC)] != MAGIC or _checksum(path, body) != content[len(MAGIC) : start]:
        raise CorruptError(f"{path}: the checksum does not fit")
    try:
        return _decoder.decode(body)
    except UNREADABLE as error:
        raise CorruptError(f"{path}: it cannot be read: {error}") from error


def _checksum(path: Path, body: bytes) -> bytes:
    """Checksum name and content: under another name, a whole file would describe another range or version."""
    return xxhash.xxh3_64_digest(path.name.encode() + b"\n" + body)
