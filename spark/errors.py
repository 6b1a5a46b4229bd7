"""Typed errors across Spark: a task's error is raised again in the driver, as the same class."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

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
    "typed",
    "with_causes",
]

_MISSING = re.compile(r"ModuleNotFoundError: No module named '(tidegate|pyarrow|msgspec|xxhash|numpy)")
_RAISED = re.compile(r"tidegate\.errors\.(\w+): (.*)")


def cause(error: BaseException | None) -> TidegateError | None:
    """Return the error of tidegate in an exception of Spark, typed; None: it has none.

    For ``query.exception()``, and for the exceptions of ``awaitTermination``, of jobs and of reads of the
    data source. It is made from the text, which has class and message, so that any sink or process may have
    raised it. ``sink.last_error`` is the exception itself. A TidegateError is returned as it is.

    >>> from pyspark.errors import StreamingQueryException
    >>> cause(StreamingQueryException("... tidegate.errors.FencedError: driver 7 was fenced"))
    FencedError('driver 7 was fenced')
    """
    for one in () if error is None else with_causes(error):
        if isinstance(one, TidegateError):
            return one
        raised = [(name, words) for name, words in _RAISED.findall(str(one)) if name in BY_NAME]
        if raised:
            name, words = raised[-1]  # the earlier ones are its causes
            return BY_NAME[name](words)
    return None


@contextlib.contextmanager
def typed() -> Iterator[None]:
    """Turn Spark's report of a task's tidegate error back into that error.

    Any other error, such as one in the user's own plan, passes unchanged.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if missing := _MISSING.search(str(error)):
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
            try:
                words = list(_java_words(one))
            except Py4JError:
                return None  # the JVM has ended
            if any(word.startswith(INTERRUPTED) or "cancelled job group" in word for word in words):
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


def _java_words(error: Py4JJavaError) -> Iterator[str]:
    """Yield the first line of the Java exception and of each of its causes."""
    cause = error.java_exception
    for _ in range(5):
        if cause is None:
            return
        yield str(cause.toString()).partition("\n")[0][:WORDS_MAX]
        cause = cause.getCause()
