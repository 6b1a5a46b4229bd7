"""A deadline for each call of a user's function, in the task's own thread. No pyspark is imported here."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

TICK_S_MAX = 1.0
TICKS = 10
"""The clock is looked at so often within a deadline, and at least every second."""


class Overdue(BaseException):
    """Raised inside a call that is past its deadline: not an Exception, so that few handlers swallow it."""


class Deadline:
    """Ends calls that take too long: within the context, each stands between ``begin`` and ``end``.

    A timer looks at the clock now and then, so that a call costs two looks at the clock. It is
    the signal SIGALRM, which Python hands to the main thread, where Spark's workers run tasks;
    in any other thread nothing is ended. Nor is what never comes back to the interpreter, as an
    extension in a loop of its own, or what swallows ``Overdue`` each time.

    A task that is given up leaves the context when its generator is collected: at any time, in any
    thread. The clock of the next task is left alone then.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.passed = False
        self._began: float | None = None
        self._tick_s = min(TICK_S_MAX, seconds / TICKS)
        self._ticking = False

    def __enter__(self) -> Self:
        self._ticking = threading.current_thread() is threading.main_thread()
        if self._ticking:
            self._before = signal.signal(signal.SIGALRM, self._tick)
            signal.setitimer(signal.ITIMER_REAL, self._tick_s, self._tick_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._began = None
        if not self._ticking or signal.getsignal(signal.SIGALRM) != self._tick:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGALRM, self._before)

    def begin(self) -> None:
        """From here on the time of one call runs, until ``end``."""
        self._began = time.monotonic()

    def end(self) -> None:
        """The call is over. ``passed`` says whether ``Overdue`` was raised in one, and perhaps swallowed."""
        self._began = None

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Time that is not the function's own, such as that until its next rows are there."""
        began, self._began = self._began, None
        since = time.monotonic()
        try:
            yield
        finally:
            if began is not None:
                self._began = began + time.monotonic() - since

    def _tick(self, _signal: int, _frame: FrameType | None) -> None:
        if self._began is not None and time.monotonic() - self._began > self.seconds:
            self.passed = True
            raise Overdue
