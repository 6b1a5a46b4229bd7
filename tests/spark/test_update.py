"""txn.update: state across batches, outputs of the same version, what is written."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import math
import sys

import pytest
from pyspark import cloudpickle

from tidegate.keys.groups import key_group
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import ReadAt

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import the tests

UTC = datetime.timezone.utc
WIDE = """
    k int, s string, b binary, o boolean, i1 tinyint, i8 bigint, f4 float, f8 double, d2 decimal(10,2),
    d18 decimal(38,18), da date, ts timestamp, nt timestamp_ntz, ai array<int>,
    at array<struct<a:timestamp,b:decimal(5,3)>>, ms map<string,double>, mi map<bigint,date>,
    st struct<x:decimal(5,3),y:struct<z:binary,w:array<float>>>
"""
D = decimal.Decimal
FULL = {
    "s": 'ü"\\/\n\u2028😀\x1f', "b": b"\x00\xff+-", "o": True, "i1": -128, "i8": 2**63 - 1, "f4": 0.1,
    "f8": 1.7976931348623157e308, "d2": D("-99999999.99"), "d18": D("0.000000000000000001"),
    "da": datetime.date(1582, 10, 15), "ts": datetime.datetime(2013, 3, 31, 1, 59, 59, 999_999, UTC),
    "nt": datetime.datetime(2013, 3, 31, 2, 30, 0, 1), "ai": [1, None, -1],  # noqa: DTZ001
    "at": [{"a": datetime.datetime(1969, 12, 31, 23, 59, 59, 1, UTC), "b": D("1.250")}, None],
    "ms": {"": 1.5, "a.b": None}, "mi": {-1: datetime.date(2000, 2, 29), 2**40: None},
    "st": {"x": D("-0.001"), "y": {"z": b"\x01", "w": [0.25, None]}},
}  # fmt: skip
SPECIAL = {"f4": math.inf, "f8": -math.inf, "ms": {"n": math.inf}, "s": "", "b": b"", "ai": [], "mi": {}}
VALUE_DDL = WIDE.strip().removeprefix("k int,")


def test_functions_get_what_readers_get_and_write_what_spark_writes_t43(stream, conf):
    """Every type, row to state to row again, whatever the session's time zone; the bytes are the same."""
    conf("spark.sql.session.timeZone", "Asia/Kathmandu")
    rows = [
        {"k": 1, **FULL},
        {"k": 2, **dict.fromkeys(FULL)},
        {"k": 3, **dict.fromkeys(FULL), **SPECIAL},
    ]
    wide = stream(WIDE)

    def keep(key, rows, state, emit):
        (row,) = rows
        assert row.pop("k") == key
        if state is not None:
            assert state == row
            assert [type(one) for one in state.values()] == [type(one) for one in row.values()]
        emit("again", key, row)
        return None if state else row

    def each(txn, batch):
        txn.update("made", batch, "k", keep, schema=VALUE_DDL, outputs={"again": ("k int", VALUE_DDL)})
        txn.upsert("spark", batch, "k")

    wide.commit(wide.sink().each(each), rows, rows)
    expected = {row.pop("k"): row for row in map(dict, rows)}
    assert wide.rows("made", 1) == wide.rows("again", 2) == expected
    assert wide.rows("made", 2) == {}
    with contextlib.closing(open_store(wide.store, "flights")) as store:
        keys = [b"1", b"2", b"3"]
        by_spark = store.get_many(ReadAt("spark", 2), keys).to_pylist()
        assert store.get_many(ReadAt("again", 2), keys).to_pylist() == by_spark
        assert store.get_many(ReadAt("made", 1), keys).to_pylist() == by_spark


def changes(stream):
    with stream.gate() as gate:
        return [info.changes for info in gate.history()]


def test_a_state_that_is_given_back_writes_nothing(stream):
    """The same object, or an equal one; one that was changed in place is written."""

    def each(txn, rows):
        def fn(key, rows, state, emit):
            if state is None:
                return {"n": 1.5, "l": [1]} if txn_batch == 0 and key != "absent" else None
            match key:
                case "same":
                    return state
                case "equal":
                    return {"l": [1], "n": 1.5}
                case "changed":
                    state["l"].append(2)
                    return state
            return None

        txn_batch = txn.batch_id
        txn.update("t", rows, "k", fn, schema="n double, l array<int>")

    keys = ["same", "equal", "changed", "gone", "absent"]
    flights = stream("k string")
    flights.commit(flights.sink().each(each), *[[{"k": key} for key in keys]] * 3)
    one = {"n": 1.5, "l": [1]}
    assert flights.rows("t", 1) == dict.fromkeys(("same", "equal", "changed", "gone"), one)
    assert flights.rows("t", 2) == {"same": one, "equal": one, "changed": {"n": 1.5, "l": [1, 2]}}
    assert [of["t"] for of in changes(flights)] == [4, 2, 1]


def test_bytes_state_and_columns_that_are_added(stream):
    def count(key, rows, state, emit):
        emit("log", (key, 1), b"\xff" + key)
        return (state or b"") + b"x" * sum(1 for _ in rows)

    def grown(key, rows, state, emit):
        return {**(state or {"n": 0}), "m": [key]}

    def each(txn, rows):
        first = txn.batch_id == 0
        outputs = {"log": ("k binary, n int", "bytes")} if first else "log"
        txn.update("counts", rows, "k", count, schema="bytes" if first else None, outputs=outputs)
        ddl = "n int" if first else "m array<binary>, n int"
        fn = (lambda *_: {"n": 7}) if first else grown
        txn.update("grows", rows, "k", fn, schema=ddl)

    flights = stream("k binary")
    flights.commit(flights.sink().each(each), [{"k": b"a"}] * 3, [{"k": b"a"}, {"k": b"\x00"}])
    assert flights.rows("counts") == {b"a": b"xxxx", b"\x00": b"x"}
    assert flights.rows("log") == {(b"a", 1): b"\xffa", (b"\x00", 1): b"\xff\x00"}
    assert flights.rows("grows") == {b"a": {"n": 7, "m": [b"a"]}, b"\x00": {"n": 0, "m": [b"\x00"]}}


@pytest.mark.parametrize("parallelism", [1, 5])
def test_of_emits_of_one_key_the_last_one_counts_whatever_the_parallelism_t44(stream, parallelism):
    """By key group and key of who emits, then in the order of emits; calls in the order they are made."""

    def race(key, rows, state, emit):
        for place in range(2):
            emit("last", "same", {"by": key, "place": place})
        emit("mixed", "same", {"by": key})
        emit("mixed", "gone", {"by": key})

    def each(txn, rows):
        one = rows.limit(1)
        txn.upsert("mixed", one.selectExpr("'same' k", "-1 by"), "k")
        txn.update(
            "state",
            rows,
            "n",
            race,
            schema="",
            outputs={"last": ("k string", "by int, place int"), "mixed": ("k string", "by int")},
        )
        txn.delete("mixed", one.selectExpr("'gone' k"), "k")

    flights = stream("n int")
    flights.commit(flights.sink(parallelism=parallelism).each(each), [{"n": n} for n in range(50)])
    last = max(range(50), key=lambda n: (key_group(b"%d" % n, 128), b"%d" % n))
    assert flights.rows("last") == {"same": {"by": last, "place": 1}}
    assert flights.rows("mixed") == {"same": {"by": last}}
    assert flights.rows("state") == {}


def test_one_key_with_many_rows_streams_and_may_be_left_unread(stream, conf):
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", 1000)

    def each(txn, rows):
        size = 100_000
        many = rows.sparkSession.range(size + 10).selectExpr(
            f"CAST(IF(id < {size}, -1, id) AS int) n", f"{size} - id AS o"
        )

        def total(key, rows, state, emit):
            if txn_batch:
                return {"first": next(rows)["o"], "count": -1}  # the rest is left unread
            first, count = None, 0
            for row in rows:
                first, count = (row["o"] if first is None else first), count + 1
            return {"first": first, "count": count}

        txn_batch = txn.batch_id
        txn.update("t", many, "n", total, schema="first bigint, count bigint", order_by="o")

    flights = stream("n int")
    flights.commit(flights.sink(function_deadline_s=600).each(each), [{"n": 0}], [{"n": 0}])
    others = {100_000 + n: -n for n in range(10)}
    assert flights.rows("t", 1) == {
        -1: {"first": 1, "count": 100_000}, **{n: {"first": o, "count": 1} for n, o in others.items()}
    }  # fmt: skip
    assert flights.rows("t", 2) == {n: {"first": o, "count": -1} for n, o in {-1: 1, **others}.items()}


@pytest.mark.slow
def test_a_million_rows_of_one_key_take_no_more_memory_than_a_batch_of_them_i11(stream):
    def each(txn, rows):
        many = rows.sparkSession.range(1_000_000).selectExpr("CAST(1 AS int) n", "id", "repeat('x', 200) s")

        def count(key, rows, state, emit):
            import resource

            first = next(rows)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            total, number = first["id"], 1
            for row in rows:
                total, number = total + row["id"], number + 1
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            return {"total": total, "rows": number, "grown_kib": grown}

        schema = "total bigint, rows bigint, grown_kib bigint"
        txn.update("t", many, "n", count, schema=schema, order_by="id")

    flights = stream("n int")
    flights.commit(flights.sink(function_deadline_s=600).each(each), [{"n": 0}])
    (found,) = flights.rows("t").values()
    assert (found["rows"], found["total"]) == (1_000_000, sum(range(1_000_000)))
    assert found["grown_kib"] < 100 * 1024, found
