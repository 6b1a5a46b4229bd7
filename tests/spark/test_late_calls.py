"""Calls of a transaction from other threads: each is in the version, or is refused."""

from __future__ import annotations

import threading

import pytest

from tidegate.errors import ConfigError
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
