"""Files as the file log uses them: whole reads and writes, syncs of files and folders."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

WINDOW_BYTES = 1024 * 1024


class Window:
    """Reads a file through one buffer; with ``sync``, what was read is durable before it is used."""

    def __init__(self, fd: int, *, sync: bool = False) -> None:
        self._fd, self._sync = fd, sync
        self._start, self._bytes = 0, b""

    def read(self, offset: int, count: int) -> bytes:
        skip = offset - self._start
        if skip < 0 or skip + count > len(self._bytes):
            self._start, skip = offset, 0
            self._bytes = read_at(self._fd, offset, max(count, WINDOW_BYTES))
            if self._sync:
                os.fsync(self._fd)
        return self._bytes[skip : skip + count]


def read_at(fd: int, offset: int, count: int) -> bytes:
    """``count`` bytes at ``offset``, fewer only at the end of the file."""
    piece = os.pread(fd, count, offset)
    if len(piece) == count or not piece:
        return piece
    pieces = [piece]
    while piece and (left := count - sum(map(len, pieces))):
        piece = os.pread(fd, left, offset + count - left)
        pieces.append(piece)
    return b"".join(pieces)


def write_all(fd: int, content: bytes, offset: int | None = None) -> None:
    """Write all of it, at the descriptor's place or at ``offset``; mostly one call."""
    if offset is not None:
        os.lseek(fd, offset, os.SEEK_SET)
    rest = memoryview(content)
    while rest:
        written = os.write(fd, rest)
        if written == 0:
            raise OSError(errno.EIO, "a write of some bytes wrote none")
        rest = rest[written:]


def close(fd: int) -> None:
    """Close it; what counted was synced before, so an error here proves nothing about it."""
    with contextlib.suppress(OSError):
        os.close(fd)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        close(fd)


def make_folder(folder: Path) -> None:
    """Make a folder and what is missing above it, each durable in its parent. FileExistsError: it is none."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():  # else another was quicker
            raise
    sync_folder(folder.parent)


def sync_above(folder: Path) -> None:
    """The folders above are durable in theirs: whoever made one may have died before its sync.

    As far as this user may; those that it may not read were not made by it.
    """
    for above in folder.absolute().parents:
        with contextlib.suppress(OSError):
            sync_folder(above)


def remove_folder(folder: Path) -> bool:
    """Remove a folder and all that is in it; whether it was there."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return False
    return True
