"""Preferred locations: their names, what Spark is asked for, and that trouble with it is a warning only."""

from __future__ import annotations

import uuid
from functools import partial

import msgspec
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import functions

from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.memory.store import MemoryStore
from tidegate.spark.placement import preferred as placement
from tidegate.spark.placement.assignment import RanAt
from tidegate.spark.placement.locality import LocalityManager, MemoryMetadataStore
from tidegate.spark.placement.preferred import PRODUCT_MAX, Placement, Places, preferred, ran_before
from tidegate.spark.staging.job import SparkBarrier
from tidegate.testing.arrow_barrier import ArrowBarrier
from tidegate.testing.arrow_barrier import batch as batch_of
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.record import LoadOrigin
from tidegate.wal.staging.acks import Ack

pytestmark = pytest.mark.spark

HOSTS = {"0": "a", "1": "b"}


class Context:
    """What placement asks a SparkContext for, answered here."""

    master = "spark://somewhere:7077"


@pytest.fixture
def cluster(monkeypatch):
    """Executors and their hosts; change it to lose or add some."""
    executors = dict(HOSTS)
    monkeypatch.setattr(placement, "executor_ids", lambda _: ",".join(sorted(executors)))
    monkeypatch.setattr(placement, "executors_now", lambda _: dict(executors))
    monkeypatch.setattr(placement, "locations_of", lambda _, new, __: dict(new))
    return executors


def acks(*ran):
    return [Ack("a", task, "", host, (), 0, executor=name) for task, (name, host) in enumerate(ran)]


@pytest.mark.parametrize(
    "executor,host,name",
    [("0", "a", "executor_a_0"), ("12", "10.0.0.1", "executor_10.0.0.1_12"), ("0", "my_host", "my_host")],
)
def test_the_name_of_a_place_is_the_one_that_spark_takes_apart(executor, host, name):
    """At its first two underscores: a host with one of its own is named alone."""
    assert preferred(executor, {executor: host}) == name


def test_a_key_group_is_at_the_place_of_its_task():
    places = Places(10, ("0", "1", "0"), HOSTS)
    found = [places.location_of(group) for group in range(10)]
    assert found == ["executor_a_0"] * 4 + ["executor_b_1"] * 3 + ["executor_a_0"] * 3


def test_tasks_stay_where_they_ran_and_another_driver_knows(cluster):
    store = MemoryMetadataStore()
    first = Placement(metadata=store)
    assert first.places(Context(), "q", 4, 8).executors == ("0", "1", "0", "1")
    first.ran(acks(("0", "a"), ("1", "b"), ("1", "b"), ("0", "a")))  # Spark did not follow for the last two
    assert first.met == (2, 4)
    for placed in (first, Placement(metadata=store)):
        assert placed.places(Context(), "q", 4, 8).executors == ("0", "1", "1", "0")
    assert Placement(metadata=store).places(Context(), "another", 4, 8).executors == ("0", "1", "0", "1")


def test_another_driver_knows_by_the_log_where_tasks_ran(cluster):
    """Also when the driver staged the last batch, or a load came after it. Another lineage starts without."""
    place = uuid.uuid4().hex
    where = Endpoints("n", f"memory://{place}", f"memory://{place}")

    def opened(lineage="q"):
        driver = Coordinator(where, MemoryLog(place, "n"), MemoryStore(place, "n"), Options(key_groups=8))
        open_namespace(driver, lineage)
        return driver

    class ByExecutors(ArrowBarrier):
        def stage(self, spec, base_version):
            staged = super().stage(spec, base_version)
            ran = [("1", "b"), ("", "c"), ("0", "a")]
            return [
                msgspec.structs.replace(ack, executor=name, host=host)
                for ack, (name, host) in zip(staged, ran, strict=True)
            ]

    first = opened()
    assert ran_before(first, "q") == []
    commit(first, ByExecutors(first.log, {"t": {b"k": b"v"}}, batch_of("q", 0), 8, parallelism=3))
    commit(first, ArrowBarrier(first.log, {"t": {b"k": b"w"}}, batch_of("q", 1), 8, parallelism=1))
    second = opened()
    for driver in (first, second):
        assert ran_before(driver, "q") == [RanAt("1", "b"), None, RanAt("0", "a")]
        assert ran_before(driver, "another") == []
    placed = Placement(partial(ran_before, second))
    assert placed.places(Context(), "q", 3, 8).executors == ("1", "0", "0")
    commit(second, ArrowBarrier(second.log, {"t": {b"k": b"x"}}, LoadOrigin("a load"), 8))
    for driver in (second, opened()):
        assert ran_before(driver, "q") == [RanAt("1", "b"), None, RanAt("0", "a")]
    second.last_manifest, second.decisions.log = None, MemoryLog(uuid.uuid4().hex, "n")
    assert ran_before(second, "q") == []


def test_an_executor_that_does_not_answer_is_where_others_of_its_host_are(cluster, monkeypatch):
    store = MemoryMetadataStore()
    monkeypatch.setattr(placement, "locations_of", lambda *_: {"0": "rack-1", "1": "rack-2"})
    placed = Placement(metadata=store)
    placed.places(Context(), "q", 2, 8)
    placed.ran(acks(("0", "rack-1"), ("1", "rack-2")))
    del cluster["1"]
    cluster["2"] = "b"
    monkeypatch.setattr(placement, "locations_of", lambda *_: {})
    for again in (placed, Placement(metadata=store)):
        assert again.places(Context(), "q", 2, 8).executors == ("0", "2")


def test_another_parallelism_goes_where_the_key_groups_were(cluster):
    placed = Placement()
    placed.places(Context(), "q", 2, 8)
    placed.ran(acks(("1", "b"), ("0", "a")))
    assert placed.places(Context(), "q", 4, 8).executors == ("1", "1", "0", "0")


def test_executors_are_lost_and_added(cluster):
    placed = Placement()
    placed.places(Context(), "q", 4, 8)
    placed.ran(acks(("0", "a"), ("1", "b"), ("0", "a"), ("1", "b")))
    cluster["2"] = "b"
    del cluster["1"]
    assert placed.places(Context(), "q", 4, 8).executors == ("0", "2", "0", "2")
    placed.ran(acks(("0", "a"), ("2", "b"), ("0", "a"), ("2", "b")))
    del cluster["2"]
    assert placed.places(Context(), "q", 4, 8) is None  # one alone: nothing to choose
    placed.ran(acks(*[("0", "a")] * 4))
    assert placed.met == (0, 0)
    cluster["3"] = "b"
    again = placed.places(Context(), "q", 4, 8).executors
    assert again == ("0", "0", "3", "3"), "by where tasks ran last, not by where they were before"


def test_a_task_that_cannot_say_where_it_ran_is_assigned_anew(cluster):
    store = MemoryMetadataStore()
    placed = Placement(metadata=store)
    placed.places(Context(), "q", 2, 8)
    placed.ran(acks(("", "somewhere"), ("1", "b")))
    assert LocalityManager(store, "q").task_locality() == [None, RanAt("1", "b")]
    assert placed.met == (1, 2)


def test_beyond_a_limit_tasks_run_anywhere(cluster):
    assert Placement().places(Context(), "q", PRODUCT_MAX // 2 + 1, 8) is None


@pytest.mark.parametrize("master", ["local", "local[2]", "local[2,4]", "local[*]"])
def test_one_process_is_no_choice(monkeypatch, master):
    context = Context()
    context.master = master
    assert Placement().places(context, "q", 4, 8) is None


def test_a_spark_that_does_not_tell_is_one_warning(monkeypatch, caplog):
    def refuse(_):
        raise Py4JError("Method getExecutorIds([]) does not exist")

    monkeypatch.setattr(placement, "executor_ids", refuse)
    placed = Placement()
    for _ in range(2):
        assert placed.places(Context(), "q", 4, 8) is None
    placed.ran(acks(("0", "a")))
    assert len(caplog.records) == 1
    assert "tasks run anywhere" in caplog.records[0].getMessage()


# -- a stage in the middle of a job ---------------------------------------------------------------


@pytest.mark.slow
def test_rows_of_a_stage_in_the_middle_are_each_there_once_by_task(spark):
    """On one process, which has none of these executors: the hints come to nothing, the rows are the same."""
    given = spark.range(1_000).select("id", (functions.col("id") % 4).cast("int").alias("g"))
    shuffled = given.repartitionById(4, functions.col("g")).sortWithinPartitions("id")
    found = placement.placed(shuffled, Places(8, ("1", "0", "1", "0"), HOSTS))
    partition = functions.spark_partition_id().alias("p")
    rows = found.select("id", "g", partition).collect()
    assert sorted((row.id, row.g) for row in rows) == [(n, n % 4) for n in range(1_000)]
    order = [1, 3, 0, 2]  # of the first executor, then of the second
    assert {(row.p, row.g) for row in rows} == set(enumerate(order))
    for task in range(4):
        ids = [row.id for row in rows if row.g == task]
        assert ids == sorted(ids), "a task's rows keep their order"


@pytest.mark.slow
def test_an_update_beside_other_calls_is_the_same_when_it_is_placed(stream, monkeypatch, tmp_path):
    """Its first stage knows its task by its rows: partitions are in another order, behind another call's."""
    flights = stream("k string, n bigint")

    def total(key, rows, state, emit):
        new = sum(row["n"] for row in rows)
        emit("last", "same", {"by": key})
        return state if new == 0 and state else {"n": (state or {"n": 0})["n"] + new}

    def write(txn, rows):
        outputs = {"last": ("k string", "by string")}
        txn.upsert("copies", rows, "k")
        txn.update("sums", rows, "k", total, schema="n bigint", outputs=outputs)

    batches = [[{"k": f"k{n}", "n": n * batch} for n in range(60)] for batch in (1, 0, 0)]
    winners, reads = [], []
    for executors in (None, ("1", "0", "1")):
        places = executors and Places(128, executors, HOSTS)
        monkeypatch.setattr(SparkBarrier, "_places", lambda _, places=places: places)
        local = tmp_path / f"local-{bool(places)}"
        named = stream("k string, n bigint", f"placed-{bool(places)}") if places else flights
        sink = named.sink(parallelism=3, local_dir=str(local), key_groups=128)
        for batch in batches:
            named.commit(sink.each(write), batch)
            reads.append((sink.last_state.hits, sink.last_state.misses))
        assert named.rows("sums") == {f"k{n}": {"n": n} for n in range(60)}
        assert named.rows("copies") == {f"k{n}": {"n": 0} for n in range(60)}
        winners.append(named.rows("last"))
    assert winners[0] == winners[1], "the last one emitted is of the last key group, wherever it ran"
    assert reads == [(0, 0), (60, 0), (60, 0)] * 2


def test_where_a_load_ran_is_nothing_for_the_next_batch(stream, spark, monkeypatch):
    named, batches = stream("k string, n bigint"), []
    monkeypatch.setattr(Placement, "ran", lambda _, acks: batches.append(len(acks)))
    sink = named.sink(parallelism=2)
    named.commit(sink.each(lambda txn, rows: txn.upsert("t", rows, "k")), [{"k": "a", "n": 1}])
    assert batches == [2]
    sink.load({"t": spark.createDataFrame([("b", 2)], "k string, n bigint")}, token="one", key="k")
    assert batches == [2]
