"""``commit="pipelined"``: a batch ends when it is decided, its version becomes visible behind it."""

from __future__ import annotations

import contextlib
import threading

import pytest
from sink_threads import sink_threads

from tidegate.base import failpoints
from tidegate.committers.background.pipeline import PipelineThread
from tidegate.errors import ConfigError, TidegateError
from tidegate.sinks.cache import in_flight
from tidegate.sinks.open_store import open_store
from tidegate.spark.staging.job import SparkBarrier

pytestmark = pytest.mark.spark

SCHEMA = "k string, n int"


def batches(count, start=0):
    return [[{"k": f"k{n}", "n": n}, {"k": "all", "n": n}] for n in range(start, start + count)]


def newest(version):
    return {**{f"k{n}": {"n": n} for n in range(version)}, "all": {"n": version - 1}}


def sums(version):
    return {**{f"k{n}": {"n": n} for n in range(version)}, "all": {"n": sum(range(version))}}


def check(flights, version, table="t", content=newest):
    assert flights.version() == flights.decided() == version
    for at in range(1, version + 1):
        assert flights.rows(table, at) == content(at)


@pytest.fixture
def pipelined(stream):
    """A stream and a function that makes its sinks, all of them closed at the end."""
    flights = stream(SCHEMA)
    with contextlib.ExitStack() as closing:

        def sink(**options):
            made = flights.sink(commit="pipelined", **options)
            closing.callback(made.close)
            return made

        yield flights, sink


@pytest.fixture
def armed():
    yield failpoints.arm
    failpoints.arm(None)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("by_executors", [False, True])
def test_every_batch_is_one_version_in_order_i1_i2_i7(pipelined, by_executors):
    flights, make = pipelined
    sink = make(table="t", key="k", **({"driver_apply_max_changes": 0} if by_executors else {}))
    flights.commit(sink, *batches(3))
    sink.drain(60)
    check(flights, 3)
    assert sink.last_decided.version == sink.last_commit.version == 3
    assert list(sink.last_phases)[-2:] == ["decided", "sealed"]
    sink.close()
    sink.close()
    flights.commit(sink, *batches(1, start=3))
    sink.close()
    check(flights, 4)
    assert sink.recovered == []


@pytest.mark.both_ways
def test_a_batch_ends_before_its_version_is_visible_and_the_next_one_knows_its_tables(pipelined, held, poll):
    """Two in flight, and the second one writes a table that the store does not have yet."""
    flights, make = pipelined
    sink = make()

    def write(txn, rows):
        txn.upsert("t", rows, key="k")
        if txn.batch_id == 1:
            txn.delete("t", rows.where("n < 0"), key="k")

    flights.commit(sink.each(write), *batches(2))
    assert (flights.decided(), flights.version()) == (2, 0)
    assert (sink.last_decided.version, sink.last_commit) == (2, None)
    held.set()
    sink.drain(60)
    check(flights, 2)


def write_by(call):
    """Each kind of keyed state; the functions are pickled by value."""

    def add(key, rows, state, emit):
        return {"n": sum(row["n"] for row in rows) + (state["n"] if state else 0)}

    ways = {
        "reduce": lambda txn, rows: txn.reduce("sums", rows, key="k", reducers={"n": "sum"}),
        "update": lambda txn, rows: txn.update("sums", rows, key="k", fn=add, schema="n long"),
        "patch": lambda txn, rows: txn.patch("sums", rows, key="k"),
        "newer_by": lambda txn, rows: txn.upsert("sums", rows, key="k", newer_by="n"),
        "apply_changes": lambda txn, rows: txn.apply_changes("sums", rows, key="k", sequence_by="n"),
    }
    return ways[call]


WAYS = [
    *((call, 0, 0) for call in ("reduce", "update", "patch", "newer_by", "apply_changes")),
    ("reduce", 1 << 20, 0),
    ("update", 1 << 20, 0),
    ("reduce", 0, 5_000),
    ("apply_changes", 0, 5_000),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("call,cache_bytes,by_driver", WAYS)
def test_state_is_read_at_a_version_in_flight_i1(pipelined, held, call, cache_bytes, by_driver):
    """Nothing is visible until all three batches have ended; the third one changes what the second wrote."""
    flights, make = pipelined
    sink = make(state_cache_bytes=cache_bytes, commit_in_flight=3, driver_stage_max_rows=by_driver)
    flights.commit(sink.each(write_by(call)), *batches(3))
    assert (flights.decided(), flights.version()) == (3, 0)
    held.set()
    sink.drain(60)
    check(flights, 3, "sums", sums if call in ("reduce", "update") else newest)


def test_a_batch_waits_where_its_frames_in_flight_would_not_fit_i11(pipelined, held, monkeypatch):
    """Nothing is published before a batch waits for it."""
    monkeypatch.setattr(in_flight, "FRAMES_BYTES_MAX", 0)
    drain = PipelineThread.drain
    monkeypatch.setattr(PipelineThread, "drain", lambda *given: held.set() or drain(*given))
    flights, make = pipelined
    sink, stage, seen = make(state_cache_bytes=0), SparkBarrier.stage, []

    def staged(barrier, spec, base_version):
        seen.append((base_version, flights.version()))
        return stage(barrier, spec, base_version)

    monkeypatch.setattr(SparkBarrier, "stage", staged)
    flights.commit(sink.each(write_by("reduce")), *batches(3))
    sink.drain(60)
    assert seen == [(0, 0), (1, 1), (2, 2)]
    check(flights, 3, "sums", sums)


@pytest.mark.both_ways
def test_a_table_that_was_emptied_in_flight_has_no_older_state_i1(pipelined, held):
    flights, make = pipelined
    sink = make(state_cache_bytes=0, commit_in_flight=3)

    def write(txn, rows):
        if txn.batch_id == 1:
            txn.replace("sums", rows, key="k")
        else:
            txn.reduce("sums", rows, key="k", reducers={"n": "sum"})

    flights.commit(sink.each(write), *batches(3, start=1))
    assert (flights.decided(), flights.version()) == (3, 0)
    held.set()
    sink.drain(60)
    assert flights.rows("sums", 3) == {"k2": {"n": 2}, "k3": {"n": 3}, "all": {"n": 5}}


def test_local_state_is_read_where_the_base_version_is_visible_i1(pipelined):
    flights, make = pipelined
    sink = make()

    def count(instance, rows, state, emit):
        return [{"n": sum(item["n"] for item in state) + sum(1 for _ in rows)}]

    def write(txn, rows):
        txn.local_state("counts", rows, fn=count, schema="n long")

    flights.commit(sink.each(write), *batches(3))
    sink.drain(60)
    items = flights.rows("_local.counts", 3).values()
    assert sum(item["n"] for item in items) == 6


@pytest.mark.both_ways
def test_state_and_other_tables_take_turns_i1(pipelined):
    flights, make = pipelined
    sink = make(state_cache_bytes=0)

    def write(txn, rows):
        if txn.batch_id % 3:
            txn.reduce("sums", rows, key="k", reducers={"n": "sum"})
        else:
            txn.upsert("others", rows, key="k")

    def expected(version):
        rows = [row for at in range(version) if at % 3 for row in batches(1, start=at)[0]]
        return {row["k"]: {"n": sum(r["n"] for r in rows if r["k"] == row["k"])} for row in rows}

    flights.commit(sink.each(write), *batches(4))
    sink.drain(60)
    assert flights.version() == 4
    for version in range(2, 5):
        assert flights.rows("sums", version) == expected(version)


def test_an_error_in_the_background_ends_the_query_and_the_next_run_finishes_i4_i10(pipelined, armed):
    flights, make = pipelined
    sink = make(table="t", key="k")
    armed("publish.before=raise@2")
    flights.add(*batches(5))
    ran = flights.run(sink)
    assert isinstance(ran.error, TidegateError)
    assert "version 2, which an earlier batch decided, failed in the background" in str(ran.error)
    assert isinstance(ran.error.__cause__, failpoints.FailpointError)
    assert "failpoint publish.before" in str(ran.exception)
    assert flights.version() == 1
    decided = flights.decided()
    assert 2 <= decided <= 3
    flights.commit(sink)
    sink.drain(60)
    assert sink.recovered == list(range(2, decided + 1))
    check(flights, 5)


def test_a_stopped_query_has_its_versions_visible_and_its_threads_end(pipelined, held, poll):
    flights, make = pipelined
    sink = make(table="t", key="k")
    query, ran = flights.start(sink, processingTime="50 milliseconds")
    try:
        flights.add(*batches(1))
        poll(lambda: sink.last_decided is not None, "the batch is decided")
    finally:
        query.stop()
    assert flights.version() == 0
    assert any(t.name == "tidegate-heartbeat" for t in threading.enumerate()), "it is alive meanwhile"
    held.set()
    poll(lambda: flights.version() == 1, "what was decided becomes visible without a query")
    poll(lambda: not sink_threads(), "the threads end")
    assert ran.error is None
    check(flights, 1)


def test_a_load_is_visible_when_it_returns(pipelined):
    flights, make = pipelined
    sink = make(table="t", key="k")
    rows = flights.spark.createDataFrame([{"k": "k0", "n": 0}, {"k": "all", "n": 0}], SCHEMA)
    assert sink.load({"t": rows}, token="first") == 1
    check(flights, 1)


# -- sink.recover -----------------------------------------------------------------------------------


def leave_in_flight(flights, make, armed):
    """A driver that decided two versions, and published none of them."""
    sink = make(table="t", key="k")
    armed("publish.before=raise")
    flights.add(*batches(2))
    ran = flights.run(sink)
    with contextlib.suppress(TidegateError):
        sink.close()
    armed(None)
    assert flights.version() == 0
    assert ran.error is None or flights.decided() < 2
    return sink


def test_a_sink_recovers_without_input_and_writes_nothing_when_there_is_nothing_to_do_i4(pipelined, armed):
    flights, make = pipelined
    make(table="t", key="k")
    assert flights.records() == [], "building a sink writes nothing"
    fresh = make(table="t", key="k")
    assert fresh.recover() == []
    assert flights.records() == []
    leave_in_flight(flights, make, armed)
    decided, epoch = flights.decided(), flights.view().state.epoch
    with contextlib.closing(open_store(flights.store, "flights")) as store:
        store.heartbeat(epoch)  # as if that driver had not been closed
    with pytest.raises(ConfigError, match=r"sink.recover\(\) would fence it"):
        fresh.recover()
    assert fresh.recover(force=True) == fresh.recovered == list(range(1, decided + 1))
    assert flights.version() == decided
    assert flights.view().state.epoch == epoch + 1
    assert fresh.recover() == [], "its own sign of life is no other writer's"
    assert flights.view().state.epoch == epoch + 1
    flights.commit(fresh)
    fresh.close()
    check(flights, 2)


def test_the_sink_that_failed_recovers_at_once(pipelined, armed):
    flights, make = pipelined
    sink = leave_in_flight(flights, make, armed)
    assert sink.recover() == list(range(1, flights.decided() + 1))
    flights.commit(sink)
    assert sink.recover() == []  # it is open: it drains
    check(flights, 2)
