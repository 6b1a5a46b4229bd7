"""A place that the page asks, in a thread of its own: whoever wants the answer waits so long and no longer.

A server that is down takes its time to say so, and one that is stalled says nothing. The page answers
meanwhile, and tells since when this place has not.
"""

from __future__ import annotations

import concurrent.futures
import datetime
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tidegate.base.deadline import one_call
from tidegate.base.text import time_of
from tidegate.errors import TidegateError

T = TypeVar("T")
LATE_S = 1.5
"""What has not answered within this is told, and waited for by no request until it answers again."""
KEPT_S = 10.0
"""So long is the last answer shown while the next one is late."""


class Poller(Generic[T]):
    """One place: ``read`` is called by one thread at a time, ``close`` never beside it. For any thread.

    ``close`` releases what ``read`` has open; it is called after each failure, so that what failed is opened
    anew, and in the end. What ``read`` raises, whatever it is, ``problem`` tells.
    """

    def __init__(self, read: Callable[[], T], close: Callable[[], None], every_s: float = 0.0) -> None:
        self._read, self._close, self._every_s = read, close, every_s
        self._state = threading.Condition()
        self._running = self._closed = False
        self._answer: T | None = None
        self._error = ""
        self._began = self._ended = float("-inf")
        self._since: datetime.datetime | None = None
        self.asked_at = self.answered_at = float("-inf")
        """When the last answer was asked for, and when it came, by ``time.monotonic``."""

    def begin(self) -> None:
        """Ask, unless it is asked already, or was less than ``every_s`` ago."""
        with self._state:
            if self._running or self._closed or time.monotonic() < self._ended + self._every_s:
                return
            self._running, self._began = True, time.monotonic()
            self._since = self._since or _now()
        threading.Thread(target=self._ask, name="tidegate-ui", daemon=True).start()

    def wait(self, end: float) -> None:
        """Until it has answered, or until ``end`` by ``time.monotonic``; not if it failed before."""
        with self._state:
            end = float("-inf") if self._error else min(end, self._began + LATE_S)
            self._state.wait_for(lambda: not self._running, max(0.0, end - time.monotonic()))

    def answer(self) -> T | None:
        """The last answer; None: it failed since, or the next one is late for ``KEPT_S``."""
        with self._state:
            silent = self._running and time.monotonic() > self._began + KEPT_S
            return None if silent or self._error else self._answer

    def was_asked_behind(self, other: Poller[Any]) -> bool:
        """Whether the last answer was asked for when the other's had come."""
        return self.asked_at >= other.answered_at

    def problem(self) -> str | None:
        """Why there is no fresh answer, and since when; None: there is one, or will be soon."""
        with self._state:
            late = self._running and time.monotonic() > self._began + LATE_S
            if self._since is None or not (late or self._error):
                return None
            never = ", when it was first asked" if self.answered_at == float("-inf") else ""
            silence = f"no answer since {time_of(self._since)}{never}"
            return f"{self._error}; {silence}" if self._error else f"{silence}; it is still waited for"

    def close(self, end: float) -> None:
        """Ask no more. What is open is released: until ``end``, or later by the thread that waits."""
        with self._state:
            self._closed = True
            idle = self._state.wait_for(lambda: not self._running, max(0.0, end - time.monotonic()))
        if idle:
            self._close()

    def _ask(self) -> None:
        answer, error = None, ""
        try:
            with one_call(anew=True):
                answer = self._read()
        except (TidegateError, OSError) as problem:
            error = f"{type(problem).__name__}: {problem}"
        except Exception as problem:  # noqa: BLE001 - a thread that ends in silence would never be noticed
            error = f"{type(problem).__name__}: {problem}: a bug in tidegate"
        if error or self._closed:
            self._close()
        with self._state:
            self._running, self._error, self._ended = False, error, time.monotonic()
            if not error:
                self._answer, self._since = answer, _now()
                self.asked_at, self.answered_at = self._began, self._ended
            self._state.notify_all()


def within(wait_s: float, run: Callable[[], T]) -> T:
    """What ``run`` gives or raises, in a thread of its own. concurrent.futures.TimeoutError: it runs on."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def go() -> None:
        try:
            with one_call(anew=True):
                future.set_result(run())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            future.set_exception(error)

    threading.Thread(target=go, name="tidegate-ui", daemon=True).start()
    return future.result(wait_s)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)
