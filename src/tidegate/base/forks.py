"""Locks and forks: a child finds every such lock free, whichever thread of its parent held it (T13)."""

from __future__ import annotations

import os
import threading
import weakref


class Lock:
    """A context manager, for threads of one process. That thread is not in the child, so nobody would ever
    release its lock there. What the lock guards has to be whole at any moment: each change is one assignment.

    A thread may take it again: what it drops unfinished (a scan, which then gives its lease back) may be
    collected while it holds the lock.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self.renew()
        _all.add(self)

    def renew(self) -> None:
        """In a child: nobody holds it."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_all: weakref.WeakSet[Lock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_all):
        lock.renew()


os.register_at_fork(after_in_child=_after_fork)
