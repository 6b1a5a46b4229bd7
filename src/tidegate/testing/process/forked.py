"""Processes that start in hundredths of a second: forked from one that has imported all they need."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from tidegate.testing.process.driver import WithoutPandas

_processes = multiprocessing.get_context("forkserver")
_one_looks = threading.Lock()
"""A start asks every process for its exit code, and only the first who asks is told."""
NOT_FOR_US = (signal.SIGINT, signal.SIGTERM)
"""They reach every process of a terminal, or of a group, and mean the one that started them."""
NO_ROOM = 72
"""The exit code after an error that says that a disk is full: of who writes files of its own."""
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def preload(*modules: str) -> None:
    """What processes need, before the first one is started."""
    _processes.set_forkserver_preload(list(modules))


def begin() -> None:
    """Start what forks them, behind ``preload``. Called in the main thread, they ignore Ctrl-C from their
    first moment on, as the process that forks them does from its own, and not only once they say so.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in NOT_FOR_US}
    try:
        forkserver.ensure_running()
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _child(work: Callable[..., int | None], args: tuple[Any, ...], output: str) -> None:
    """In a forked process: what it prints goes to a file, what it returns is its exit code.

    Its end is for the process that started it: Ctrl-C in a terminal, or a SIGTERM to all processes of a
    group, reaches it too, and would end it in the middle of cleaning up.
    """
    for number in NOT_FOR_US:
        signal.signal(number, signal.SIG_IGN)
    _die_with_parent()
    fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stdout = sys.stderr = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.meta_path.insert(0, WithoutPandas())
    try:
        sys.exit(work(*args))
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        traceback.print_exc()
        sys.exit(NO_ROOM)


def _die_with_parent() -> None:
    """SIGKILL when the process that started this one has ended, however; also while this one is stopped.

    The kernel sends it when the parent's end of a pipe is closed: nothing of this process has to run then.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    sentinel = parent.sentinel
    if not hasattr(fcntl, "F_SETSIG"):  # Linux alone has it; elsewhere one that is stopped stays
        threading.Thread(target=_die_behind, args=(sentinel,), daemon=True).start()
        return
    fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sentinel, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    if multiprocessing.connection.wait([sentinel], 0):  # it had ended before that
        os.kill(os.getpid(), signal.SIGKILL)


def _die_behind(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os.kill(os.getpid(), signal.SIGKILL)


class Forked:
    """A process, started: ``work(*args)`` of a module's own function; its output goes to ``output``."""

    def __init__(self, work: Callable[..., int | None], args: tuple[Any, ...], output: Path) -> None:
        self.output = output
        self._process = _processes.Process(target=_child, args=(work, args, str(output)))
        with _one_looks:
            self._process.start()
        self.pid = self._process.pid or 0

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, or does so within this time."""
        ended = multiprocessing.connection.wait([self._process.sentinel], seconds)
        if ended:
            with _one_looks:
                self._process.join()
        return bool(ended)

    def send(self, number: int) -> None:
        """A signal, when it still runs."""
        with contextlib.suppress(ProcessLookupError):
            if self.exit_code is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone; may be repeated."""
        self._process.kill()
        with _one_looks:
            self._process.join()

    @property
    def exit_code(self) -> int | None:
        """Negative for a signal; None while it runs, or until somebody has waited for its end."""
        return self._process.exitcode
