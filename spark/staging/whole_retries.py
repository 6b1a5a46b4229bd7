"""Spark's own check that the outputs of a shuffle which it makes again are those that it lost.

Spark runs a map task again when its output is lost, even after some tasks have read it. Where the rows
differ then (a key from a function that is not deterministic), a row may be in two tasks, or in none, while
each task's ack is valid. Spark compares checksums of the two outputs, and ends the job where they differ.
A session may have that switched off, as some releases of Spark have by default.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession

PREFIX = "spark.sql.shuffle.orderIndependentChecksum"
OPTIONS = (f"{PREFIX}.enabled", f"{PREFIX}.enableFullRetryOnMismatch")


@contextlib.contextmanager
def whole_retries(sessions: Iterable[SparkSession]) -> Iterator[None]:
    """Switch the check on in these sessions for the jobs that are planned within, all shuffles included."""
    changed: list[tuple[SparkSession, str, str | None]] = []
    try:
        for session in {id(one): one for one in sessions}.values():
            for name in OPTIONS:
                before = session.conf.get(name, None)
                if before != "true":
                    session.conf.set(name, "true")
                    changed.append((session, name, before))
        yield
    finally:
        for session, name, value in reversed(changed):
            if value is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, value)
