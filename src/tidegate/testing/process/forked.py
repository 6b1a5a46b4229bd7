"""Processes that start in hundredths of a second: forked from one that has imported all that they need."""

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
from importlib.abc import MetaPathFinder
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

_processes = multiprocessing.get_context("forkserver")
_one_looks = threading.Lock()
"""A start polls every process for its exit code, and only the first poll of a process receives it."""
NOT_FOR_US = (signal.SIGINT, signal.SIGTERM)
"""Signals that reach every process of a terminal or a group, and are meant for the one that started them."""
NO_ROOM = 72
"""The exit code after an error of a full disk, of a process that writes files of its own."""
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class WithoutPandas(MetaPathFinder):
    """An import hook that hides pandas from pyarrow.

    The first array would import it, which takes longer than all batches.
    """

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ImportError(fullname)


def preload(*modules: str) -> None:
    """Set the modules that processes need, before the first one is started."""
    _processes.set_forkserver_preload(list(modules))


def begin() -> None:
    """Start the server that forks them, after ``preload``.

    If this is called in the main thread, the processes ignore Ctrl-C from their first moment on, as the
    server does, and not only once they set that themselves.
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
    """Run in a forked process: write its output to a file, and exit with the returned code.

    Ending it is up to the process that started it. Ctrl-C in a terminal, or a SIGTERM to all processes of a
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
    """Arrange SIGKILL for when the parent has ended in any way, even while this process is stopped.

    The kernel sends it when the parent's end of a pipe is closed: nothing of this process has to run then.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    sentinel = parent.sentinel
    if not hasattr(fcntl, "F_SETSIG"):  # only Linux has it; elsewhere a stopped process stays
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
    """A started process: ``work(*args)`` of a module's own function; its output is written to ``output``."""

    def __init__(self, work: Callable[..., int | None], args: tuple[Any, ...], output: Path) -> None:
        self.output = output
        self._process = _processes.Process(target=_child, args=(work, args, str(output)))
        with _one_looks:
            self._process.start()
        self.pid = self._process.pid or 0

    def wait(self, seconds: float) -> bool:
        """Wait for its end; return whether it has ended within this time."""
        ended = multiprocessing.connection.wait([self._process.sentinel], seconds)
        if ended:
            with _one_looks:
                self._process.join()
        return bool(ended)

    def send(self, number: int) -> None:
        """Send a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            if self.exit_code is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, and wait until it is gone; may be repeated."""
        self._process.kill()
        with _one_looks:
            self._process.join()

    @property
    def exit_code(self) -> int | None:
        """The exit code; negative for a signal; None while it runs, or until a caller has awaited its end."""
        return self._process.exitcode
