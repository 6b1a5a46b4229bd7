"""The lock of a file log: an empty file, whose ``flock`` one process has at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
from collections.abc import Generator
from pathlib import Path

from tidegate.base.clock import Clock
from tidegate.base.files import close, open_lock
from tidegate.errors import WalUnavailableError

POLL_FIRST_S, POLL_MOST_S = 0.001, 0.05


class FolderLock:
    """The lock of one log's folder. ``timeout_s`` bounds the wait for other processes of this machine."""

    def __init__(self, path: Path, timeout_s: float, clock: Clock) -> None:
        self._path, self._timeout_s, self._clock = path, timeout_s, clock
        self._jitter = random.Random()

    @contextlib.contextmanager
    def locked(self, *, make: bool = False) -> Generator[None, None, None]:
        """Hold the lock. Raises: WalUnavailableError, not acquired in time; OSError, no lock file."""
        deadline = self._clock.monotonic() + self._timeout_s
        while True:
            fd = open_lock(self._path, make=make)
            try:
                self._wait(fd, deadline)
                # A log that was dropped and created again meanwhile has another lock file.
                if not os.path.samestat(os.fstat(fd), self._path.stat()):
                    continue
                try:
                    yield
                finally:
                    # Closing is not enough: a child that was forked meanwhile would still hold the lock.
                    with contextlib.suppress(OSError):
                        fcntl.flock(fd, fcntl.LOCK_UN)
                return
            finally:
                close(fd)

    def _wait(self, fd: int, deadline: float) -> None:
        pause_s = POLL_FIRST_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if self._clock.monotonic() >= deadline:
                    msg = (
                        f"{self._path} was held by another append for {self._timeout_s:g} s; nothing"
                        " was written; look for a stopped process that writes here"
                    )
                    raise WalUnavailableError(msg) from error
            else:
                return
            self._clock.sleep(pause_s * self._jitter.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, POLL_MOST_S)
