"""Replays: a batch that comes again makes no second version, whatever its rows are now.

I2 Exactly once, I4 Roll forward, I5 Nothing before decided.
"""

from __future__ import annotations

import pytest
from pyspark.sql import functions

from tidegate.base import failpoints

pytestmark = pytest.mark.spark

SCHEMA = "k string, n bigint"
BATCHES = [[{"k": "a", "n": 1}, {"k": "b", "n": 2}], [{"k": "a", "n": 10}], [{"k": "c", "n": 100}]]
SUMS = {"a": {"n": 11}, "b": {"n": 2}, "c": {"n": 100}}


@pytest.fixture(autouse=True)
def disarmed():
    yield
    failpoints.arm(None)


def forget_last_commit(flights):
    """As if the driver had died before it wrote Spark's commit log."""
    commits = flights.checkpoint / "commits"
    last = max((p for p in commits.iterdir() if p.name.isdecimal()), key=lambda p: int(p.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)
    return int(last.name)


def body(calls, generation=None):
    """A body that notes its calls; ``generation`` makes its rows differ from call to call."""

    def each(txn, rows):
        calls.append((txn.batch_id, txn.base_version))
        if generation is not None:
            generation.append(len(generation))
            mark = functions.lit(len(generation))
            txn.upsert(
                "marks",
                rows.select(functions.concat("k", mark.cast("string")).alias("k"), mark.alias("n")),
                "k",
            )
        txn.upsert("newest", rows, key="k")
        txn.reduce("sums", rows, key="k", reducers={"n": "sum"})

    return each


def test_a_batch_without_its_commit_file_is_not_run_again_i2_t9_t10(stream):
    """Twice: by the same sink, and by a new one that knows nothing but the log."""
    flights, calls = stream(SCHEMA), []
    sink = flights.sink()
    flights.commit(sink.each(body(calls)), *BATCHES)
    digest = flights.view().state.digest
    for again in (sink, flights.sink()):
        assert forget_last_commit(flights) == 2
        assert flights.commit(again.each(body(calls))).batches == [2]
        assert (again.last_commit.version, flights.version(), flights.decided()) == (3, 3, 3)
    assert calls == [(0, 0), (1, 1), (2, 2)]
    assert flights.rows("sums") == SUMS
    assert flights.view().state.recent[-1].digest == digest, "nothing but an Open was appended"


@pytest.mark.slow
@pytest.mark.parametrize("lost", [(0, 1, 2), (1, 2), (0, 1), (1,)], ids=str)
def test_whatever_commit_files_are_lost_each_batch_is_one_version_i2_t9(stream, lost):
    """Spark begins again behind the last one that it finds, or at the last batch that it planned."""
    flights, calls = stream(SCHEMA), []
    flights.commit(flights.sink().each(body(calls)), *BATCHES)
    for batch in lost:
        for name in (str(batch), f".{batch}.crc"):
            (flights.checkpoint / "commits" / name).unlink(missing_ok=True)
    flights.commit(flights.sink().each(body(calls)), [{"k": "c", "n": 1}])
    assert calls == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert (flights.version(), flights.decided()) == (4, 4)
    assert flights.rows("sums") == SUMS | {"c": {"n": 101}}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("place", ["manifest.before_write", "manifest.after_write", "decide.before_append"])
def test_a_crash_before_the_decision_and_a_replay_with_other_rows_never_mix_i5_t3_t6(stream, place):
    flights, calls, generation = stream(SCHEMA), [], []
    flights.add(*BATCHES[:2])
    failpoints.arm(f"{place}=raise@2")
    ran = flights.run(flights.sink().each(body(calls, generation)))
    assert isinstance(ran.error, failpoints.FailpointError)
    assert ran.exception is not None
    assert (flights.version(), flights.decided()) == (1, 1)
    failpoints.arm(None)
    flights.commit(flights.sink().each(body(calls, generation)))
    assert (flights.version(), flights.decided()) == (2, 2)
    assert calls == [(0, 0), (1, 1), (1, 1)]
    # the second try's mark was 2, the third's is 3: only what was decided is there
    assert flights.rows("marks") == {"a1": {"n": 1}, "b1": {"n": 1}, "a3": {"n": 3}}
    assert flights.rows("sums") == {"a": {"n": 11}, "b": {"n": 2}}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "place,visible",
    [
        ("decide.after_append", 1),
        ("apply.after_chunk", 1),
        ("publish.before", 1),
        ("publish.after", 2),
        ("commit.before_return", 2),
    ],
)
def test_a_crash_after_the_decision_is_rolled_forward_and_not_run_again_i2_i4_t6(stream, place, visible):
    flights, calls, generation = stream(SCHEMA), [], []
    flights.add(*BATCHES[:2])
    failpoints.arm(f"{place}=raise@{2 if place != 'apply.after_chunk' else 3}")
    options = {"parallelism": 2, "key_groups": 2}
    ran = flights.run(flights.sink(**options).each(body(calls, generation)))
    assert isinstance(ran.error, failpoints.FailpointError)
    assert (flights.version(), flights.decided()) == (visible, 2)
    failpoints.arm(None)
    flights.add(BATCHES[2])
    sink = flights.sink()
    ran = flights.commit(sink.each(body(calls, generation)))
    assert ran.batches == [1, 2]
    assert calls == [(0, 0), (1, 1), (2, 2)], "the body of the decided batch is not run"
    assert sink.recovered == ([2] if visible == 1 else [])
    assert (flights.version(), flights.decided()) == (3, 3)
    assert flights.rows("marks") == {"a1": {"n": 1}, "b1": {"n": 1}, "a2": {"n": 2}, "c3": {"n": 3}}
    assert flights.rows("sums") == SUMS
    assert flights.rows("sums", 2) == {"a": {"n": 11}, "b": {"n": 2}}


@pytest.mark.parametrize("adaptive", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_empty_batches_make_versions_t7_t14(stream, adaptive):
    """No rows, no rows after a filter, an empty relation, and no call at all; AQE on and off."""
    flights, schema = stream(SCHEMA), SCHEMA

    def each(txn, rows):
        match txn.batch_id:
            case 1:
                txn.upsert("newest", rows.where("n < 0"), key="k")
                txn.reduce("sums", rows.where("n < 0"), key="k", reducers={"n": "sum"})
            case 2:
                txn.upsert("newest", rows.sparkSession.createDataFrame([], schema), key="k")
            case 3:
                txn.delete("newest", rows.where("false"), key="k")
            case 4:
                pass
            case _:
                txn.upsert("newest", rows, key="k")

    def run(rows, batch_id):
        rows.sparkSession.conf.set("spark.sql.adaptive.enabled", adaptive)
        sink.each(each)(rows, batch_id)

    some = [{"k": "a", "n": 1}]
    sink = flights.sink(parallelism=3)
    flights.commit(run, [], some, some, some, some, some)
    assert (flights.version(), flights.decided()) == (6, 6)
    for version in range(1, 6):
        assert flights.rows("newest", version) == {}, version
    assert flights.rows("newest") == {"a": {"n": 1}}
    with flights.gate() as gate:
        assert [sum(info.changes.values()) for info in gate.history()] == [0, 0, 0, 0, 0, 1]


def test_another_parallelism_after_a_restart_leaves_the_state_whole_t14(stream):
    """Also with AQE, with a crash between, and with key groups that no parallelism divides."""
    flights = stream(SCHEMA)
    expected = {}
    for step, (parallelism, adaptive) in enumerate([(3, "false"), (1, "true"), (2, "true"), (5, "false")]):
        added = [{"k": f"k{n % 7}", "n": n} for n in range(40)]
        for row in added:
            expected[row["k"]] = expected.get(row["k"], 0) + row["n"]
        sink = flights.sink(parallelism=parallelism, key_groups=7)

        def run(batch, batch_id, sink=sink, adaptive=adaptive):
            batch.sparkSession.conf.set("spark.sql.adaptive.enabled", adaptive)
            each = lambda txn, rows: txn.reduce("sums", rows, "k", {"n": "sum"})  # noqa: E731
            sink.each(each)(batch, batch_id)

        flights.commit(run, added)
        assert flights.rows("sums") == {k: {"n": n} for k, n in expected.items()}
        assert flights.version() == step + 1
