"""Probes of log and stores for commands, each in a thread of its own: a dead server costs one time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from tidegate.base.checks import Check

LIMIT_S = 10.0
"""The time limit of a probe of ``tidegate doctor``, unless ``--limit`` is given."""

T = TypeVar("T")


class Probe(Generic[T]):
    """One probe that runs at once; ``result`` waits for it until its time limit."""

    def __init__(self, look: Callable[[], T], limit_s: float) -> None:
        self._look, self._limit_s, self._until = look, limit_s, time.monotonic() + limit_s
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tidegate-probe", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._look())
        except BaseException as error:  # noqa: BLE001 - raised again by result
            self._error = error

    def result(self, late: Callable[[str], T]) -> T:
        """Return the result; after the limit that of ``late``, called with the finding. Raises: its error.

        A late probe is left alone: its thread ends with the process.
        """
        self._thread.join(max(0.0, self._until - time.monotonic()))
        if self._thread.is_alive():
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
