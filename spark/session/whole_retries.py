"""Spark's own check that the outputs of a shuffle which it makes again are those that it lost.

Spark runs a map task again when its output is lost, even after some tasks have read it. Where the rows
differ then (a key from a function that is not deterministic), a row may be in two tasks, or in none, while
each task's ack is valid. Spark compares checksums of the two outputs, and ends the job where they differ.
A session may have that switched off, as some releases of Spark have by default.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tidegate.errors import ConfigError

PREFIX = "spark.sql.shuffle.orderIndependentChecksum"
OPTIONS = (f"{PREFIX}.enabled", f"{PREFIX}.enableFullRetryOnMismatch")


class WholeRetries:
    """A switch for the check. Jobs of several sinks may run at once, and in one session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs = 0
        self._changed: list[tuple[SparkSession, str, str | None]] = []
        """The options that were switched on for these jobs, with the values before."""
        self._jvm: object = None
        """The JVM whose Spark has the options."""

    @contextlib.contextmanager
    def __call__(self, sessions: Iterable[SparkSession]) -> Iterator[None]:
        """Switch the check on in these sessions for the jobs that are planned within, all shuffles included.

        The options get their values back when no job runs. Raises: ConfigError: this Spark has no such check.
        """
        with self._lock:
            self._jobs += 1
        try:
            for session in {id(each): each for each in sessions}.values():
                self._refuse_without(session)
                self._switch_on(session)
            yield
        finally:
            with self._lock:
                self._jobs -= 1
                while not self._jobs and self._changed:
                    _restore(*self._changed.pop())

    def _refuse_without(self, session: SparkSession) -> None:
        """Refuse a release without the options, where they may be set too, without effect."""
        jvm = SparkContext._jvm  # noqa: SLF001 - the question costs calls of it, so it is asked once
        if self._jvm is jvm:
            return
        for name in OPTIONS:
            if not session.conf.isModifiable(name):
                raise ConfigError(
                    f"Spark {session.version} has no option {name}: without it a lost shuffle that Spark"
                    " makes again could mix two runs in one version (I1), so nothing was staged. Use another"
                    " release, such as 4.1 to 4.3"
                )
        self._jvm = jvm

    def _switch_on(self, session: SparkSession) -> None:
        with self._lock:
            for name in OPTIONS:
                if session.conf.get(name) != "true":
                    self._changed.append((session, name, session.conf.get(name, None)))
                    session.conf.set(name, "true")


def _restore(session: SparkSession, name: str, value: str | None) -> None:
    if value is None:
        session.conf.unset(name)
    else:
        session.conf.set(name, value)


whole_retries = WholeRetries()
