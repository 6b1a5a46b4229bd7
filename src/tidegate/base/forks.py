"""Locks and forks: a child finds every such lock free, whichever thread of its parent held it (T13)."""

from __future__ import annotations

import os
import threading
import weakref


class Lock:
    """A reentrant lock for threads of one process, free in a forked child.

    The thread that holds it at a fork does not exist in the child, so nothing would ever release it
    there. The state it guards must be consistent at any moment: each change is one assignment.

    It is reentrant, since an unfinished object of the thread (a scan, which then releases its
    lease) may be garbage-collected while it holds the lock.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self.renew()
        _all.add(self)

    def renew(self) -> None:
        """Replace the lock by a free one, in a child."""
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
