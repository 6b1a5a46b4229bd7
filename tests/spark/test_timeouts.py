"""Timeouts of keyed state from a sink: sessions that close, replays, rescaling, tables that go and come."""

from __future__ import annotations

import datetime
import importlib.util
import json
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

import tidegate
from support.wait import wait_until
from tidegate.base import failpoints
from tidegate.errors import ConfigError
from tidegate.spark import VersionedSink
from tidegate.spark.calls.collected import CollectedCalls
from tidegate.spark.transaction import Transaction

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import the tests

SCHEMA = "k string, n bigint"
OUTPUTS = {"closed": ("k string", "n bigint")}


def add(key, rows, state, emit):
    return {"n": (state or {"n": 0})["n"] + sum(row["n"] for row in rows)}


def close(key, state, emit):
    emit("closed", key, state)


def write(txn, rows, timeout="10 min", on_timeout=close):
    txn.update(
        "open",
        rows,
        "k",
        add,
        schema="n bigint",
        outputs=OUTPUTS,
        timeout=timeout,
        on_timeout=on_timeout,
    )


def rows(**numbers):
    return [{"k": key, "n": n} for key, n in numbers.items()]


@pytest.fixture(autouse=True)
def disarmed():
    yield
    failpoints.arm(None)


@pytest.fixture
def play(pass_by):
    """Runs a batch after each of these pauses, in minutes, by this function for ``foreachBatch``."""

    def play(place, *steps):
        def each(batch_df, batch_id):
            minutes, function, _ = left.pop(0)
            pass_by(minutes)
            function(batch_df, batch_id)

        left = list(steps)
        place.commit(each, *(batch for *_, batch in steps))

    return play


def test_keys_time_out_in_batches_without_rows_too_at_any_number_of_tasks(stream, play):
    place = stream(SCHEMA)
    first, second, third, fourth = (place.sink(parallelism=tasks).each(write) for tasks in (3, 1, 2, 4))
    play(
        place,
        (0, first, rows(**dict.fromkeys("abcdef", 1))),
        (6, second, rows(a=1, b=1)),
        (6, third, []),
        (6, fourth, rows(b=1)),
    )
    assert place.rows("closed", 3) == {key: {"n": 1} for key in "cdef"}
    assert place.rows("closed") == place.rows("closed", 3) | {"a": {"n": 2}}
    assert place.rows("open", 2) == {key: {"n": 2 if key in "ab" else 1} for key in "abcdef"}
    assert place.rows("open") == {"b": {"n": 3}}
    with place.gate() as gate, gate.snapshot() as snapshot:
        assert gate.tables() == snapshot.tables() == ["closed", "open"]
        assert len(list(snapshot.table("_due.open").scan())) == 1
        with gate.diff(3, 4) as changes:
            assert {change.table for change in changes} == {"closed", "open"}


def test_a_key_times_out_while_its_versions_are_in_flight_in_a_table_with_fewer_key_groups(
    stream, play, held
):
    place = stream(SCHEMA)
    pipelined = {"commit": "pipelined", "commit_in_flight": 3}
    sink = place.sink(parallelism=3, table_key_groups={"open": 4}, **pipelined)
    each = sink.each(write)
    play(place, (0, each, rows(**dict.fromkeys("abcdef", 1))), (6, each, rows(a=1)), (6, each, []))
    assert (place.decided(), place.version()) == (3, 0)
    held.set()
    sink.drain(60)
    assert place.rows("closed") == {key: {"n": 1} for key in "bcdef"}
    assert place.rows("open") == {"a": {"n": 2}}


def test_a_batch_that_is_run_again_times_a_key_out_in_one_version_i2_i4(stream, pass_by):
    """After a crash before the decision the batch gets a new attempt; after it none."""
    place = stream(SCHEMA)
    place.commit(place.sink(parallelism=1).each(write), rows(a=1, b=2))
    pass_by(11)
    place.add(rows(b=1), rows(c=1))
    for point, decided in (("decide.before_append", 1), ("decide.after_append", 2)):
        failpoints.arm(f"{point}=raise@1")
        ran = place.run(place.sink(parallelism=1).each(write))
        assert isinstance(ran.error, failpoints.FailpointError)
        assert (place.version(), place.decided()) == (1, decided)
    failpoints.arm(None)
    place.commit(place.sink(parallelism=2).each(write))
    assert place.decided() == 3
    assert place.rows("closed", 2) == place.rows("closed") == {"a": {"n": 1}}
    with place.gate() as gate:
        assert sorted(info.changes.get("closed", 0) for info in gate.history()) == [0, 0, 1]


def test_rows_that_do_not_move_due_times_end_the_tables_timeouts(spark):
    """A replacement, an update without a timeout, and a drop: later rows of ``update`` begin them again."""
    frame = spark.createDataFrame(rows(a=1), SCHEMA)
    first = CollectedCalls(0, {})
    write(Transaction(0, 0, first), frame)
    known = first.close().schemas
    own = {"_due.open", "_due_at.open"}
    assert own < known.keys()
    for call, dropped in (
        (lambda txn: txn.replace("open", frame, key="k"), own),
        (lambda txn: write(txn, frame, None, None), own),
        (lambda txn: txn.drop_table("open"), own | {"open"}),
        (lambda txn: txn.upsert("open", frame, key="k"), set()),
        (lambda txn: write(txn, frame), set()),
    ):
        collected = CollectedCalls(1, known)
        call(Transaction(1, 1, collected))
        assert collected.close().drops == dropped


def test_a_state_of_an_older_version_is_migrated_before_it_times_out_and_migrations_keep_due_times(
    stream, play
):
    place = stream(SCHEMA)

    def renewed(key, rows, state, emit):
        return {"m": 0}

    def newer(txn, batch):
        txn.update(
            "open",
            batch,
            "k",
            renewed,
            schema="m bigint",
            state_version=2,
            migrate=lambda state, _: {"m": state["n"] * 10},
            timeout="10 min",
            on_timeout=lambda key, state, emit: emit("closed", key, {"n": state["m"]}),
            outputs=OUTPUTS,
        )

    sink = place.sink(parallelism=1)
    steps = (0, sink.each(write), rows(a=1)), (5, sink.each(newer), rows(c=1)), (6, sink.each(newer), [])
    play(place, *steps)
    assert place.rows("closed") == {"a": {"n": 10}}
    assert sink.migrate_state("open", migrate=lambda state, _: state, state_version=3, schema="m bigint")
    sink.close()
    with place.gate() as gate:
        assert gate.table("_due.open").get("c") is not None


def test_states_that_would_expire_first_are_refused(stream):
    place = stream(SCHEMA)
    place.add(rows(a=1))
    ran = place.run(place.sink(ttl={"open": 609}).each(write))
    assert isinstance(ran.error, ConfigError)
    assert "table open: its ttl is 609 s, and its states time out after up to 609.375 s" in str(ran.error)
    with pytest.raises(ConfigError, match="due times do not expire"):
        place.sink(ttl={"_due.open": "1 h"})


# -- the example ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example():
    path = Path(__file__).parents[2] / "examples/sessions/sessions.py"
    spec = importlib.util.spec_from_file_location("sessions", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["sessions"] = module
    cloudpickle.register_pickle_by_value(module)
    yield module
    del sys.modules["sessions"]


def test_a_session_closes_although_nobody_clicks(example, spark, tmp_path, pass_by):
    at = datetime.datetime(2026, 11, 21, 10, 15, tzinfo=datetime.timezone.utc)
    (tmp_path / "in").mkdir()
    clicks = [{"user": "ada", "page": page, "at": at.isoformat()} for page in ("/", "/a")]
    (tmp_path / "in/1.json").write_text("\n".join(map(json.dumps, clicks)))
    store = f"sqlite://{tmp_path}/store"
    sink = VersionedSink(
        namespace=example.NAMESPACE, wal=f"file://{tmp_path}/wal", store=store, parallelism=1
    )
    query = example.start(spark, str(tmp_path / "in"), sink, str(tmp_path / "checkpoint"), "0 seconds")
    try:
        wait_until(lambda: sink.last_commit is not None)
        with tidegate.connect(store, example.NAMESPACE) as gate:
            assert gate.table("open").get("ada") == {"begin": at, "pages": ["/", "/a"]}
            pass_by(31)
            wait_until(lambda: not list(gate.table("open").scan()))
            assert dict(gate.table("sessions").scan()) == {("ada", at): {"pages": ["/", "/a"]}}
    finally:
        query.stop()
        sink.close()
