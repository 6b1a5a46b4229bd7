"""The connections to SQLite files that no thread uses, and the number that threads use at one time.

A connection has two descriptors and a page cache. So a file keeps ``IDLE_MAX`` of them, and a process
``idle_in_process``: the files of the least recent use are closed first. While a thread uses a file of the
namespace, each keeps up to ``LENT_MAX``: threads would open again what others have just closed.

No lock is held here when another thread forks: a deque's append and pop need none, and a child makes
its own semaphores.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import itertools
import os
import queue
import resource
import sqlite3
import weakref
from pathlib import Path

from tidegate.base import forks

IDLE_MAX = 2
"""Idle connections to one file that an instance keeps when no thread uses any of its files."""
LENT_MAX = 8
"""Connections to one file that an instance uses at one time. SQLite keeps the descriptor of a closed
connection until the process has no other connection to the file.
"""
LENT_WAIT_S = 1.0
"""The wait for one of them. Then one more is opened: the others may all wait for another process."""
DESCRIPTORS = 3
"""The descriptors of a file with one connection: the file, its ``-wal``, its ``-shm``."""
IDLE_IN_PROCESS_MAX = 2_000
"""Idle connections of a process without a limit of descriptors, or with a large one."""

_numbers = itertools.count()
_instances: weakref.WeakValueDictionary[int, Connections] = weakref.WeakValueDictionary()


def idle_in_process() -> int:
    """Return the number of idle connections that a process keeps: half of its descriptors are theirs."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = allowed == resource.RLIM_INFINITY
    return IDLE_IN_PROCESS_MAX if unlimited else min(IDLE_IN_PROCESS_MAX, allowed // (2 * DESCRIPTORS))


class Connection(sqlite3.Connection):
    """A connection. ``inode`` is its file's: as long as it is open no other file has that."""

    inode = 0


class _File:
    """The idle connections of one file, and the permits to use others."""

    def __init__(self) -> None:
        self.idle: collections.deque[Connection] = collections.deque()
        self.permits: queue.SimpleQueue[None] = queue.SimpleQueue()
        """A permit for each connection that may be lent; a queue in C costs less than a semaphore."""
        for _ in range(LENT_MAX):
            self.permits.put(None)

    def close_above(self, count: int) -> None:
        """Close the idle connections above this number; other threads may take or close some meanwhile."""
        with contextlib.suppress(IndexError):
            while len(self.idle) > count:
                self.idle.pop().close()


class Connections:
    """The connections of one namespace's files, by file."""

    def __init__(self, folder: Path) -> None:
        self._prefix = f"{folder}/"
        self._files: dict[str, _File] = {}
        self._users: collections.deque[None] = collections.deque()
        """An entry for each thread that uses a file or waits for one."""
        self._has_surplus = False
        self._last_use = next(_numbers)
        _instances[self._last_use] = self

    @property
    def last_use(self) -> int:
        """The number of the latest use in this process: a larger one is later."""
        return self._last_use

    @property
    def idle(self) -> int:
        """The number of connections that no thread uses."""
        return sum(len(file.idle) for file in list(self._files.values()))

    def enter(self, name: str) -> bool:
        """Wait while threads use ``LENT_MAX`` connections to the file, ``LENT_WAIT_S`` at most.

        False: the wait ended by its deadline. ``leave`` follows, with this answer.
        """
        self._users.append(None)
        try:
            self._file(name).permits.get(timeout=LENT_WAIT_S)
        except queue.Empty:
            return False
        except BaseException:
            self._end_use()
            raise
        return True

    def leave(self, name: str, *, permitted: bool) -> None:
        """End what ``enter`` began.

        The last thread that leaves the namespace closes all idle connections but ``IDLE_MAX`` a file.
        """
        try:
            if permitted:
                self._file(name).permits.put(None)
        finally:
            self._end_use()

    def _end_use(self) -> None:
        if self._users:  # none in a fork, which forgets its parent's
            self._users.pop()
        if self._has_surplus and not self._users:
            self._has_surplus = False  # before the closing: a thread that enters meanwhile sets it again
            self._close_above(IDLE_MAX)

    def take(self, name: str) -> Connection | None:
        """Return an idle connection to the file, which is the caller's from now on.

        If another file has the name by now, all are closed: their folder was removed, or a copy was put in
        its place. Those that threads use meanwhile are compared when they are taken again.
        """
        self._last_use = next(_numbers)
        try:
            connection = self._file(name).idle.pop()
        except IndexError:
            return None
        if connection.inode != self.inode_of(name):
            connection.close()
            self.close()
            return None
        return connection

    def inode_of(self, name: str) -> int:
        """Return the number of the file that has this name now; 0: none has."""
        try:
            return os.stat(self._prefix + name).st_ino  # noqa: PTH116 - at each use
        except OSError:
            return 0

    def give_back(self, name: str, connection: Connection) -> None:
        """Keep the connection for the next thread, or close it."""
        idle = self._file(name).idle
        if len(idle) < LENT_MAX:
            idle.append(connection)
            if len(idle) > IDLE_MAX:
                self._has_surplus = True
        else:
            connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        with forks.IN_LIBRARY:
            self._close_above(0)

    def leave_to_parent(self) -> None:
        """Abandon the parent's connections in a child process, without ever freeing them.

        SQLite forbids their use here; closing one, by hand or by garbage collection, could empty
        and remove the ``-wal`` file under the parent.
        """
        for file in self._files.values():
            for connection in file.idle:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        self._files, self._users = {}, collections.deque()

    def _close_above(self, count: int) -> None:
        for file in list(self._files.values()):
            file.close_above(count)

    def _file(self, name: str) -> _File:
        file = self._files.get(name)
        return self._files.setdefault(name, _File()) if file is None else file


def _all_instances() -> list[Connections]:
    # ``valuerefs`` is one step of the interpreter: other threads add instances meanwhile.
    references = _instances.valuerefs()
    return [instance for reference in references if (instance := reference()) is not None]


def close_unused() -> None:
    """Make room for one more connection: close those of the instances of the least recent use."""
    instances, most = _all_instances(), idle_in_process()
    idle = sum(instance.idle for instance in instances)
    for instance in sorted(instances, key=lambda instance: instance.last_use):
        if idle < most:
            return
        idle -= instance.idle
        instance.close()


@forks.in_child
def _after_fork() -> None:
    for instance in _all_instances():
        instance.leave_to_parent()
