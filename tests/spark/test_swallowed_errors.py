"""A function that keeps the sink's error to itself: Spark counts the batch as done, the sink tells."""

from __future__ import annotations

import contextlib

import pytest

from tidegate.base import failpoints
from tidegate.errors import ConfigError, OutcomeUnknownError
from tidegate.spark import sink as sink_module

pytestmark = pytest.mark.spark

SCHEMA = "k string, n int"
BATCHES = [[{"k": f"k{n}", "n": n}] for n in range(3)]


def keeping(sink, fails):
    """It catches what the sink raises for the batch of this number, and goes on."""

    def function(rows, batch_id):
        if batch_id != fails:
            sink(rows, batch_id)
            return
        with contextlib.suppress(ConfigError, OutcomeUnknownError):
            sink(rows.withColumnRenamed("k", "other"), batch_id)

    return function


def test_a_batch_whose_error_was_kept_back_is_told_by_the_next_one(stream):
    flights = stream(SCHEMA)
    sink = flights.sink(table="t", key="k")
    flights.add(*BATCHES)
    ran = flights.run(keeping(sink, 1))
    assert isinstance(ran.error, ConfigError)
    assert ran.batches == [0, 1, 2]
    told = str(ran.error)
    assert told.startswith("batch 1 failed in this sink and is not in the store (ConfigError: ")
    assert "let the sink's errors through" in told
    assert "sink.load" in told
    assert flights.decided() == 1

    flights.commit(sink)
    assert flights.rows("t") == {"k0": {"n": 0}, "k2": {"n": 2}}, "whoever starts it again has read it"


def test_a_batch_that_is_mended_by_its_function_is_not_told(stream):
    flights = stream(SCHEMA)
    sink = flights.sink(table="t", key="k")

    def function(rows, batch_id):
        with contextlib.suppress(ConfigError):
            sink(rows.withColumnRenamed("k", "other"), batch_id)
        sink(rows, batch_id)

    flights.commit(function, *BATCHES)
    assert flights.rows("t") == {f"k{n}": {"n": n} for n in range(3)}


def test_a_batch_that_was_decided_though_it_raised_is_not_told(stream):
    flights = stream(SCHEMA)
    sink = flights.sink(table="t", key="k")

    def function(rows, batch_id):
        if batch_id == 1:
            failpoints.arm("commit.before_return=raise@1")
        try:
            with contextlib.suppress(failpoints.FailpointError):
                sink(rows, batch_id)
        finally:
            failpoints.arm(None)

    flights.commit(function, *BATCHES)
    assert flights.rows("t") == {f"k{n}": {"n": n} for n in range(3)}


def test_an_error_before_the_batch_was_known_is_noticed_by_the_next_batch(stream, monkeypatch):
    """The checkpoint's file system fails for a moment, for instance."""
    flights = stream(SCHEMA)
    context = sink_module.batch_context

    def failing(rows, batch_id, checkpoint):
        if batch_id == 1:
            raise ConfigError("the offsets cannot be read")
        return context(rows, batch_id, checkpoint)

    monkeypatch.setattr(sink_module, "batch_context", failing)
    sink = flights.sink(table="t", key="k")

    def function(rows, batch_id):
        with contextlib.suppress(ConfigError) if batch_id == 1 else contextlib.nullcontext():
            sink(rows, batch_id)

    flights.add(*BATCHES)
    ran = flights.run(function)
    assert isinstance(ran.error, ConfigError)
    assert str(ran.error).startswith("batch 1 failed in this sink and is not in the store (ConfigError: ")
    assert flights.decided() == 1
    flights.commit(sink)
    assert flights.rows("t") == {"k0": {"n": 0}, "k2": {"n": 2}}


@pytest.mark.parametrize("within", [False, True], ids=["after the batch", "within the batch"])
def test_a_further_call_whose_error_was_swallowed_is_noticed_by_the_next_batch(stream, within):
    flights = stream(SCHEMA)
    sink = flights.sink()

    def again(rows, batch_id):
        with contextlib.suppress(ConfigError):
            sink.each(lambda txn, rows: txn.upsert("other", rows, "k"))(rows, batch_id)

    def function(rows, batch_id):
        def write(txn, rows):
            txn.upsert("t", rows, "k")
            if within:
                again(rows, batch_id)

        sink.each(write)(rows, batch_id)
        if not within:
            again(rows, batch_id)

    flights.add(*BATCHES[:2])
    ran = flights.run(function)
    assert isinstance(ran.error, ConfigError)
    assert "called this sink for batch 0 again, and the rows of that call are not" in str(ran.error)
    assert flights.decided() == 1
