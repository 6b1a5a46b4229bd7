"""Signals of commands that write namespaces of their own."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def terminated_like_ctrl_c() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C: work in progress is ended, and its namespaces dropped."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
