"""Another parallelism at every batch: state stays where it is, the new tasks ask for other key groups.

I1, I2, I4: by option, by the executors there are, and when the old driver died in between.
"""

from __future__ import annotations

import json
import os
import sys

import pytest
from pyspark import cloudpickle

import tidegate
from tidegate.base import failpoints
from tidegate.committers.apply.apply import read_manifest
from tidegate.errors import ConfigError
from tidegate.spark import VersionedSink
from tidegate.spark.staging.parallelism import slots_now
from tidegate.wal.fold import View, fold_all
from tidegate.wal.record import COMPONENT

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests

SCHEMA = "k string, n bigint"
KEY_GROUPS = 11


@pytest.fixture(autouse=True)
def disarmed():
    yield
    failpoints.arm(None)


def summing(sink):
    return sink.each(lambda txn, rows: txn.reduce("sums", rows, "k", {"n": "sum"}))


def batch(step):
    return [{"k": f"k{n % 40}", "n": n + step} for n in range(120)]


def sums(steps):
    expected = {}
    for row in (row for step in steps for row in batch(step)):
        expected[row["k"]] = expected.get(row["k"], 0) + row["n"]
    return {key: {"n": total} for key, total in expected.items()}


def manifests(flights):
    facts = flights.view().state.recent
    with flights.log.opened("flights") as log:
        return [read_manifest(log, fact) for fact in facts]


def test_2_7_3_1_and_every_key_group(stream):
    """The state is right after each change, and each version says how many tasks staged it."""
    flights = stream(SCHEMA)
    steps = [2, 7, 3, 1, KEY_GROUPS]
    for step, parallelism in enumerate(steps):
        sink = flights.sink(
            parallelism=parallelism,
            key_groups=KEY_GROUPS if step == 0 else None,
            driver_apply_max_changes=0,
        )
        flights.commit(summing(sink), batch(step))
        sink.close()
        assert flights.rows("sums") == sums(range(step + 1))
    with flights.gate() as gate:
        assert [info.parallelism for info in gate.history()] == steps
    for manifest, parallelism in zip(manifests(flights), steps, strict=True):
        component = manifest.topology["flights"][COMPONENT]
        assert component.parallelism == parallelism
        assert sorted(map(int, component.instances)) == list(range(parallelism))
        touched = {group: sum(of_table.values()) for group, of_table in manifest.counts().items()}
        assert sum(touched.values()) == len(sums([0]))
        assert touched.keys() <= set(range(KEY_GROUPS))


def test_nothing_is_moved(stream):
    """A batch after the change writes its own keys only: nothing of the state is read back into the log."""
    flights = stream(SCHEMA)
    flights.commit(summing(flights.sink(parallelism=2)), batch(0))
    before = flights.rows("sums")
    flights.commit(summing(flights.sink(parallelism=7)), [{"k": "k1", "n": 1}])
    assert [len(m.counts()) for m in manifests(flights)][1] == 1
    with flights.gate() as gate:
        assert gate.history()[1].changes == {"sums": 1}
    assert flights.rows("sums") == before | {"k1": {"n": before["k1"]["n"] + 1}}


@pytest.mark.parametrize("key_groups,tasks", [(KEY_GROUPS, 2), (1, 1)])
def test_by_the_executors_there_are(spark, stream, key_groups, tasks):
    """Two slots here (``local[2]``), whatever default parallelism somebody configured."""
    assert slots_now(spark.sparkContext) == 2
    flights = stream(SCHEMA)
    flights.commit(summing(flights.sink(parallelism="executors", key_groups=key_groups)), batch(0))
    with flights.gate() as gate:
        assert [info.parallelism for info in gate.history()] == [tasks]


def test_more_tasks_than_key_groups_are_refused_before_anything_is_written(stream):
    """What the namespace was made with is known at the first batch only."""
    flights = stream(SCHEMA)
    flights.commit(summing(flights.sink(parallelism=2, key_groups=KEY_GROUPS)), batch(0))
    flights.add(batch(1))
    ran = flights.run(summing(flights.sink(parallelism=KEY_GROUPS + 1)))
    assert isinstance(ran.error, ConfigError)
    assert "parallelism is 12, there are 11 key groups in this namespace" in str(ran.error)
    assert flights.decided() == 1
    flights.commit(summing(flights.sink(parallelism=KEY_GROUPS)))
    assert flights.rows("sums") == sums([0, 1])


def test_a_version_that_was_decided_is_applied_from_its_own_manifest_i4(stream):
    """The driver is gone after the decision, at 2 tasks; the next one has 5 and never saw the batch."""
    flights = stream(SCHEMA)
    options = {"key_groups": KEY_GROUPS, "driver_apply_max_changes": 0}
    flights.commit(summing(flights.sink(parallelism=2, **options)), batch(0))
    flights.add(batch(1))
    failpoints.arm("decide.after_append=raise")
    ran = flights.run(summing(flights.sink(parallelism=2, **options)))
    assert isinstance(ran.error, failpoints.FailpointError)
    failpoints.arm(None)
    assert (flights.decided(), flights.version()) == (2, 1)
    sink = flights.sink(parallelism=5, **options)
    flights.commit(summing(sink), batch(2))
    assert sink.recovered == [2]
    with flights.gate() as gate:
        assert [info.parallelism for info in gate.history()] == [2, 2, 5]
    for version in (1, 2, 3):
        assert flights.rows("sums", version) == sums(range(version))


def keep(instance, rows, state, emit):
    return [*state, *(b"%d" % row["n"] for row in rows)]


def add(key, rows, state, emit):
    return {"n": (state["n"] if state else 0) + sum(row["n"] for row in rows)}


def stateful(sink):
    def each(txn, rows):
        txn.reduce("sums", rows, "k", {"n": "sum"})
        txn.update("updated", rows, "k", add, schema="n bigint")
        txn.local_state("seen", rows, keep)

    return sink.each(each)


@pytest.mark.slow
@pytest.mark.timeout(600)  # each driver that fails leaves its threads to end
@pytest.mark.parametrize(
    "first, then",
    [
        ("decide.after_append", "apply.after_chunk"),
        ("apply.after_chunk", "seal.after"),
        ("seal.after", "publish.before"),
        ("publish.before", "apply.after_chunk"),
    ],
)
def test_a_rescale_in_the_middle_of_a_recovery_i1_i2_i4(stream, first, then):
    """A driver at 2 fails, one at 5 while it recovers that; one at 1 finishes, then 5 and 1 go on."""
    flights = stream(SCHEMA)
    options = {"key_groups": KEY_GROUPS}
    flights.commit(stateful(flights.sink(parallelism=2, **options)), batch(0))
    flights.add(batch(1))
    for parallelism, place in ((2, first), (5, then)):
        failpoints.arm(f"{place}=raise")
        ran = flights.run(stateful(flights.sink(parallelism=parallelism, **options)))
        assert isinstance(ran.error, failpoints.FailpointError)
        failpoints.arm(None)
        assert (flights.decided(), flights.version()) == (2, 1)
    steps = [2, 2]
    for parallelism in (1, 5, 1):
        sink = flights.sink(parallelism=parallelism, **options)
        steps.append(parallelism)
        flights.commit(stateful(sink), batch(len(steps) - 1))
        for version in range(1, len(steps) + 1):
            assert flights.rows("sums", version) == flights.rows("updated", version) == sums(range(version))
            items = sorted(int(item) for item in flights.rows("_local.seen", version).values())
            assert items == sorted(row["n"] for step in range(version) for row in batch(step))
    with flights.gate() as gate:
        assert [info.parallelism for info in gate.history()] == steps


@pytest.mark.slow
def test_another_cluster_with_another_parallelism_goes_on_i2_i4(spark, tmp_path, log_at, drive):
    """One Spark application is killed between its decision and its apply; another one goes on."""
    (tmp_path / "input").mkdir()
    batches = [[{"k": f"k{n % 9}", "n": n} for n in range(30)] for _ in range(3)]
    for at, rows in enumerate(batches):
        path = tmp_path / "input" / f"{at}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_600_000_000 + 100 * at,) * 2)
    log = log_at(tmp_path)
    words = (json.dumps(log.keywords), "local[1]", "none")
    code, told = drive("killed_driver.py", tmp_path, *words, armed="decide.after_append=kill@2")
    assert code == -9, told
    sink = VersionedSink(
        namespace="flights", store=f"sqlite://{tmp_path}/store", parallelism=5, **log.keywords
    )
    query = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .json(str(tmp_path / "input"))
        .writeStream.foreachBatch(summing(sink))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(90)
    sink.close()
    assert sink.recovered == [2]
    with log.opened("flights") as opened:
        assert fold_all(View(), opened.decisions()).state.last_version == 3
    with tidegate.connect(f"sqlite://{tmp_path}/store", namespace="flights") as gate:
        assert [info.parallelism for info in gate.history()] == [2, 2, 5]
        expected = {}
        for row in (row for rows in batches for row in rows):
            expected[row["k"]] = {"n": expected.get(row["k"], {"n": 0})["n"] + row["n"]}
        with gate.snapshot() as snapshot:
            assert dict(snapshot.table("sums").scan()) == expected


def test_a_new_namespace_has_key_groups_for_its_tasks_and_an_older_one_says_what_it_lacks(stream, caplog):
    caplog.set_level("WARNING", "tidegate")
    sums = stream(SCHEMA)
    sums.commit(summing(sums.sink(parallelism=13)), [{"k": "a", "n": 1}])
    assert sums.view().state.key_groups == 256
    assert "more work for some" not in caplog.text
    sums.commit(summing(sums.sink(parallelism=30)), [{"k": "a", "n": 1}])
    assert "of 30 tasks 16 have 9 of the 256 key groups, the others 8: 12 % more work" in caplog.text
    assert sums.rows("sums") == {"a": {"n": 2}}


def test_executors_that_leave_an_imbalance_are_told_of_at_the_batch_that_they_come_with(
    stream, caplog, monkeypatch
):
    caplog.set_level("WARNING", "tidegate")
    sums = stream(SCHEMA)
    sink = sums.sink(parallelism="executors")
    for slots, told in ((13, 0), (30, 1), (30, 1)):
        monkeypatch.setattr("tidegate.spark.staging.parallelism.slots_now", lambda _, now=slots: now)
        sums.commit(summing(sink), [{"k": "a", "n": 1}])
        assert caplog.text.count("12 % more work") == told
    assert sums.rows("sums") == {"a": {"n": 3}}
