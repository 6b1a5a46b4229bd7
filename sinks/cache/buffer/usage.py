"""The size of a buffer's files: one count for all processes of the host.

A file of two numbers, read and changed under its lock, so that a limit holds at every moment. A
process that is killed between counting and writing leaves the count too high; ``recount`` corrects
it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tidegate.base.files import lock_within
from tidegate.sinks.cache.buffer.note import Tier

WAIT_S = 5.0
"""A lock is held for microseconds; a process that has it longer was stopped."""
POLL_S = 0.001
_FORMAT = struct.Struct("<qq")


class Used(NamedTuple):
    """Bytes of all files, per tier."""

    memory: int = 0
    disk: int = 0

    def of(self, tier: Tier) -> int:
        return self.memory if tier == "memory" else self.disk

    def plus(self, tier: Tier, size: int) -> Used:
        if tier == "memory":
            return self._replace(memory=max(0, self.memory + size))
        return self._replace(disk=max(0, self.disk + size))


@contextlib.contextmanager
def locked(path: Path, wait_s: float = WAIT_S) -> Iterator[int]:
    """Lock the file, created when missing, exclusively. Raises: OSError(EBUSY), not acquired in time."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not lock_within(fd, wait_s, POLL_S):
            raise OSError(errno.EBUSY, "another process holds the lock", str(path))
        yield fd
    finally:
        os.close(fd)


class Usage:
    """The count in one file. Raises: OSError from all methods, the file's folder cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Used:
        try:
            return _parse(self._path.read_bytes())
        except FileNotFoundError:
            return Used()

    def reserve(self, tier: Tier, size: int, limit: int, grow: Callable[[], None]) -> bool:
        """Count ``size`` bytes more and extend their file, in one step for a recount. False: over
        the limit.
        """
        if size == 0:
            return True
        with locked(self._path) as fd:
            used = _parse(os.pread(fd, _FORMAT.size, 0))
            if used.of(tier) + size > limit:
                return False
            os.pwrite(fd, _FORMAT.pack(*used.plus(tier, size)), 0)
            grow()
            return True

    def give_back(self, tier: Tier, size: int, shrink: Callable[[], None]) -> None:
        """Shorten a file by ``size`` bytes, or remove it, and stop counting them, in one step."""
        if size == 0:
            shrink()
        else:
            with locked(self._path) as fd:
                shrink()
                used = _parse(os.pread(fd, _FORMAT.size, 0))
                os.pwrite(fd, _FORMAT.pack(*used.plus(tier, -size)), 0)

    def recount(self, measure: Callable[[], Used]) -> Used:
        """Set the count to what ``measure`` returns. No process reserves meanwhile."""
        with locked(self._path) as fd:
            used = measure()
            os.pwrite(fd, _FORMAT.pack(*used), 0)
            return used


def _parse(content: bytes) -> Used:
    return Used(*_FORMAT.unpack(content)) if len(content) == _FORMAT.size else Used()
