"""Probes of log and stores for commands, each in a thread of its own: a dead server costs one time limit."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from tidegate.base.checks import Check
from tidegate.base.urls import scheme_of, servers_of

LIMIT_S = 10.0
"""The time limit of a probe of ``tidegate doctor`` or ``tidegate status``, unless ``--limit`` is given."""
OF_LIMIT, LEAST_S, WITHOUT_TIMEOUT = 0.8, 1.0, ("file", "memory")
KNOCK_S = 0.5
"""The time for a connection to one address: a refusal and an unknown name take less."""
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


def in_time(url: str, options: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
    """Return the options with a ``timeout_s`` below the limit: its error has the cause, a late probe none."""
    own = options.get("timeout_s", limit_s)
    if scheme_of(url) in WITHOUT_TIMEOUT or not isinstance(own, int | float) or own < limit_s:
        return dict(options)
    return {**options, "timeout_s": max(LEAST_S, OF_LIMIT * limit_s)}


def nobody_at(url: str) -> str:
    """Return why each server of the URL is out of reach; "" if one may answer, or the URL names none.

    A refused connection and an unknown host are the whole answer: nobody waits for the limit.
    """
    refusals = []
    for address in sorted(servers_of(url)):
        try:
            socket.create_connection(address, KNOCK_S).close()
            return ""
        except (ConnectionRefusedError, socket.gaierror) as error:
            refusals.append(f"{address}: {error.strerror}")
        except OSError:
            return ""
    return "; ".join(refusals)
