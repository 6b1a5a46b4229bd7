"""Spark's own check that the outputs of a shuffle which it makes again are those that it lost.

Spark compares checksums of the two outputs, where the release and the shuffle manager have them and the
session has not switched it off. It saves work: an output with the same rows need not be staged again, and a
job whose outputs differ ends early. It proves nothing: ``single_runs.py`` does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession

PREFIX = "spark.sql.shuffle.orderIndependentChecksum"
OPTIONS = (f"{PREFIX}.enabled", f"{PREFIX}.enableFullRetryOnMismatch")


class WholeRetries:
    """A switch for the check. Jobs of several sinks may run at once, and in one session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs = 0
        self._changed: list[tuple[SparkSession, str, str | None]] = []
        """The options that were switched on for these jobs, with the values before."""

    @contextlib.contextmanager
    def __call__(self, sessions: Iterable[SparkSession]) -> Iterator[None]:
        """Switch the check on in these sessions for the jobs that are planned within, all shuffles included.

        The options get their values back when no job runs. A release without them is left as it is.
        """
        with self._lock:
            self._jobs += 1
        try:
            for session in {id(each): each for each in sessions}.values():
                self._switch_on(session)
            yield
        finally:
            with self._lock:
                self._jobs -= 1
                while not self._jobs and self._changed:
                    _restore(*self._changed.pop())

    def _switch_on(self, session: SparkSession) -> None:
        with self._lock:
            for name in OPTIONS:
                # A release that lacks an option is asked by a call that succeeds: an error takes some 20 ms.
                if session.conf.isModifiable(name) and session.conf.get(name) != "true":
                    self._changed.append((session, name, session.conf.get(name, None)))
                    session.conf.set(name, "true")


def _restore(session: SparkSession, name: str, value: str | None) -> None:
    if value is None:
        session.conf.unset(name)
    else:
        session.conf.set(name, value)


whole_retries = WholeRetries()
