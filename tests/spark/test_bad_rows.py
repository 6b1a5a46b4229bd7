"""A bad row: an error that names table and key, nothing decided, and no task is tried again (I5, T43)."""

from __future__ import annotations

import pytest

from tidegate.errors import BadRecordError
from tidegate.spark.staging import job

pytestmark = pytest.mark.spark

LIMITS = {"key_bytes_max": 20, "value_bytes_max": 60}

CASES = {
    "null key": (
        lambda t, r: t.upsert("air", r.selectExpr("CAST(NULL AS STRING) k"), "k"),
        r"table air.*its key is null.*filter",
    ),
    "null in a key of two": (
        lambda t, r: t.upsert("air", r.selectExpr("k", "CAST(NULL AS INT) n"), ["k", "n"]),
        "table air.*its key is null",
    ),
    "null key in a delete": (
        lambda t, r: (
            t.upsert("air", r, "k"),
            t.delete("air", r.selectExpr("CAST(NULL AS STRING) k"), "k"),
        ),
        "table air.*its key is null",
    ),
    "null key in a reduce": (
        lambda t, r: t.reduce("sums", r.selectExpr("CAST(NULL AS STRING) k", "n"), "k", {"n": "sum"}),
        "table sums.*its key is null",
    ),
    "null bytes": (
        lambda t, r: t.upsert("blobs", r.selectExpr("k", "CAST(NULL AS BINARY) v"), "k", value="v"),
        r"table blobs.*N1.*its value is null.*delete",
    ),
    "key over the limit": (
        lambda t, r: t.upsert("air", r.selectExpr("repeat('é', 11) k"), "k"),
        "table air.*its key takes 22 bytes, 20 are allowed.*make it smaller",
    ),
    "value over the limit": (
        lambda t, r: t.upsert("air", r.selectExpr("k", "repeat('x', 60) x"), "k"),
        r"table air.*N1.*its value takes 68 bytes, 60 are allowed.*value_bytes_max",
    ),
    "state over the limit": (
        lambda t, r: t.reduce("last", r.selectExpr("k", "repeat('x', 60) x"), "k", {"x": "last"}),
        r"table last.*N1.*its value takes",
    ),
    "key that is not UTF-8": (
        lambda t, r: t.upsert("air", r.selectExpr("CAST(X'61FF' AS STRING) k"), "k"),
        r"table air.*\\xff.*not valid UTF-8.*binary key column",
    ),
    "key of text and bytes that is not UTF-8": (
        lambda t, r: t.upsert("both", r.selectExpr("CAST(X'61FF' AS STRING) k", "X'FF' b"), ["k", "b"]),
        r"table both.*not valid UTF-8",
    ),
}


@pytest.fixture
def tasks(monkeypatch, tmp_path):
    """The staging tasks that ran, as task and attempt."""
    seen = tmp_path / "tasks"
    seen.mkdir()
    original = job._task

    def noting(*arguments):
        run = original(*arguments)

        def task(batches):
            from pyspark import TaskContext

            context = TaskContext.get()
            (seen / f"{context.stageId()}-{context.partitionId()}-{context.attemptNumber()}").touch()
            yield from run(batches)

        return task

    monkeypatch.setattr(job, "_task", noting)
    return lambda: sorted(path.name for path in seen.iterdir())


def test_bad_rows_are_refused_with_table_and_key_and_never_tried_again_i5_t43(stream, tasks):
    flights = stream("k string, n bigint")
    flights.add([{"k": "N1", "n": 1}])
    sink = flights.sink(parallelism=2, **LIMITS)

    def check(rows, batch_id):
        for case, (call, pattern) in CASES.items():
            with pytest.raises(BadRecordError, match=pattern) as caught:
                sink.each(call)(rows, batch_id)
            assert "\n" not in str(caught.value), case
            assert flights.decided() == 0, case
        sink.each(lambda t, r: t.upsert("air", r, "k"))(rows, batch_id)

    flights.in_batch(check)
    assert flights.rows("air") == {"N1": {"n": 1}}
    assert all(name.endswith("-0") for name in tasks()), "no task had a second attempt"
    assert len(tasks()) == 2 * (len(CASES) + 1)


@pytest.mark.both_ways
def test_a_bad_row_ends_the_query_with_its_error_and_the_mended_batch_is_version_1_t46(stream):
    flights = stream("k string, n int")
    flights.add([{"k": "N1", "n": 1}, {"k": None, "n": 2}])
    ran = flights.run(flights.sink(table="air", key="k"))
    assert isinstance(ran.error, BadRecordError)
    assert "BadRecordError: batch 0, table air" in str(ran.exception)
    assert flights.decided() == flights.version() == 0
    flights.commit(flights.sink().each(lambda t, r: t.upsert("air", r.where("k IS NOT NULL"), "k")))
    assert flights.rows("air", 1) == {"N1": {"n": 1}}


def test_keys_at_their_limits_are_taken_t43(stream):
    """The empty key, a key of exactly the limit, bytes that are not UTF-8 in a binary key."""
    flights = stream("k string, b binary")
    rows = [{"k": "", "b": b""}, {"k": "é" * 10, "b": b"\xff\x00"}]

    def each(txn, batch):
        txn.upsert("text", batch.select("k"), "k")
        txn.upsert("bytes", batch.select("b"), "b")
        txn.upsert("both", batch, ["k", "b"])

    flights.commit(flights.sink(key_bytes_max=30).each(each), rows)
    assert flights.rows("text") == {"": {}, "é" * 10: {}}
    assert flights.rows("bytes") == {b"": {}, b"\xff\x00": {}}
    assert flights.rows("both") == {("", b""): {}, ("é" * 10, b"\xff\x00"): {}}
