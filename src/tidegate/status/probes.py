"""Probes of log and stores for commands, each in a thread of its own: a dead server costs one time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tidegate.base.checks import Check

LIMIT_S = 10.0
"""The time limit of a probe of ``tidegate doctor`` or ``tidegate status``, unless ``--limit`` is given."""
THREAD = "tidegate-probe"
"""The name of the threads. One that is left makes the end of a command immediate: ``cli.main``."""

T = TypeVar("T")


class Probe(Generic[T]):
    """One probe that runs at once; ``result`` waits for it until its time limit.

    A late probe is left alone: ``abandoned`` gets its result, if one ever arrives.
    """

    def __init__(
        self, look: Callable[[], T], limit_s: float, abandoned: Callable[[T], Any] = lambda _: None
    ) -> None:
        self._look, self._limit_s, self._abandoned = look, limit_s, abandoned
        self._until = time.monotonic() + limit_s
        self._lock, self._is_late = threading.Lock(), False
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            result = self._look()
        except BaseException as error:  # noqa: BLE001 - raised again by result
            self._error = error
            return
        with self._lock:
            if not self._is_late:
                self._results.append(result)
                return
        self._abandoned(result)

    def result(self, late: Callable[[str], T]) -> T:
        """Return the result; after the limit that of ``late``, called with the finding. Raises: its error."""
        self._thread.join(max(0.0, self._until - time.monotonic()))
        with self._lock:
            self._is_late = not self._results and self._error is None
        if self._is_late:
            return late(f"no answer within {self._limit_s:g} s")
        if self._error is not None:
            raise self._error
        return self._results[0]


def timed(look: Callable[[], list[Check]]) -> list[Check]:
    """Return the checks with the seconds that they took together."""
    began = time.perf_counter()
    checks = look()
    took = round(time.perf_counter() - began, 3)
    return [check._replace(seconds=took) for check in checks]
