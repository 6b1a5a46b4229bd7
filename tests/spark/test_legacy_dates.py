"""With ``spark.sql.legacy.timeParserPolicy=LEGACY`` no day is written as another one (I10)."""

from __future__ import annotations

import contextlib
import datetime

import pytest

from tidegate.errors import BadRecordError

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


@pytest.mark.one_in(3)
@pytest.mark.both_ways
@pytest.mark.parametrize("n", OTHERWISE)
def test_a_day_that_would_be_another_one_fails_the_batch_in_words(stream, n):
    """1582-10-05 to 14 and 15 were one key, and so was a year before the first with one behind it."""
    flights = stream("n int")
    flights.add([{"n": n}])
    in_python = (datetime.date.min - EPOCH).days <= n <= (datetime.date.max - EPOCH).days
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
        with (
            contextlib.nullcontext() if in_python else pytest.raises(BadRecordError, match="years 1 to 9999")
        ):
            flights.sink().each(calls["column moment"])(rows, batch_id)

    flights.in_batch(check)
    assert flights.decided() == int(in_python)


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


INSIDE = {
    "array(day)": lambda found: found[0],
    "map('e0', day)": lambda found: found["e0"],
    "named_struct('n', 1, 'a.`b', day)": lambda found: found["a.`b"],
    "array(map(1, named_struct('e1', array(null, day))), null)": lambda found: found[0][1]["e1"][1],
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", ["date", "timestamp"])
@pytest.mark.parametrize("inside", INSIDE)
def test_a_day_inside_of_another_column_fails_the_batch_too(stream, inside, kind):
    """It was written as another one; a warning, once in a process, said that this might be so."""
    flights = stream("n int")
    flights.add([{"n": OTHERWISE[1]}])

    def write(txn, rows):
        days = rows.selectExpr(DAYS, "n").selectExpr("n", f"CAST(day AS {kind}) AS day", "n AS e0")
        txn.upsert("t", days.selectExpr("n", "e0", f"{inside} AS `in``side`"), key="n")

    def check(rows, batch_id):
        with pytest.raises(BadRecordError, match="table t, column in`side: a day or a time inside of it is"):
            flights.sink().each(write)(rows, batch_id)
        assert flights.decided() == 0
        flights.sink().each(lambda txn, rows: txn.upsert("t", rows, key="n"))(rows, batch_id)

    flights.in_batch(check)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("inside", INSIDE)
def test_all_other_days_inside_of_columns_are_written_as_they_are(stream, inside):
    flights = stream("n int")
    sink = flights.sink()

    def write(txn, rows):
        days = rows.selectExpr(DAYS, "n").selectExpr("n", f"{inside} AS held", "map(day, 1) AS keys")
        txn.upsert("t", days, key="n")

    numbers = [(day - EPOCH).days for day in AS_THEY_ARE]
    flights.commit(sink.each(write), [{"n": n} for n in numbers])
    rows = flights.rows("t")
    assert [INSIDE[inside](rows[n]["held"]) for n in numbers] == AS_THEY_ARE
    assert [list(rows[n]["keys"]) for n in numbers] == [[day] for day in AS_THEY_ARE]


def test_days_and_times_that_are_keys_of_maps_are_written_as_they_are(stream):
    flights = stream("n int")
    sink = flights.sink()

    def write(txn, rows):
        made = rows.selectExpr(DAYS, MOMENTS, "n").selectExpr(
            "n", "map(day, 1) AS keys", "map(moment, 1) AS at"
        )
        txn.upsert("t", made, key="n")

    flights.commit(sink.each(write), [{"n": n} for n in OTHERWISE[:3]])
    for n, row in flights.rows("t").items():
        day = EPOCH + datetime.timedelta(days=n)
        assert list(row["keys"]) == [day]
        assert list(row["at"]) == [datetime.datetime(day.year, day.month, day.day, 0, 0, 0, 1, UTC)]
