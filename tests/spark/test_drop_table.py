"""``drop_table``: one version removes a table, and its name is free for another one later (I1, I2)."""

from __future__ import annotations

import pytest

from tidegate.errors import ConfigError

pytestmark = pytest.mark.spark

SCHEMA = "k string, n int"


def rows(*pairs):
    return [{"k": k, "n": n} for k, n in pairs]


def calls_of(*calls):
    """Return the function of a sink: each batch makes the next of these calls."""
    left = iter(calls)

    def write(txn, batch):
        next(left)(txn, batch)

    return write


@pytest.mark.one_in(2)
@pytest.mark.both_ways
def test_a_table_is_dropped_with_the_other_changes_of_its_batch_and_made_again(stream):
    """I1. The new table has another key and is of another kind, and reads nothing of the old one's state."""
    place = stream(SCHEMA)
    sink = place.sink()

    def first(txn, batch):
        txn.upsert("t", batch, key="k")
        txn.upsert("u", batch, key="k")

    def drop(txn, batch):
        txn.drop_table("t")
        txn.upsert("u", batch, key="k")

    def reduce(txn, batch):
        txn.reduce("t", batch, key="k", reducers={"n": "sum"})

    def again(txn, batch):
        txn.upsert("t", batch.selectExpr("n", "k as name"), key="n")

    def drop_alone(txn, _batch):
        txn.drop_table("t")

    function = calls_of(first, drop, reduce, reduce, drop_alone, again)
    batches = [rows(("a", 1), ("b", 2)), rows(("c", 3)), *[rows(("a", 10))] * 2, [], rows(("x", 7))]
    place.commit(sink.each(function), *batches)
    assert place.rows("t", 1) == {"a": {"n": 1}, "b": {"n": 2}}
    assert set(place.rows("u", 2)) == {"a", "b", "c"}
    assert [place.rows("t", version) for version in (3, 4)] == [{"a": {"n": 10}}, {"a": {"n": 20}}]
    assert place.rows("t", 6) == {7: {"name": "x"}}
    with place.gate() as gate:
        assert [info.dropped for info in gate.history()] == [(), ("t",), (), (), ("t",), ()]
        for version in (2, 5):
            with gate.snapshot(version=version) as snapshot, pytest.raises(ConfigError, match="no table 't'"):
                snapshot.table("t").get("a")


def test_what_apply_changes_remembers_of_deletes_goes_with_the_table(stream):
    place = stream("k string, n int, op string")
    sink = place.sink()

    def capture(txn, batch):
        txn.apply_changes("t", batch, key="k", sequence_by="n", op_column="op")

    def capture_by_number(txn, batch):
        txn.apply_changes("t", batch, key="n", sequence_by="k", op_column="op")

    function = calls_of(capture, lambda txn, _: txn.drop_table("t"), capture_by_number)
    changes = [[{"k": k, "n": 5, "op": op}] for k, op in (("a", "d"), ("a", "u"), ("0", "u"))]
    place.commit(sink.each(function), *changes)
    with place.gate() as gate:
        assert [info.dropped for info in gate.history()] == [(), ("_deleted.t", "t"), ()]
    assert place.rows("t") == {5: {"k": "0"}}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "call,message",
    [
        (lambda txn, _: txn.drop_table("nn"), "none of this name; tables are t, u"),
        (lambda txn, _: txn.drop_table("_quarantine"), "reserved"),
        (lambda txn, batch: (txn.drop_table("t"), txn.upsert("t", batch, key="k")), "do not mix"),
        (lambda txn, batch: (txn.delete("t", batch, key="k"), txn.drop_table("t")), "do not mix"),
        (lambda txn, batch: (txn.upsert("new", batch, key="k"), txn.drop_table("new")), "do not mix"),
        (lambda txn, _: (txn.drop_table("t"), txn.drop_table("t")), "do not mix"),
    ],
)
def test_a_drop_is_refused_before_staging(stream, call, message):
    place = stream(SCHEMA)
    sink = place.sink()

    def make(txn, batch):
        txn.upsert("t", batch, key="k")
        txn.upsert("u", batch, key="k")

    place.commit(sink.each(make), rows(("a", 1)))
    staged = place.segments()
    place.add(rows(("a", 2)))
    ran = place.run(sink.each(call))
    assert isinstance(ran.error, ConfigError)
    assert message in str(ran.error)
    assert (place.decided(), place.segments()) == (1, staged)


def test_a_batch_with_a_drop_that_spark_gives_again_makes_no_second_version(stream):
    """I2: its function would be refused, as the table is gone; it is not called."""
    place = stream(SCHEMA)
    sink = place.sink()
    sink_function = sink.each(calls_of(lambda txn, batch: txn.upsert("t", batch, key="k")))
    place.commit(sink_function, rows(("a", 1)))
    place.commit(sink.each(lambda txn, _: txn.drop_table("t")), rows(("b", 2)))
    assert place.version() == 2
    newest = max(int(path.name) for path in (place.checkpoint / "commits").iterdir() if path.name.isdigit())
    for name in (f"{newest}", f".{newest}.crc"):
        (place.checkpoint / "commits" / name).unlink(missing_ok=True)
    sink.close()
    ran = place.run(place.sink().each(lambda txn, _: txn.drop_table("t")))
    assert ran.error is None
    assert (place.version(), place.decided()) == (2, 2)
