"""Locks and forks: a child finds every such lock free, whichever thread of its parent held it (T13).

Python calls ``notice`` in a child that ``os.fork`` made. A server that forks by itself, in C, may not, as
uWSGI by default: so each use of something that a child does not have calls it, too.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

BRIEF_S = 2.0
BEFORE_FORK_S = 5.0
"""The longest wait of a fork for threads inside of a library."""
NOTICE_S = 5.0
"""The longest wait for another thread of a child that has noticed the fork first."""

Hook = TypeVar("Hook", bound=Callable[[], None])


class Lock(type(threading.RLock())):  # type: ignore[misc] # its class has no public name
    """A reentrant lock for threads of one process, free in a forked child.

    The thread that holds it at a fork does not exist in the child, so nothing would ever release it
    there. The state it guards must be consistent at any moment: each change is one assignment.

    It is reentrant, since an unfinished object of the thread (a scan, which then releases its
    lease) may be garbage-collected while it holds the lock. Its ``with`` is that of C, which no signal
    interrupts between the acquisition and the block.
    """

    def __init__(self) -> None:
        super().__init__()
        _all.add(self)

    def renew(self) -> None:
        """Free the lock, in a child."""
        self._at_fork_reinit()


class BriefLock:
    """A ``Lock`` for a few assignments: its holder that takes longer than ``BRIEF_S`` was interrupted in it.

    An exception may end a call at any line, also between the acquisition and the block: the lock is replaced.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=BRIEF_S):
            self._lock = Lock()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # it was replaced, as this process stood still
            self._lock.release()


class NoFork:
    """A region of code of a library that has locks of its own, such as SQLite: no thread forks meanwhile.

    A lock that another thread holds at a fork stays held in the child, where nobody can free it. So a fork
    waits, at most ``BEFORE_FORK_S``, until the other threads have left the region; they wait at its entry
    until it is done. A server that forks by itself, in C, does not wait.
    """

    def __init__(self) -> None:
        self._depths: dict[int, int] = {}
        """By thread, for those that are inside."""
        self._forking = 0
        """The thread that forks; 0: none."""
        self._done = threading.Event()
        os.register_at_fork(
            before=self._before, after_in_parent=self._after, after_in_child=self._after_in_child
        )

    def __enter__(self) -> None:
        me = threading.get_ident()
        depth = self._depths.get(me, 0)
        self._depths[me] = depth + 1  # before the look: the thread that forks does both the other way round
        while self._forking not in (0, me) and not depth:
            del self._depths[me]
            self._done.wait(BEFORE_FORK_S)
            self._depths[me] = 1

    def __exit__(self, *_: object) -> None:
        me = threading.get_ident()
        if (depth := self._depths.pop(me, 0)) > 1:
            self._depths[me] = depth - 1

    def _before(self) -> None:
        me, end = threading.get_ident(), time.monotonic() + BEFORE_FORK_S
        while self._forking and time.monotonic() < end:
            self._done.wait(0.001)
        self._done.clear()
        self._forking = me
        while self._others(me) and time.monotonic() < end:
            time.sleep(0.0005)

    def _others(self, me: int) -> bool:
        inside = {*self._depths} - {me}
        return bool(inside) and not inside.isdisjoint(each.ident for each in threading.enumerate())

    def _after(self) -> None:
        self._forking = 0
        self._done.set()

    def _after_in_child(self) -> None:
        me = threading.get_ident()
        self._depths = {me: depth} if (depth := self._depths.get(me)) else {}
        self._done = threading.Event()
        self._after()


IN_LIBRARY = NoFork()
"""Around each use of SQLite, whose memory and page cache have locks, and around imports at first use."""


class _Process:
    """The process that has called the hooks."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.noticing = threading.Lock()
        self.hooks: list[Callable[[], None]] = []


_all: weakref.WeakSet[Lock] = weakref.WeakSet()
_process = _Process()


def in_child(hook: Hook) -> Hook:
    """Call ``hook`` in each child before anything of its parent's is used there. It must be repeatable."""
    _process.hooks.append(hook)
    return hook


def notice() -> None:
    """Call the hooks if this process is a child that has not yet called them."""
    if _process.pid != os.getpid():
        is_mine = _process.noticing.acquire(timeout=NOTICE_S)
        try:
            if _process.pid != os.getpid():
                for hook in _process.hooks:
                    hook()
                _process.pid = os.getpid()
        finally:
            if is_mine:
                _process.noticing.release()


@in_child
def _renew_locks() -> None:
    for lock in list(_all):
        lock.renew()


def _after_fork() -> None:
    _process.noticing = threading.Lock()
    notice()


os.register_at_fork(after_in_child=_after_fork)
