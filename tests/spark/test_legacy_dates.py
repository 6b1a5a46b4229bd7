"""With ``spark.sql.legacy.timeParserPolicy=LEGACY`` no day is written as another one (I10)."""

from __future__ import annotations

import datetime
import logging

import pytest

from tidegate.errors import BadRecordError
from tidegate.spark import legacy_dates

pytestmark = pytest.mark.spark

EPOCH = datetime.date(1970, 1, 1)
UTC = datetime.timezone.utc
AS_THEY_ARE = [
    datetime.date(*day) for day in ((1, 1, 1), (1500, 2, 28), (1582, 10, 4), (1582, 10, 15), (9999, 12, 31))
]
OTHERWISE = [
    *((datetime.date(1582, 10, day) - EPOCH).days for day in (5, 10, 14)),
    (datetime.date(1, 1, 1) - EPOCH).days - 1,
    (datetime.date(9999, 12, 31) - EPOCH).days + 1,
]
DAYS = "date_from_unix_date(n) AS day"
MOMENTS = "timestamp_micros(n * 86400000000L + 1) AS moment"


@pytest.fixture(autouse=True)
def _legacy(conf):
    conf("spark.sql.legacy.timeParserPolicy", "legacy")


@pytest.mark.both_ways
def test_a_day_of_both_calendars_comes_back_as_it_was(stream):
    flights = stream("n int")
    sink = flights.sink()

    def write(txn, rows):
        txn.upsert("t", rows.selectExpr(DAYS, MOMENTS, "n"), key="day")

    flights.commit(sink.each(write), [{"n": (day - EPOCH).days} for day in AS_THEY_ARE])
    found = flights.rows("t")
    assert sorted(found) == AS_THEY_ARE
    for day, row in found.items():
        assert row["n"] == (day - EPOCH).days
        assert row["moment"] == datetime.datetime(day.year, day.month, day.day, 0, 0, 0, 1, UTC)


@pytest.mark.both_ways
@pytest.mark.parametrize("n", OTHERWISE)
def test_a_day_that_would_be_another_one_fails_the_batch_in_words(stream, n):
    """1582-10-05 to 14 and 15 were one key, and so was a year before the first with one behind it."""
    flights = stream("n int")
    flights.add([{"n": n}])
    calls = {
        "column day": lambda txn, rows: txn.upsert("t", rows.selectExpr(DAYS, "n"), key="day"),
        "column moment": lambda txn, rows: txn.upsert("t", rows.selectExpr(MOMENTS, "n"), key="n"),
    }

    def check(rows, batch_id):
        for words, write in calls.items():
            with pytest.raises(
                BadRecordError, match=rf"table t, {words}: .* since 1970 .* set it to CORRECTED"
            ):
                flights.sink().each(write)(rows, batch_id)
        assert flights.decided() == 0
        rows.sparkSession.conf.set("spark.sql.legacy.timeParserPolicy", "CORRECTED")
        flights.sink().each(calls["column moment"])(rows, batch_id)

    flights.in_batch(check)
    assert flights.decided() == 1


def test_every_kind_of_call_looks(stream):
    flights = stream("n int")
    flights.add([{"n": OTHERWISE[1]}])
    kinds = {
        "replace": lambda txn, rows: txn.replace("t", rows, key="day"),
        "delete": lambda txn, rows: txn.delete("t", rows, key="day"),
        "reduce": lambda txn, rows: txn.reduce("t", rows, key="n", reducers={"day": "max"}),
        "patch": lambda txn, rows: txn.patch("t", rows, key="day"),
        "apply_changes": lambda txn, rows: txn.apply_changes("t", rows, key="day", sequence_by="n"),
        "update": lambda txn, rows: txn.update("t", rows, "day", lambda *_: None, schema="n int"),
        "local_state": lambda txn, rows: txn.local_state("s", rows, lambda *_: []),
    }

    def check(rows, batch_id):
        dated = rows.selectExpr(DAYS, "n")
        for kind, call in kinds.items():

            def write(txn, rows, kind=kind, call=call):
                if kind == "delete":
                    txn.upsert("t", rows.selectExpr("current_date() AS day", "n"), key="day")
                call(txn, dated)

            with pytest.raises(BadRecordError, match="column day: day -141432 since 1970"):
                flights.sink().each(write)(rows, batch_id)
        assert flights.decided() == 0
        flights.sink().each(lambda txn, _: txn.upsert("t", rows, key="n"))(rows, batch_id)

    flights.in_batch(check)


def test_days_inside_of_other_columns_are_told_of_once(stream, caplog):
    legacy_dates._warn.cache_clear()  # once in each process
    flights = stream("n int")
    sink = flights.sink()

    def write(txn, rows):
        txn.upsert("t", rows.selectExpr("n", "array(date_from_unix_date(n)) AS days"), key="n")

    with caplog.at_level(logging.WARNING, "tidegate"):
        flights.commit(sink.each(write), [{"n": 1}], [{"n": 2}])
    assert sum("table t, column days" in message for message in caplog.messages) == 1
    assert flights.rows("t") == {n: {"days": [EPOCH + datetime.timedelta(days=n)]} for n in (1, 2)}
