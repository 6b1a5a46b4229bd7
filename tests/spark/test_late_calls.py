"""Calls of a transaction that another thread makes, or nobody: each is in the version, or is refused.

And rows that are read after the function has returned.
"""

from __future__ import annotations

import asyncio
import random
import threading

import pytest
from pyspark.sql.functions import udf
from pyspark.sql.types import DoubleType

from tidegate.errors import ConfigError, FunctionError
from tidegate.spark.calls import collected

pytestmark = pytest.mark.spark

DEADLINE_S = 60.0


def test_a_call_that_is_still_checked_when_the_function_returns_is_refused(stream, monkeypatch):
    flights = stream("k string")
    sink = flights.sink()
    inside, closed = threading.Event(), threading.Event()
    errors: list[BaseException] = []
    analyse, close = collected.analyse, collected.CollectedCalls.close

    def slow(rows, *columns):
        if threading.current_thread().name == "late":
            inside.set()
            assert closed.wait(DEADLINE_S)
        return analyse(rows, *columns)

    def closing(calls):
        made = close(calls)
        closed.set()
        threads[0].join(DEADLINE_S)
        return made

    monkeypatch.setattr(collected, "analyse", slow)
    monkeypatch.setattr(collected.CollectedCalls, "close", closing)
    threads: list[threading.Thread] = []

    def late(txn, rows):
        try:
            txn.upsert("late", rows, "k")
        except ConfigError as error:
            errors.append(error)

    def write(txn, rows):
        txn.upsert("t", rows, "k")
        threads.append(threading.Thread(target=late, args=(txn, rows), name="late"))
        threads[0].start()
        assert inside.wait(DEADLINE_S)

    flights.commit(sink.each(write), [{"k": "a"}])
    assert [str(error) for error in errors] == ["table late: the transaction of batch 0 has ended"]
    assert flights.rows("t") == {"a": {}}


async def never_awaited(txn, rows):
    txn.upsert("t", rows, "k")


async def never_iterated(txn, rows):
    txn.upsert("t", rows, "k")
    yield


def generated(txn, rows):
    txn.upsert("t", rows, "k")
    yield


FUNCTIONS = {"async": never_awaited, "async, with yield": never_iterated, "a generator": generated}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_function_that_did_not_run_is_refused(stream, kind):
    """Red before: each batch became an empty version, and the query went on."""
    flights = stream("k string")
    sink = flights.sink()
    write = FUNCTIONS[kind]
    flights.add([{"k": "a"}])
    refused = flights.run(sink.each(write)).error
    assert isinstance(refused, ConfigError)
    assert f"the function is {kind.partition(',')[0]}, and did not run; nothing was decided" in str(refused)
    flights.commit(sink.each(lambda txn, rows: txn.upsert("t", rows, "k")))
    assert flights.rows("t") == {"a": {}}


@pytest.mark.parametrize(
    "raised", [SystemExit(3), asyncio.CancelledError()], ids=lambda one: type(one).__name__
)
def test_a_function_that_exits_ends_its_query(stream, raised):
    """Red before: the thread in which Spark had called it was gone, and the query stayed active for good."""
    flights = stream("k string")
    sink = flights.sink()

    def write(txn, rows):
        txn.upsert("t", rows, "k")
        raise raised

    flights.add([{"k": "a"}])
    error = flights.run(sink.each(write)).error
    assert isinstance(error, FunctionError)
    assert f"it raised {type(raised).__name__}" in str(error)
    assert sink.last_decided is None


@udf(DoubleType())
def chance():
    return random.random()


@pytest.mark.both_ways
def test_a_function_is_called_with_what_its_variables_were_at_the_call(stream):
    """Red before: each function of a loop had the loop's last value, in every table."""
    flights = stream("k string, n int")

    def write(txn, rows):
        kept = {"by": 10}
        for factor in (1, 2):

            def times(*_):
                return {"n": factor * kept["by"]}  # noqa: B023 - as users write it

            txn.update(f"u{factor}", rows, "k", times, schema="n int")
        kept["by"], factor = 0, 0

    flights.commit(flights.sink().each(write), [{"k": "a", "n": 1}])
    assert [flights.rows(f"u{factor}")["a"]["n"] for factor in (1, 2)] == [10, 20]


class OfTwoError(Exception):
    """As many have it: its pickle has one argument."""

    def __init__(self, code, words):
        super().__init__(f"{code} {words}")


def test_a_function_that_cannot_be_copied_is_refused_by_name(stream):
    kept = OfTwoError(1, "x")
    flights = stream("k string")

    def write(txn, rows):
        txn.update("t", rows, "k", lambda *_: {"n": len(str(kept))}, schema="n int")

    flights.add([{"k": "a"}])
    error = flights.run(flights.sink().each(write)).error
    assert isinstance(error, ConfigError)
    assert "table t: Spark cannot copy the function to the executors: TypeError" in str(error)


def of_chance(rows):
    return rows.withColumn("r", chance.asNondeterministic()())


def written(flights, write):
    """The column of chance in tables a and b, which one version has of the same rows."""
    sink = flights.sink()
    flights.commit(
        lambda rows, batch: sink.each(write)(of_chance(rows), batch), [{"k": key} for key in "abcd"]
    )
    return [{key: row["r"] for key, row in flights.rows(table).items()} for table in "ab"]


@pytest.mark.both_ways
def test_a_batch_that_the_function_persists_is_one_for_all_tables_and_is_unpersisted(stream):
    """Red before: the page had `unpersist()` at the function's end, and no row was the same in both."""
    given = []

    def write(txn, rows):
        given.append(rows.persist())
        txn.upsert("a", rows, "k")
        txn.upsert("b", rows, "k")

    a, b = written(stream("k string"), write)
    assert a == b
    assert not given[0].is_cached


def test_a_batch_that_was_persisted_before_stays_so(stream):
    given = []

    def write(txn, rows):
        txn.upsert("a", rows, "k")
        txn.upsert("b", rows, "k")

    flights = stream("k string")
    sink = flights.sink()

    def run(rows, batch):
        given.append(of_chance(rows).persist())
        sink.each(write)(given[0], batch)

    flights.commit(run, [{"k": key} for key in "abcd"])
    assert flights.rows("a") == flights.rows("b")
    assert given[0].is_cached
    given[0].unpersist()


def test_rows_that_the_function_unpersists_are_refused_if_two_tables_have_them(stream):
    def write(txn, rows):
        rows.persist()
        for table in tables:
            txn.upsert(table, rows.where("k is not null"), "k")
        rows.unpersist()

    flights = stream("k string")
    sink = flights.sink()
    tables = ["a", "b"]
    flights.add([{"k": "a"}])
    refused = flights.run(sink.each(write))
    assert "tables a, b: the function unpersisted their rows" in str(refused.error)
    tables = ["a"]
    flights.commit(sink.each(write))
    assert flights.rows("a") == {"a": {}}
