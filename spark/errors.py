"""Typed errors across Spark: a task's error is raised again in the driver, as the same class."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

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
    "java_words",
    "typed",
    "with_causes",
]

_TRACEBACK = "Traceback (most recent call last):\n"
_BLOCK = re.compile(rf"{re.escape(_TRACEBACK)}(?:[ ]+[^\n]*\n)+([^\n]+)")
"""A traceback and the first line of its exception. Values of rows, which others quote, come later."""
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(tidegate|pyarrow|msgspec|xxhash|numpy)")
_RAISED = re.compile(r"tidegate\.errors\.(\w+): (.*)")
_OF_PYTHON = ("org.apache.spark.api.python.PythonException", "py4j.Py4JException")
"""Java's exceptions whose message is a Python traceback."""
CAUSES_MAX = 5


def cause(error: BaseException | None) -> TidegateError | None:
    r"""Return the error of tidegate in an exception of Spark, typed; None: it has none.

    For ``query.exception()``, and for the exceptions of ``awaitTermination``, of jobs and of reads of the
    data source. It is made from the traceback in the text, which has class and message, so that any sink or
    process may have raised it: an error of Spark's own that quotes a row is none. ``sink.last_error`` is the
    exception itself. A TidegateError is returned as it is.

    >>> from pyspark.errors import StreamingQueryException
    >>> text = "Traceback (most recent call last):\n  File ...\ntidegate.errors.FencedError: a newer one"
    >>> cause(StreamingQueryException(text))
    FencedError('a newer one')
    """
    for one in () if error is None else with_causes(error):
        if isinstance(one, TidegateError):
            return one
        found = [match for line in _raised_lines(one) if (match := _RAISED.match(line))]
        raised = [match.groups() for match in found if match[1] in BY_NAME]
        if raised:
            name, words = raised[-1]  # the earlier ones are its causes
            return BY_NAME[name](words)
    return None


def _raised_lines(error: BaseException) -> list[str]:
    """Return the lines that name the exceptions of Python, of a Java exception those of its Python causes."""
    origin = _origin_of(error)
    try:
        chain = () if origin is None else [*_java_causes(origin)]
        of_python = [str(one.getMessage()) for one in chain if one.getClass().getName() in _OF_PYTHON]
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
    """Turn Spark's report of a task's tidegate error back into that error.

    Any other error, such as one in the user's own plan, passes unchanged.
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
        if (raised := cause(error)) is not None:
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
    if the text is a page long, as a whole traceback of py4j is.
    """
    for one in with_causes(error):
        if isinstance(one, Py4JJavaError):
            words = java_words(one)
            if any(word.startswith(INTERRUPTED) or CANCELLED.match(word) for word in words):
                return QueryStoppedError(
                    f"batch {batch_id} was interrupted; nothing is lost, the restarted query repeats it"
                    f" ({SPARK_LOOKS_FOR} Spark: {'; '.join(words)})"
                )
    return None


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and the chain of its causes."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__cause__ or at.__context__


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
