"""The signal by which a supervisor ends a command."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def terminated_like_ctrl_c() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C: work in progress is ended, and namespaces of the command's own are dropped.

    As process 1 of a container a command without a handler would ignore it until SIGKILL.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
