"""Dates and times before year 1 and after 9999 are bad rows when they are staged: Python has no such ones.

They were decided, and then every scan, diff and tail of their table ended at them.
"""

from __future__ import annotations

import datetime

import pytest

from tidegate.errors import BadRecordError
from tidegate.keys.groups import EPOCH

pytestmark = pytest.mark.spark

OUTSIDE = "that is not of the years 1 to 9999"
DAYS = ("DATE'+10000-01-01'", "DATE'0000-12-31'", "DATE'9999-12-31'")
MOMENTS = (
    *("TIMESTAMP'+10000-01-01T00:00:00Z'", "TIMESTAMP'0000-12-31T23:59:59.999999Z'"),
    "TIMESTAMP'0001-01-01T00:00:00Z'",
)
NAIVES = (
    *("TIMESTAMP_NTZ'+10000-01-01T00:00:00'", "TIMESTAMP_NTZ'-0044-03-15T00:00:00'"),
    "TIMESTAMP_NTZ'9999-12-31T23:59:59.999999'",
)


def told(name, late, early, good):
    """An expression that is too late, or too early, in the rows that are called so."""
    return f"CASE WHEN k = '{name} late' THEN {late} WHEN k = '{name} early' THEN {early} ELSE {good} END"


COLUMNS = {
    "day": told("day", *DAYS),
    "other": "DATE'2013-01-31'",
    "moment": told("moment", *MOMENTS),
    "naive": told("naive", *NAIVES),
    "days": f"array(DATE'2000-01-01', NULL, {told('days', *DAYS)})",
    "inside": f"map('a', named_struct('at', {told('inside', *MOMENTS)}))",
    "keys": f"map({told('keys', *DAYS)}, 1)",
    "text": "'+10000-01-01'",
}


@pytest.mark.both_ways
def test_a_value_of_such_a_year_is_a_bad_row_that_names_its_column(stream):
    flights = stream("k string")
    bad = [f"{name} {how}" for name in COLUMNS if name not in ("other", "text") for how in ("late", "early")]
    sink = flights.sink(on_bad_record="quarantine")

    def write(txn, rows):
        txn.upsert(
            "t", rows.selectExpr("k", *(f"{made} AS {name}" for name, made in COLUMNS.items())), key="k"
        )

    flights.commit(sink.each(write), [{"k": k} for k in ["good", *bad]])
    ((key, row),) = flights.rows("t").items()
    assert (key, row["day"]) == ("good", datetime.date.max)
    assert row["moment"] == datetime.datetime.min.replace(tzinfo=EPOCH.tzinfo)
    assert row["naive"] == datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001 - it has no zone
    aside = {row["key"].decode(): row for row in flights.rows("_quarantine").values()}
    assert sorted(aside) == sorted(bad)
    for key, row in aside.items():
        name = key.partition(" ")[0]
        assert row["cause"] == f"column {name} of its value has a date or time {OUTSIDE}"
        assert row["value"].startswith(b'{"day":"')


@pytest.mark.both_ways
def test_every_kind_of_call_looks(stream):
    flights = stream("k string, n int")
    sink = flights.sink(on_bad_record="quarantine")

    def write(txn, rows):
        rows = rows.selectExpr("k", "n", f"{told('k', *DAYS)} AS day", "'d' AS op")
        txn.upsert("keyed", rows.select("day", "n"), key="day")
        txn.delete("keyed", rows.where("k = 'k early'").select("day"), key="day")
        txn.upsert("two", rows.select("k", "day", "n"), key=["k", "day"])
        txn.replace("replaced", rows.select("k", "day"), key="k")
        txn.patch("patched", rows.select("k", "day"), key="k")
        txn.reduce("reduced", rows.select("k", "day"), key="k", reducers={"day": "max"})
        txn.apply_changes("changed", rows.select("k", "n", "day"), key="k", sequence_by="n")
        txn.apply_changes(
            "removed", rows.select("k", "op", "day"), key="k", sequence_by="day", op_column="op"
        )

    flights.commit(sink.each(write), [{"k": k, "n": 1} for k in ("good", "k late", "k early")])
    aside = [(row["table"], row["cause"]) for row in flights.rows("_quarantine").values()]
    in_key = f"column day of its key has a date {OUTSIDE}"
    in_value = f"column day of its value has a date or time {OUTSIDE}"
    assert sorted(aside) == sorted(
        [("keyed", in_key)] * 3
        + [("two", in_key)] * 2
        + [
            (table, in_value)
            for table in ("replaced", "patched", "reduced", "changed", "removed")
            for _ in "12"
        ]
    )
    assert list(flights.rows("reduced")) == ["good"]


def test_without_a_quarantine_such_a_row_fails_its_batch(stream):
    """Functions are not called with it either."""
    flights = stream("k string, n int")
    flights.add([{"k": "k late", "n": 1}])
    sink = flights.sink()

    def update(txn, rows):
        rows = rows.selectExpr("k", f"{told('k', *DAYS)} AS day")
        txn.update("t", rows, "k", lambda *_: {"n": 1}, schema="n int")

    def local(txn, rows):
        rows = rows.selectExpr("k", f"{told('k', *MOMENTS)} AS moment")
        txn.local_state("s", rows, lambda _, rows, *__: [b"" for _ in rows])

    def check(rows, batch_id):
        with pytest.raises(
            BadRecordError, match=f"table t, key 'k late': column day of its value .*{OUTSIDE}"
        ):
            sink.each(update)(rows, batch_id)
        with pytest.raises(
            BadRecordError, match=r"local state s, .*a value that Python cannot represent: .*moment"
        ):
            sink.each(local)(rows, batch_id)
        assert flights.decided() == 0
        sink.each(lambda txn, rows: txn.upsert("t", rows, key="k"))(rows, batch_id)

    flights.in_batch(check)
