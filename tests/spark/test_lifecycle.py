"""A sink's life: closed, used again, its threads, triggers, and what it keeps (I8, I11)."""

from __future__ import annotations

import contextlib
import shutil
import threading
import traceback

import pytest
from sink_threads import sink_threads

import tidegate
from tidegate.errors import SnapshotExpiredError
from tidegate.observe import events
from tidegate.observe.events import Observer
from tidegate.sinks.open_store import open_store
from tidegate.spark import batch

pytestmark = pytest.mark.spark

SCHEMA = "k string, n int"


class Failures(Observer):
    """The errors of failed batches."""

    def __init__(self):
        self.errors = []

    def failed(self, commit, error):
        self.errors.append(error)


def batches(count, start=0):
    return [[{"k": f"k{n}", "n": n}] for n in range(start, start + count)]


def content(count):
    return {f"k{n}": {"n": n} for n in range(count)}


def test_one_sink_serves_run_after_run_closed_or_not(stream):
    flights = stream(SCHEMA)
    sink = flights.sink(table="t", key="k")
    flights.commit(sink, *batches(1))
    epoch = flights.view().state.epoch
    flights.commit(sink, *batches(1, start=1))
    assert flights.view().state.epoch == epoch, "it was still open"
    sink.close()
    sink.close()
    assert sink_threads() == []
    flights.commit(sink, *batches(1, start=2))
    assert flights.view().state.epoch == epoch + 1
    assert flights.rows("t") == content(3)
    assert sink.last_commit.version == 3
    assert sink.recovered == []


def test_a_query_with_a_trigger_interval_takes_what_comes_and_its_threads_end_with_it(stream, poll):
    flights = stream(SCHEMA)
    sink = flights.sink(table="t", key="k")
    query, ran = flights.start(sink, processingTime="50 milliseconds")
    try:
        for n in range(3):
            flights.add(*batches(1, start=n))
            poll(lambda n=n: sink.last_commit is not None and sink.last_commit.version == n + 1, "a version")
        assert flights.rows("t") == content(3)
        assert sink_threads() == ["tidegate-heartbeat", "tidegate-measure", "tidegate-retire_and_trim"]
        store = open_store(flights.store, "flights")
        assert store.pointer().heartbeat_age_s < 60
        store.close()
    finally:
        query.stop()
    poll(lambda: sink_threads() == [], "the heartbeat ends with its query")
    assert ran.error is None
    flights.commit(sink, *batches(1, start=3))
    assert flights.rows("t") == content(4)


@pytest.mark.parametrize("where", ["function", "context"])
def test_a_stop_in_the_middle_of_a_batch_is_no_failure_and_is_told_in_a_few_words(
    stream, poll, monkeypatch, caplog, where
):
    """Spark searches the text with a pattern that overflows its stack when it is a page long."""
    flights = stream(SCHEMA)
    sink = flights.sink(table="t", key="k")
    flights.commit(sink, *batches(1))
    flights.add(*batches(1, start=1))
    begun = threading.Event()

    def sleep(session):
        begun.set()
        session._jvm.java.lang.Thread.sleep(60_000)
        return ()

    def write(txn, rows):
        sleep(rows.sparkSession)

    if where == "context":  # while the batch's offsets are read
        monkeypatch.setattr(batch, "_files_of", lambda session, *_: sleep(session))

    failures = Failures()
    events.add(failures)
    try:
        query, ran = flights.start(sink.each(write))
        assert begun.wait(60)
        query.stop()
        poll(lambda: ran.error is not None, "the batch ends")
    finally:
        events.remove(failures)
    monkeypatch.undo()
    assert failures.errors == []
    assert sink.last_error is None
    assert [
        one.message for one in caplog.records if one.name == "tidegate" and one.levelname == "ERROR"
    ] == []
    assert query.exception() is None
    assert "py4j.protocol.Py4JJavaError: An error occurred while calling" in str(ran.error)
    assert "java.lang.InterruptedException" in str(ran.error)
    text = "".join(traceback.format_exception(ran.error))
    assert "interrupted; nothing is lost" in text
    assert len(text.partition("Py4JJavaError")[2]) < 1_000
    assert flights.decided() == flights.version() == 1
    flights.commit(sink)
    assert flights.rows("t") == content(2)


def test_old_versions_are_retired_and_the_newest_stay_readable_i8_t28(stream, poll):
    flights = stream(SCHEMA)
    sink = flights.sink(table="t", key="k", keep_versions=2)
    store = open_store(flights.store, "flights")
    flights.commit(sink, *batches(1))
    flights.add(*batches(4, start=1))
    query, ran = flights.start(sink, processingTime="50 milliseconds")
    try:
        poll(lambda: store.pointer().horizon == 4, "versions 1 to 3 are retired")
    finally:
        query.stop()
        store.close()
    assert ran.error is None
    with flights.gate() as gate:
        assert [info.version for info in gate.history()] == [4, 5]
        with pytest.raises(SnapshotExpiredError, match=r"version 3.*oldest that can be read is 4"):
            gate.snapshot(version=3)
    assert flights.rows("t", 4) == content(4)
    assert flights.rows("t") == content(5)


def test_two_sinks_of_two_namespaces_share_a_log_a_store_and_a_batch_t47(stream):
    flights = stream(SCHEMA)
    one, other = (flights.sink(table="t", key="k", namespace=name) for name in ("a.b", "a_b"))

    def both(rows, batch_id):
        one(rows, batch_id)
        other(rows.where("n > 0"), batch_id)

    flights.commit(both, *batches(2))
    assert one.last_commit.version == other.last_commit.version == 2
    for name, expected in (("a.b", content(2)), ("a_b", {"k1": {"n": 1}})):
        store = open_store(flights.store, name)
        assert store.pointer().visible == 2
        store.close()
        from_gate = tidegate.connect(flights.store, namespace=name)
        assert dict(from_gate.table("t").scan()) == expected
        from_gate.close()


def test_a_driver_that_was_overtaken_stops_and_writes_nothing_i6_t1(stream):
    """Another sink opens the namespace for the same checkpoint: the first one is fenced."""
    flights = stream(SCHEMA)
    old, new = flights.sink(table="t", key="k"), flights.sink(table="t", key="k")
    flights.commit(old, *batches(1))
    flights.commit(new, *batches(1, start=1))
    flights.add(*batches(1, start=2))
    ran = flights.run(old)
    assert type(ran.error).__name__ == "FencedError"
    assert "FencedError" in str(ran.exception)
    assert flights.decided() == flights.version() == 2
    flights.commit(old)  # it opens again, with an epoch of its own
    assert flights.rows("t") == content(3)


def test_a_namespace_made_anew_is_written_by_workers_that_knew_the_dropped_one_i1(stream):
    """Spark's workers live on: with the old files still open they would write where nobody reads."""
    flights = stream(SCHEMA)
    for turn in range(2):
        with contextlib.closing(flights.sink(table="t", key="k", driver_apply_max_changes=0)) as sink:
            sink.load(
                {"t": flights.spark.createDataFrame([{"k": f"k{n}", "n": turn} for n in range(20)], SCHEMA)},
                token="first",
            )
        assert flights.rows("t") == {f"k{n}": {"n": turn} for n in range(20)}
        if turn == 0:
            with contextlib.closing(open_store(flights.store, "flights")) as store:
                store.drop()
            with flights.log.opened("flights") as log:
                log.drop()


def test_a_query_whose_store_is_removed_goes_on(stream):
    """Between two batches, and in the middle of one: the log has everything."""
    flights = stream(SCHEMA)
    folder = flights.folder / "store" / "flights"
    with contextlib.closing(flights.sink(table="t", key="k", driver_apply_max_changes=0)) as sink:
        flights.commit(sink, *batches(2))
        shutil.rmtree(folder)
        flights.commit(sink, *batches(1, start=2))
        assert flights.rows("t") == content(3)
        losses = [folder]

        def write(txn, rows):
            while losses:
                shutil.rmtree(losses.pop())
            txn.upsert("t", rows, "k")

        flights.commit(sink.each(write), *batches(1, start=3))
    assert flights.rows("t") == content(4)
    assert flights.decided() == flights.version() == 4
