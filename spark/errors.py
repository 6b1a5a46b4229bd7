"""Typed errors across Spark: a task's error is raised again in the driver, as the same class."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pyspark import TaskContext
from pyspark.errors import PySparkException

from tidegate.errors import BY_NAME, ConfigError, TidegateError

try:
    from py4j.protocol import Py4JError, Py4JJavaError
except ImportError:  # the client of Spark Connect alone: nothing raises them there

    class Py4JError(Exception):  # type: ignore[no-redef]
        pass

    class Py4JJavaError(Py4JError):  # type: ignore[misc, no-redef]
        pass


__all__ = [
    "Py4JError",
    "Py4JJavaError",
    "QueryStoppedError",
    "as_query_stop",
    "cause",
    "forget_failure",
    "give_mark",
    "java_words",
    "note_failure",
    "told",
    "told_parts",
    "told_rows",
    "typed",
    "with_causes",
]

_TRACEBACK = "Traceback (most recent call last):\n"
_BLOCK = re.compile(rf"{re.escape(_TRACEBACK)}(?:[ ]+[^\n]*\n)+([^\n]+)")
"""A traceback and the first line of its exception. Values of rows, which others quote, come later."""
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(tidegate|pyarrow|msgspec|xxhash|numpy)")
_RAISED = re.compile(r"tidegate\.errors\.(\w+): (?:\[[0-9a-f]{16}\] )?(.*)")
_OF_PYTHON = ("org.apache.spark.api.python.PythonException", "py4j.Py4JException")
"""Java's exceptions whose message is a Python traceback."""
_OF_SOURCES = ("[PYTHON_DATA_SOURCE_ERROR]", "[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR]")
"""Begin the messages of Java's exceptions that have the traceback of a data source: of format("tidegate")."""
CAUSES_MAX = 5
_MARK = secrets.token_hex(8)
"""Of this driver: before the words of its tasks' errors, which no row knows."""
MARK = "tidegate.mark"
"""The local property of Spark that has the mark, for tasks that are planned elsewhere."""
_TOLD = re.compile(rf"tidegate\.errors\.(\w+): \[{_MARK}\] (.*)")
_RUN = re.compile(r"(?:\[\w+\] )?Query \[id = [\w-]+, runId = ([\w-]+)\]")
_failed: dict[str, TidegateError | None] = {}
"""The last failure of a sink of this process, by run of its query; None: it is no error of tidegate."""
FAILED_MAX = 64

Task = Callable[[Any], Iterable[Any]]


def cause(error: BaseException | None) -> TidegateError | None:
    r"""Return the error of tidegate in an exception of Spark, typed; None: it has none.

    For ``query.exception()``, and for the exceptions of ``awaitTermination``, of jobs and of reads of the
    data source. Of a query whose sink is in this process it is what that sink has raised. Of others it is
    made from the tracebacks in the text, which have class and message; rows that the program or Spark quotes
    may look like one. ``sink.last_error`` is the exception itself. A TidegateError is returned as it is.

    >>> from pyspark.errors import StreamingQueryException
    >>> text = "Traceback (most recent call last):\n  File ...\ntidegate.errors.FencedError: a newer one"
    >>> cause(StreamingQueryException(text))
    FencedError('a newer one')
    """
    for one in () if error is None else with_causes(error):
        if isinstance(one, TidegateError):
            return one
        if (run := _RUN.match(str(one))) and run[1] in _failed:
            return _failed[run[1]]
        matches = [match for line in _raised_lines(one) if (match := _RAISED.match(line))]
        if raised := _last_of([match.groups() for match in matches]):
            return raised
    return None


def _last_of(raised: Sequence[tuple[str, ...]]) -> TidegateError | None:
    """Return the last error by class and words; the earlier ones are its causes."""
    return next((BY_NAME[name](words) for name, words in reversed(raised) if name in BY_NAME), None)


def note_failure(run_id: str, error: BaseException) -> None:
    """Note the failure of a query's run, for ``cause``."""
    _failed.pop(run_id, None)
    _failed[run_id] = type(error)(str(error)) if isinstance(error, TidegateError) else None  # no traceback
    while len(_failed) > FAILED_MAX:
        _failed.pop(next(iter(_failed)), None)


def forget_failure(run_id: str) -> None:
    """Note that a query's run has a version again."""
    _failed.pop(run_id, None)


def told(run: Task) -> Callable[[Any], Iterator[Any]]:
    """Return a task's function whose errors of tidegate have this driver's mark, for ``typed``."""
    mark = _MARK  # of the driver: the executors' modules have others

    def task(parts: Any) -> Iterator[Any]:
        try:
            yield from run(parts)
        except TidegateError as error:
            raise type(error)(f"[{mark}] {error}") from error

    return task


def give_mark(context: Any) -> None:
    """Give the tasks of this thread's jobs the driver's mark. ``context``: a SparkContext."""
    context.setLocalProperty(MARK, _MARK)


def told_rows(rows: Iterator[Any]) -> Iterator[Any]:
    """Yield what a task of the data source reads; its errors have the mark of the job's thread, if any."""
    try:
        yield from rows
    except TidegateError as error:
        context = TaskContext.get()
        mark = None if context is None else context.getLocalProperty(MARK)
        if mark is None:
            raise
        raise type(error)(f"[{mark}] {error}") from error


def told_parts(kind: type[TidegateError]) -> tuple[str, str]:
    """Return what stands before the words of an error that a plan raises.

    A plan has the two as literals of their own: Spark quotes plans, which are no errors.
    """
    return f"{kind.__module__}.{kind.__name__}: [", f"{_MARK}] "


def _raised_lines(error: BaseException) -> list[str]:
    """Return the lines that name the exceptions of Python, of a Java exception those of its Python causes."""
    origin = _origin_of(error)
    try:
        chain = () if origin is None else [*_java_causes(origin)]
        of_python = [
            text
            for one in chain
            if (text := str(one.getMessage())).startswith(_OF_SOURCES)
            or one.getClass().getName() in _OF_PYTHON
        ]
    except Py4JError:
        return []  # the JVM has ended
    lines: list[str] = []
    for text in [str(error)] if origin is None else of_python:
        is_whole = origin is None or _TRACEBACK in text  # a session may hide its workers' tracebacks
        lines += _BLOCK.findall(text) if is_whole else text.splitlines()
    return lines


def _origin_of(error: BaseException) -> Any:
    """Return the Java exception of one of py4j's or of Spark's; None: it has none."""
    return getattr(error, "java_exception", getattr(error, "_origin", None))


def _java_causes(error: Any) -> Iterator[Any]:
    """Yield a Java exception and its causes."""
    for _ in range(CAUSES_MAX):
        if error is None:
            return
        yield error
        error = error.getCause()


@contextlib.contextmanager
def typed() -> Iterator[None]:
    """Turn Spark's report of the error of a task that was ``told`` back into that error.

    Any other error, such as one in the user's own plan, passes unchanged: it may quote rows.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        missing = next(filter(None, map(_MISSING.match, _raised_lines(error))), None)
        if missing:
            msg = (
                f"the executors' Python has no module {missing[1]}: install tidegate for it, or set"
                " PYSPARK_PYTHON to a Python that has it before the session starts"
            )
            raise ConfigError(msg) from error
        if raised := _last_of(_TOLD.findall(str(error))):
            raise raised from error
        raise


# -- a stop in the middle of a batch, reported to Spark in a few words -------------------------------------

INTERRUPTED = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
CANCELLED = re.compile(
    r"org\.apache\.spark\.SparkException: (\[\w+\] )?Job \d+ cancelled .{0,40}cancelled job group"
)
WORDS_MAX = 300
SPARK_LOOKS_FOR = "py4j.protocol.Py4JJavaError: An error occurred while calling"


class QueryStoppedError(Exception):
    """``query.stop()`` interrupted this batch; the restarted query repeats it. It is not a failure."""


def as_query_stop(error: BaseException, batch_id: int) -> QueryStoppedError | None:
    """Build the error that replaces a stop's interrupt; None for any other error.

    Spark searches the text that Python returns for the interrupt. Its pattern overflows the thread's stack
    if the text is a page long, as a whole traceback of py4j is. That of 3.5 wants it at a line's start.
    """
    for one in with_causes(error):
        if isinstance(one, Py4JJavaError):
            words = java_words(one)
            if any(word.startswith(INTERRUPTED) or CANCELLED.match(word) for word in words):
                words.sort(key=lambda word: not word.startswith(INTERRUPTED))
                return QueryStoppedError(
                    f"batch {batch_id} was interrupted; nothing is lost, the restarted query repeats it"
                    f" ({SPARK_LOOKS_FOR} Spark.\n: {'; '.join(words)})"
                )
    return None


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and the chain of its causes."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def java_words(error: BaseException) -> list[str]:
    """Return the first line of the Java exception, class and message, and of each of its causes.

    Of an exception without one, such as those of Spark Connect, the first line of its text. Values of rows
    may be in them, but never at the start.
    """
    origin = _origin_of(error)
    if origin is None:
        return [str(error).partition("\n")[0][:WORDS_MAX]]
    try:
        return [str(one.toString()).partition("\n")[0][:WORDS_MAX] for one in _java_causes(origin)]
    except Py4JError:
        return []  # the JVM has ended
