"""The failures of a sink's batches: the error for the driver's code, and one line for people.

Spark prints a failed batch as long traces of Java and Python, in two parts: the JVM's log when the query
ends, and the exception of ``awaitTermination`` when the program ends by it. The line follows each of them.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from tidegate.errors import TidegateError, advises, remedy
from tidegate.observe.events import LogPlace, log_context
from tidegate.spark.batch import FailedBatch, first_failure, running_here
from tidegate.spark.errors import Py4JError, forget_failure, note_failure, with_causes

logger = logging.getLogger("tidegate")

QUERY_ENDS_S = 10.0
"""How long the line waits for the end of its query. A function that swallowed the error does not end it."""
LINES_MAX = 16
WORDS_MAX = 500
"""The length of a foreign error's first line: it may be a page of Spark's plan."""
FOREIGN = "mend the cause, then start the query again: it repeats the batch, or finishes it if it was decided"


class Failures:
    """The failed batches of one sink."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self.last_error: BaseException | None = None
        """The error of the last batch; None: it succeeded, or there was none."""
        self._run_id = ""
        self.first: FailedBatch | None = None
        """The first failure since a batch succeeded, for ``refuse_after_swallowed_error``."""

    def interrupted(self, rows: DataFrame, batch_id: int, run_id: str | None, error: BaseException) -> None:
        """Note that ``query.stop()`` interrupted a batch. It is no failure, but the batch has no version."""
        self.first = first_failure(self.first, rows, batch_id, run_id, error)

    def add(
        self,
        rows: DataFrame,
        batch_id: int,
        run_id: str | None,
        error: BaseException,
        *,
        is_extra: bool = False,
    ) -> None:
        """Note a failure, and log its line at ERROR once the query has ended. Nothing: this was no batch."""
        self.first = first_failure(self.first, rows, batch_id, run_id, error, is_extra=is_extra)
        run = running_here(rows)
        if run is None:
            return
        self.last_error, self._run_id = error, str(run.run_id)
        note_failure(self._run_id, error)
        line = line_of(self._namespace, batch_id, error)
        _printed_at_exit(run.run_id, line)
        place = LogPlace(self._namespace, batch=batch_id)
        thread = threading.Thread(
            target=_log_after, args=(run.query, line, place), name="tidegate-failed-batch"
        )
        thread.start()

    def succeeded(self, batch_id: int) -> None:
        """Note that a batch has its version. A failed further call for it stays noted."""
        if self.last_error is not None:
            forget_failure(self._run_id)
        self.last_error = None
        if self.first is not None and not (self.first.is_extra and self.first.batch_id == batch_id):
            self.first = None


def line_of(namespace: str, batch_id: int, error: BaseException) -> str:
    """Describe a failed batch in one line: the batch, the cause, one next step."""
    if isinstance(error, TidegateError):
        cause = " ".join(str(error).splitlines())
        step = "" if advises(cause) else remedy(type(error))
    else:
        cause, step = _first_of(str(error))[:WORDS_MAX], FOREIGN
    line = f"batch {batch_id} of {namespace} failed: {type(error).__name__}: {cause}"
    return f"{line}; next step: {step}" if step else line


def _first_of(text: str) -> str:
    """Return the line that names a foreign error: PySpark's and py4j's own lines are before it."""
    lines = text.splitlines()
    for index, line in enumerate(lines):
        if line.endswith("Traceback (most recent call last):"):
            return next((raised for raised in lines[index + 1 :] if raised[:1].strip()), line)
    of_java = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return "".join([*of_java, *lines][:1])


def _log_after(query: Any, line: str, place: LogPlace) -> None:
    """Log the line once the JVM has logged the end of the query. Not a daemon: the process waits for it."""
    with contextlib.suppress(PySparkException, Py4JError, OSError):  # its own error, or the JVM has ended
        query.awaitTermination(int(1000 * QUERY_ENDS_S))
    with log_context(place):
        logger.error("%s", line)


# -- the end of a process that dies of it ------------------------------------------------------------------

_lines: dict[str, str] = {}
"""The lines by run of a query, the newest last."""
_once: list[Callable[[], None]] = []


def _printed_at_exit(run_id: str, line: str) -> None:
    _lines.pop(run_id, None)
    _lines[run_id] = line
    while len(_lines) > LINES_MAX:
        _lines.pop(next(iter(_lines)))
    if not _once:
        _once.append(atexit.register(_print_last))


def _print_last() -> None:
    """Print the line of the query by whose exception this process ends, after Python's traceback."""
    uncaught = getattr(sys, "last_value", None)
    if uncaught is None or sys.stderr is None:
        return
    texts = [str(one) for one in with_causes(uncaught)]
    for run_id, line in _lines.items():
        if any(run_id in text for text in texts):
            print(f"tidegate: {line}", file=sys.stderr, flush=True)  # noqa: T201 - the log has it already
