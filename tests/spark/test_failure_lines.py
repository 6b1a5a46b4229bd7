"""A failed batch in one line, and the typed error in the text of Spark's exceptions."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException

from tidegate import errors
from tidegate.errors import BY_NAME, FencedError, LineageError, StoreUnavailableError, remedy
from tidegate.spark.errors import cause
from tidegate.spark.session.failures import WORDS_MAX, line_of

pytestmark = pytest.mark.spark

TEXT = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: words
Traceback (most recent call last):
  File "wal/log.py", line 1, in append
tidegate.errors.WalUnavailableError: the log does not answer

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "spark/sink.py", line 168, in __call__
tidegate.errors.StoreUnavailableError: the store has gone: see above
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
"""


RAISE = 'Return Message: Traceback (most recent call last):\n  File "a.py", line 1, in b\n    raise error\n'


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_class_has_a_next_step_and_is_found(name):
    kind = BY_NAME[name]
    assert 10 < len(remedy(kind)) < 200
    assert "\n" not in remedy(kind)
    found = cause(StreamingQueryException(f"{RAISE}tidegate.errors.{name}: words: more\n at org.apache"))
    assert type(found) is kind
    assert str(found) == "words: more"


def test_the_last_error_counts_not_those_that_caused_it():
    found = cause(StreamingQueryException(TEXT))
    assert type(found) is StoreUnavailableError
    assert str(found) == "the store has gone: see above"


def test_an_error_is_found_behind_others_and_as_itself():
    own = FencedError("driver 7 was fenced")
    assert cause(own) is own
    wrapper = RuntimeError("the job ended")
    wrapper.__cause__ = StreamingQueryException(TEXT)
    assert type(cause(wrapper)) is StoreUnavailableError


@pytest.mark.parametrize("foreign", [None, ValueError("x"), StreamingQueryException("KeyError: 'a'")])
def test_what_is_not_of_tidegate_has_no_cause(foreign):
    assert cause(foreign) is None
    assert cause(StreamingQueryException(f"{RAISE}tidegate.errors.UnknownError: of a later release")) is None
    for before in ("", "a\n", "a\n  b\n"):
        quoted = f"ValueError: the value '{before}tidegate.errors.FencedError: x' is no number"
        assert cause(StreamingQueryException(RAISE + quoted)) is None


def test_a_line_has_batch_cause_and_next_step():
    assert line_of("flights", 3, FencedError("driver 7\nwas fenced")) == (
        "batch 3 of flights failed: FencedError: driver 7 was fenced;"
        " next step: stop this driver; if it is the one that should run, restart it"
    )


def test_an_error_with_its_own_next_step_gets_no_second_one():
    """That of the class is to run `tidegate adopt`: it would take the namespace from the living writer."""
    own = "namespace flights has a living writer, and this query is a second one: use another namespace"
    assert line_of("flights", 3, LineageError(own)) == f"batch 3 of flights failed: LineageError: {own}"


def test_of_a_foreign_error_the_line_has_the_first_line_and_that_a_restart_is_safe():
    line = line_of("flights", 3, ValueError("a" * 1000 + "\nthe plan"))
    assert f"ValueError: {'a' * WORDS_MAX}; next step: mend the cause, then start the query again" in line
    assert "plan" not in line
    assert line_of("flights", 3, KeyError()).startswith("batch 3 of flights failed: KeyError: ; next step")


def test_of_an_error_in_java_the_line_has_the_cause_behind_py4j_s_own_line():
    """Red before: the line said only "An error occurred while calling o228.collectToPython."."""
    java = "org.apache.spark.SparkException: Job aborted due to stage failure: Python worker exited (crashed)"
    error = RuntimeError(f"An error occurred while calling o228.collectToPython.\n: {java}\n\tat org.apache")
    line = line_of("flights", 7, error)
    assert line.startswith(f"batch 7 of flights failed: RuntimeError: {java}; next step: mend the cause")


def test_of_an_error_in_a_worker_the_line_has_the_exception_behind_its_traceback():
    """Red before: "An exception was thrown from the Python worker:", and nothing after it."""
    told = 'Traceback (most recent call last):\n  File "f.py", line 1\n    raise x\nValueError: no time\n'
    for before in (
        "An exception was thrown from the Python worker:\n",
        ": org.apache.spark.SparkException: ",
    ):
        line = line_of("flights", 7, RuntimeError(f"{before}{told}\n\tat org.apache"))
        assert line.startswith(
            "batch 7 of flights failed: RuntimeError: ValueError: no time; next step: mend"
        )


def test_the_remedy_of_a_class_without_a_docstring_is_empty():
    """As with python -OO."""
    assert remedy(type("Bare", (errors.TidegateError,), {"__doc__": None})) == ""
