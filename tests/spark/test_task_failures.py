"""Tasks that fail, die or come twice: exactly the acks that Spark returned count (T2, I2, I3)."""

from __future__ import annotations

import pytest

from tidegate.base import failpoints
from tidegate.spark.staging import apply_job, job

pytestmark = pytest.mark.spark

SCHEMA = "k string, n bigint"
ROWS = [{"k": f"k{n}", "n": n} for n in range(50)]
CONTENT = {row["k"]: {"n": row["n"]} for row in ROWS}


@pytest.fixture
def armed(monkeypatch, tmp_path):
    """Arms failpoints in the workers of one kind of task, on a task's first attempts only."""
    seen = tmp_path / "attempts"
    seen.mkdir()

    def arm(module, name, specification, attempts=1):
        original = getattr(module, name)

        def arming(*arguments):
            run = original(*arguments)

            def task(rows):
                from pyspark import TaskContext

                from tidegate.base import failpoints

                attempt = TaskContext.get().attemptNumber()
                (seen / f"{TaskContext.get().partitionId()}-{attempt}").touch()
                failpoints.arm(specification if attempt < attempts else None)
                try:
                    yield from run(rows)
                finally:
                    failpoints.arm(None)

            return task

        monkeypatch.setattr(module, name, arming)
        return lambda: sorted(path.name for path in seen.iterdir())

    return arm


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_a_users_function_that_fails_or_dies_once_is_run_again_i1_i2(stream, how):
    """The worker is killed by SIGKILL from inside the user's own function, on its first attempt."""
    flights = stream(SCHEMA)

    def once(batches):
        import os
        import signal

        from pyspark import TaskContext

        for batch in batches:
            if TaskContext.get().attemptNumber() == 0:
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                message = "the first attempt fails"
                raise ValueError(message)
            yield batch

    def each(txn, rows):
        txn.upsert("t", rows.mapInArrow(once, SCHEMA), key="k")

    flights.commit(flights.sink().each(each), ROWS)
    assert flights.rows("t") == CONTENT
    assert flights.version() == 1


def test_a_users_function_that_always_fails_ends_the_query_and_decides_nothing_i5(stream):
    flights = stream(SCHEMA)
    flights.add(ROWS)

    def never(batches):
        message = "no attempt succeeds"
        raise ValueError(message)
        yield from batches

    ran = flights.run(flights.sink().each(lambda t, r: t.upsert("t", r.mapInArrow(never, SCHEMA), key="k")))
    assert "no attempt succeeds" in str(ran.error)
    assert flights.decided() == 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("action", ["raise", "kill"])
def test_a_staging_task_that_ends_between_frames_and_ack_leaves_orphans_only_i2_i3_t2(stream, armed, action):
    """Its frames are durable, its ack never came: the second attempt's frames are the ones that count."""
    flights = stream(SCHEMA)
    attempts = armed(job, "_task", f"stage.before_ack={action}")
    sink = flights.sink(parallelism=2, driver_apply_max_changes=0)
    flights.commit(sink.each(lambda t, r: t.reduce("sums", r, "k", {"n": "sum"})), ROWS, ROWS)
    assert attempts() == ["0-0", "0-1", "1-0", "1-1"]
    assert flights.rows("sums", 1) == CONTENT
    assert flights.rows("sums") == {k: {"n": 2 * v["n"]} for k, v in CONTENT.items()}
    assert flights.segments() == 2 * (2 * 2 + 1), "an orphan for each task, and a manifest"
    with flights.gate() as gate:
        assert [info.changes for info in gate.history()] == [{"sums": 50}, {"sums": 50}]


def test_a_staging_task_that_never_acks_ends_the_query_and_the_next_run_makes_the_version_i5(
    stream, armed, monkeypatch
):
    flights = stream(SCHEMA)
    flights.add(ROWS)
    with monkeypatch.context() as patch:
        patch.setattr(job, "_task", job._task)
        attempts = armed(job, "_task", "stage.before_write=raise", attempts=4)
        ran = flights.run(flights.sink(table="t", key="k", parallelism=1))
        assert "failpoint stage.before_write" in str(ran.exception)
        assert attempts() == ["0-0", "0-1", "0-2", "0-3"]
        assert flights.decided() == flights.version() == 0
    monkeypatch.undo()
    flights.commit(flights.sink(table="t", key="k"))
    assert flights.rows("t") == CONTENT


@pytest.mark.one_in(2)
@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_executors_apply_a_large_version(stream, parallelism):
    flights = stream(SCHEMA)
    sink = flights.sink(parallelism=parallelism, driver_apply_max_changes=0, key_groups=100, frame_bytes=200)

    def each(txn, rows):
        txn.upsert("t", rows, "k", delete_when="n = 7")
        txn.reduce("sums", rows.selectExpr("n % 3 AS k", "n"), "k", {"n": "sum"})

    flights.commit(sink.each(each), ROWS, ROWS[:20])
    assert flights.rows("t") == {k: v for k, v in CONTENT.items() if v["n"] != 7}
    once = {k: sum(n for n in range(50) if n % 3 == k) for k in range(3)}
    again = {k: sum(n for n in range(20) if n % 3 == k) for k in range(3)}
    assert flights.rows("sums") == {k: {"n": once[k] + again[k]} for k in range(3)}
    with flights.gate() as gate:
        assert [info.changes for info in gate.history()] == [{"sums": 3, "t": 50}, {"sums": 3, "t": 20}]


@pytest.mark.parametrize(
    "specification", ["apply.before_chunk=raise", "apply.after_chunk=kill", "seal.after=raise"]
)
def test_an_apply_task_that_fails_is_run_again_i1_i4(stream, armed, specification):
    flights = stream(SCHEMA)
    attempts = armed(apply_job, "_tasks", specification)
    sink = flights.sink(table="t", key="k", parallelism=2, driver_apply_max_changes=0)
    flights.commit(sink, ROWS)
    assert attempts() == ["0-0", "0-1", "1-0", "1-1"]
    assert flights.rows("t") == CONTENT
    assert flights.version() == 1


def test_an_apply_that_never_succeeds_stays_decided_and_the_next_driver_finishes_it_i4_i7(
    stream, armed, monkeypatch
):
    flights = stream(SCHEMA)
    flights.add(ROWS)
    armed(apply_job, "_tasks", "apply.after_chunk=raise", attempts=4)
    ran = flights.run(flights.sink(table="t", key="k", parallelism=2, driver_apply_max_changes=0))
    assert "failpoint apply.after_chunk" in str(ran.exception)
    assert (flights.decided(), flights.version()) == (1, 0)
    monkeypatch.undo()
    sink = flights.sink(table="t", key="k")
    flights.commit(sink, ROWS[:1])
    assert sink.recovered == [1]
    assert flights.version() == 2
    assert flights.rows("t", 1) == CONTENT


def test_failpoints_of_the_tests_are_disarmed_in_the_driver():
    assert failpoints._armed is None
