"""A deadline for each call of a user's function, in the task's own thread.

No pyspark is imported here.
"""

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
"""The number of clock checks within a deadline; there is at least one per second."""


class Overdue(BaseException):
    """Raised inside a call that is past its deadline: not an Exception, so that few handlers swallow it."""


class Deadline:
    """A deadline for calls, each between ``begin`` and ``end`` within the context.

    A timer checks the clock now and then, so that a call costs two reads of the clock. It is the
    signal SIGALRM, which Python delivers to the main thread, where Spark's workers run tasks; in
    any other thread no call is interrupted. Two kinds of code cannot be interrupted: extensions
    that never return to the interpreter, and code that swallows ``Overdue`` each time.

    A task that is given up leaves the context when its generator is garbage-collected: at any time,
    in any thread. The timer of the next task is not touched then.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.passed = False
        self.spent = 0.0
        """The seconds of all calls that have ended, without their waits."""
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
        """Start the time of one call, until ``end``."""
        self._began = time.monotonic()

    def end(self) -> None:
        """End the call. ``passed`` is whether ``Overdue`` was raised in one, and perhaps swallowed."""
        if self._began is not None:
            self.spent += time.monotonic() - self._began
        self._began = None

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Exclude time that is not the function's own, such as the wait for its next rows."""
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
