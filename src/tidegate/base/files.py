"""Files as the file log uses them: whole reads and writes, syncs of files and folders."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
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


def create(path: Path, flags: int) -> int:
    """Make a file and open it. In a folder of ours, mode 0700, it has mode 0600, whatever the umask.

    In a folder that was opened to a group alone the group has the same rights in the file, too.
    In any other folder the umask holds. FileExistsError: it is there.
    """
    mode = stat.S_IMODE(path.parent.stat().st_mode) & 0o666
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    if mode & 0o060 and not mode & 0o006:
        os.fchmod(fd, mode)
    return fd


def open_lock(path: Path, *, make: bool) -> int:
    """Open the file of a lock, made if need be. FileNotFoundError: it is not there.

    A descriptor of its own for each call: flock then excludes threads too, not only processes.
    """
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):  # another was quicker
        return create(path, os.O_RDONLY)
    return os.open(path, os.O_RDONLY)


def others_may_read(folder: Path) -> bool:
    """Whether every user of this machine may, as far as the folder itself says."""
    return bool(stat.S_IMODE(folder.stat().st_mode) & 0o007)


def make_folder(folder: Path) -> None:
    """Make a folder and what is missing above it, each durable in its parent and for this user alone.
    FileExistsError: it is none.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        folder.mkdir(mode=0o700)
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
