"""A poller of one log or store, in a thread of its own. Callers wait for an answer only up to a timeout.

A server that is down may take long to fail, and one that is stalled does not answer. The page answers
meanwhile, and shows since when this source has not.
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
"""The time after which an answer is late. Then no request waits for the source until it answers again."""
KEPT_S = 10.0
"""Time for which the last answer is shown while the next one is late."""


class Poller(Generic[T]):
    """The poller of one source. Thread-safe.

    One thread at a time calls ``read``; ``close`` is never called meanwhile. ``close`` releases what ``read``
    has open. It is called after each failure, so that the source is opened again, and at the end. ``problem``
    describes any exception of ``read``.
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
        """The times of the last answer's request and arrival, by ``time.monotonic``."""

    def begin(self) -> None:
        """Start a poll, unless one is running, or ended less than ``every_s`` ago."""
        with self._state:
            if self._running or self._closed or time.monotonic() < self._ended + self._every_s:
                return
            self._running, self._began = True, time.monotonic()
            self._since = self._since or _now()
        threading.Thread(target=self._ask, name="tidegate-ui", daemon=True).start()

    def wait(self, end: float) -> None:
        """Wait for the answer, until ``end`` by ``time.monotonic``; not if the last poll failed."""
        with self._state:
            end = float("-inf") if self._error else min(end, self._began + LATE_S)
            self._state.wait_for(lambda: not self._running, max(0.0, end - time.monotonic()))

    def answer(self) -> T | None:
        """Return the last answer; None: it failed since, or the next one is late for ``KEPT_S``."""
        with self._state:
            silent = self._running and time.monotonic() > self._began + KEPT_S
            return None if silent or self._error else self._answer

    def was_asked_behind(self, other: Poller[Any]) -> bool:
        """Return whether the last answer was requested after the other's had arrived."""
        return self.asked_at >= other.answered_at

    def problem(self) -> str | None:
        """Return why there is no fresh answer, and since when; None: there is one, or will be soon."""
        with self._state:
            late = self._running and time.monotonic() > self._began + LATE_S
            if self._since is None or not (late or self._error):
                return None
            never = ", when it was first asked" if self.answered_at == float("-inf") else ""
            silence = f"no answer since {time_of(self._since)}{never}"
            return f"{self._error}; {silence}" if self._error else f"{silence}; it is still waited for"

    def close(self, end: float) -> None:
        """Stop polling. Open handles are released by ``end``, or later by the thread that waits."""
        with self._state:
            self._closed = True
            idle = self._state.wait_for(lambda: not self._running, max(0.0, end - time.monotonic()))
        if idle:
            self._close()

    def _ask(self) -> None:
        answer, error = None, ""
        try:
            with one_call(fresh=True):
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
    """Return or raise what ``run`` does, in a thread. TimeoutError of concurrent.futures: it still runs."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def go() -> None:
        try:
            with one_call(fresh=True):
                future.set_result(run())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            future.set_exception(error)

    threading.Thread(target=go, name="tidegate-ui", daemon=True).start()
    return future.result(wait_s)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)
