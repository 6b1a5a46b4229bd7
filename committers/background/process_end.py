"""The end of the process: what is open is closed first, at a normal end and at SIGTERM.

A SIGKILL runs nothing of this, so a killed writer counts as running until its heartbeat is 30 s old.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

SIGTERM_S = 10.0
"""The time in which all that is open is closed after a SIGTERM."""

_closers: dict[Callable[[], None], int] = {}
"""The functions to call, oldest first, and the process of each: a forked child closes nothing."""


def at_end(close: Callable[[], None]) -> None:
    """Call ``close`` before the process ends, unless ``forget`` comes first. It must have a deadline.

    It is called before the clients end that were connected before this call. Repeatable.
    """
    _closers[close] = os.getpid()
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def forget(close: Callable[[], None]) -> None:
    """Do not call ``close`` any more. Repeatable."""
    _closers.pop(close, None)


def catch_sigterm() -> None:
    """Let SIGTERM close what is open before it ends the process, as it does without a handler.

    A handler of the application's stays: it ends the process normally, or on its own terms. Python sets
    handlers in the main thread only; in any other this does nothing.
    """
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number: int, _: Any) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    # In a thread: the main thread, which runs this, may have a lock that a closer needs.
    closing = threading.Thread(target=_close_all, name="tidegate-sigterm", daemon=True)
    closing.start()
    closing.join(SIGTERM_S)
    os.kill(os.getpid(), number)


def _close_all() -> None:
    for close, process in reversed(list(_closers.items())):
        if process == os.getpid():
            with contextlib.suppress(Exception):  # each logs its own; the others are closed too
                close()
