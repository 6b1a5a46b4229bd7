"""A stop in the middle of a batch, told to Spark in a few words."""

from __future__ import annotations

from collections.abc import Iterator

from py4j.protocol import Py4JError, Py4JJavaError

INTERRUPTED = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
WORDS_MAX = 300
SPARK_LOOKS_FOR = "py4j.protocol.Py4JJavaError: An error occurred while calling"


class QueryStoppedError(Exception):
    """``query.stop()`` interrupted this batch; the restarted query goes on with it. Not a failure."""


def stopped(error: BaseException, batch_id: int) -> QueryStoppedError | None:
    """What to raise in the place of an error that is a stop's interrupt; None for any other error.

    Spark looks for the interrupt in the text that Python returns, with a pattern that overflows
    its thread's stack when the text is a page long, and a whole traceback of py4j is.
    """
    for one in _behind(error):
        if isinstance(one, Py4JJavaError):
            try:
                words = list(_java_words(one))
            except Py4JError:
                return None  # the JVM is gone: nobody is left to tell
            if any(word.startswith(INTERRUPTED) or "cancelled job group" in word for word in words):
                return QueryStoppedError(
                    f"batch {batch_id} was interrupted; nothing is lost, the restarted query goes on with it"
                    f" ({SPARK_LOOKS_FOR} Spark: {'; '.join(words)})"
                )
    return None


def _behind(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__cause__ or at.__context__


def _java_words(error: Py4JJavaError) -> Iterator[str]:
    """The first line of the Java exception and of each of its causes."""
    cause = error.java_exception
    for _ in range(5):
        if cause is None:
            return
        yield str(cause.toString()).partition("\n")[0][:WORDS_MAX]
        cause = cause.getCause()
