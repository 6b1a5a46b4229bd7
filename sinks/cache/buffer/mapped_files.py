"""Files of the buffer on one path: written once, read through memory maps, removed.

A view never shows other bytes, for this reason. It is a slice of a memory map, and the map was made
while its file was locked (shared). The kernel keeps that lock for as long as the map exists,
through a crash and in every process. So:

- bytes that were never used (a file's new end) are written without a lock;
- space that was used before is written only under the exclusive lock, which is available only while
  no process has a map of the file;
- a file is removed at any time: existing maps keep their content.

Writing uses ``write``, not the map, so a full disk is an error and not a signal.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import xxhash

from tidegate.base.local_dir import LocalDir
from tidegate.errors import CorruptError
from tidegate.sinks.cache.buffer.note import Tier

WHAT = "buffer"
"""The buffer's folder inside the namespace's, with the host's id as a suffix where hosts may share it."""
VECTORS_MAX = 512
"""Chunks in one write; Linux takes 1,024."""
PIECE_BYTES = 1024 * 1024
TRIES = 5
"""How often a folder is made again when another process removes it at the same moment."""
HEADROOM_BYTES = 1024 * 1024
"""The bytes left free on a path, for notes."""


class BusyError(CorruptError):
    """Another process is writing into the file, and its content is unknown until it has finished."""


class MappedFiles:
    """One path of a tier: a folder for each unit, files in it.

    Raises: OSError for the state of the path; the caller reports it to ``local.failed``.
    """

    def __init__(self, local: LocalDir, tier: Tier, host: str = "") -> None:
        self.local = local
        self.suffix = f".{tier}"  # both tiers may be in one folder
        self._what = f"{WHAT}-{host}" if host else WHAT
        self.folder = local.path / "shared" / self._what
        self._maps: weakref.WeakValueDictionary[Path, mmap.mmap] = weakref.WeakValueDictionary()

    def usable(self) -> bool:
        """Return whether the path is writable now; a missing folder is created."""
        return self.local.shared(self._what) is not None

    def unit_folder(self, unit: str) -> Path:
        return self.folder / "units" / unit

    def path(self, unit: str, name: str) -> Path:
        return self.unit_folder(unit) / name

    def has_room(self, size: int) -> bool:
        """Return whether the file system reports room; it may still refuse (quotas, other writers)."""
        space = os.statvfs(self.folder)
        return space.f_bavail * space.f_frsize >= size + HEADROOM_BYTES

    def lengths(self, unit: str) -> dict[str, int]:
        """Return the unit's files and their lengths, oldest name first; empty when there is no folder."""
        try:
            with os.scandir(self.unit_folder(unit)) as entries:
                sizes = {
                    entry.name: entry.stat().st_size for entry in entries if entry.name.endswith(self.suffix)
                }
        except FileNotFoundError:
            return {}
        return dict(sorted(sizes.items()))

    def used_bytes(self) -> int:
        """Return the bytes of all files of all units."""
        total = 0
        for unit in self.units():
            with contextlib.suppress(OSError):  # removed meanwhile
                total += sum(self.lengths(unit).values())
        return total

    def units(self) -> list[str]:
        """Return the units that have a folder here."""
        try:
            return sorted(path.name for path in (self.folder / "units").iterdir())
        except FileNotFoundError:
            return []

    # -- writing ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def for_reuse(self, unit: str, name: str) -> Iterator[bool]:
        """Lock the file against new maps; yield False if some process has it mapped."""
        with _opened(self.path(unit, name), os.O_RDWR) as fd:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def make(self, unit: str, name: str) -> None:
        """Create an empty file, and the unit's folder."""
        path = self.path(unit, name)
        for left in reversed(range(TRIES)):
            make_folder(path.parent)
            try:
                with _opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL):
                    return
            except FileNotFoundError:
                if not left:
                    raise

    def grow(self, unit: str, name: str, length: int) -> None:
        """Extend a file. The new part takes no disk space until it is written."""
        os.truncate(self.path(unit, name), length)

    def write(self, unit: str, name: str, offset: int, chunks: Sequence[memoryview]) -> None:
        """Write the chunks at the offset, one after the other."""
        with _opened(self.path(unit, name), os.O_RDWR) as fd:
            for first in range(0, len(chunks), VECTORS_MAX):
                offset = _write_vector(fd, list(chunks[first : first + VECTORS_MAX]), offset)

    def cut(self, unit: str, name: str, length: int) -> None:
        """Cut off the part that a failed write added at a file's end. No process has a map of that part."""
        with contextlib.suppress(OSError):
            os.truncate(self.path(unit, name), length)

    def remove(self, unit: str, name: str) -> None:
        """Remove the file; views of it are unaffected. Repeatable."""
        self.path(unit, name).unlink(missing_ok=True)

    def remove_folder(self, unit: str) -> None:
        """Remove the unit's folder if it is empty."""
        with contextlib.suppress(OSError):
            self.unit_folder(unit).rmdir()

    # -- reading ----------------------------------------------------------------------------------

    def checksum(self, unit: str, name: str, offset: int, size: int) -> int:
        """Compute the checksum with reads: a disk error is then an exception, not a signal."""
        summed, end = xxhash.xxh3_64(), offset + size
        with _opened(self.path(unit, name), os.O_RDONLY) as fd:
            while offset < end:
                piece = os.pread(fd, min(PIECE_BYTES, end - offset), offset)
                if not piece:
                    raise EOFError(f"the file ends at byte {offset}")
                summed.update(piece)
                offset += len(piece)
        return summed.intdigest()

    def view(self, unit: str, name: str, offset: int, size: int) -> pa.Buffer:
        """Return these bytes of the file, without a copy.

        Each process has one map of a whole file, for as long as there is a view of it. Raises:
        CorruptError: the file is too short. BusyError: another process writes into it.
        """
        path = self.path(unit, name)
        mapped = self._maps.get(path)
        if mapped is None or len(mapped) < offset + size:
            mapped = self._map(path, offset + size)
            self._maps[path] = mapped
        return pa.py_buffer(memoryview(mapped)[offset : offset + size])

    def _map(self, path: Path, size_min: int) -> mmap.mmap:
        with _opened(path, os.O_RDONLY) as fd:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(f"{path}: another process writes into it") from None
            length = os.fstat(fd).st_size
            if length < size_min:
                raise CorruptError(f"{path}: {size_min} bytes were written, there are {length}")
            return mmap.mmap(fd, length, access=mmap.ACCESS_READ)


def make_folder(path: Path) -> None:
    """Create a unit's folder. It may be missing afterwards: the end of another claim removes an empty one."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:  # it was there, and is not any more; or a file is in the way
        if os.path.lexists(path):
            raise


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _write_vector(fd: int, chunks: list[memoryview], offset: int) -> int:
    """Write all chunks; return the offset after them."""
    while chunks:
        written = os.pwritev(fd, chunks, offset)
        if written == 0:
            raise OSError(errno.EIO, "a write of some bytes wrote none")
        offset += written
        while chunks and written >= len(chunks[0]):
            written -= len(chunks.pop(0))
        if written:
            chunks[0] = chunks[0][written:]
    return offset


@contextlib.contextmanager
def warn_once(local: LocalDir) -> Iterator[None]:
    """End the block at an OSError and warn once: the buffer is never needed."""
    try:
        yield
    except OSError as error:
        local.failed(error)
