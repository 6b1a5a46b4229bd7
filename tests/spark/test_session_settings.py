"""What is stored does not depend on settings of the session that change what Spark's functions give."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.spark

LONG = "é" * 20_000
"""Longer than what the driver takes of a cell."""
ROWS = [
    {"k": "a", "b": b"\xff\x00", "d": 0.5, "x": "short"},
    {"k": "", "b": b"", "d": None, "x": None},
    {"k": "é,", "b": b"1:", "d": float("nan"), "x": LONG},
]
SETTINGS = {
    "spark.sql.function.concatBinaryAsString": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.session.timeZone": "Asia/Kolkata",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
}


def write(txn, rows):
    txn.upsert("one", rows, "k", order_by="d")
    txn.upsert("two", rows, ["k", "b"])
    txn.upsert("bytes", rows, "b", value="b")
    txn.reduce("sums", rows, ["k", "b"], {"d": "max", "x": "last"})
    changes = rows.selectExpr("*", "IF(d IS NULL, 'd', 'u') AS op")
    txn.apply_changes("changes", changes, "b", sequence_by="k", op_column="op")


@pytest.mark.both_ways
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_of_the_session_changes_nothing_that_is_stored(stream, conf, setting):
    conf(setting, SETTINGS[setting])
    flights = stream("k string, b binary, d double, x string")
    flights.commit(flights.sink(parallelism=2).each(write), ROWS[:2], ROWS)
    found = flights.rows("one").items()
    assert {k: (row["b"], repr(row["d"]), row["x"]) for k, row in found} == {
        row["k"]: (row["b"], repr(row["d"]), row["x"]) for row in ROWS
    }
    texts = {(row["k"], row["b"]): row["x"] for row in ROWS}
    for table in ("two", "sums"):
        assert {key: row["x"] for key, row in flights.rows(table).items()} == texts
    assert flights.rows("bytes") == {row["b"]: row["b"] for row in ROWS}
    kept = {key: row["x"] for key, row in flights.rows("changes").items()}
    assert kept == {b"\xff\x00": "short", b"1:": LONG}


@pytest.mark.both_ways
@pytest.mark.parametrize("value", [None, "x"])
def test_a_long_value_is_whole_where_bytes_are_joined_to_text(stream, conf, value):
    """The driver cut it off behind 16,385 characters, without a word."""
    conf("spark.sql.function.concatBinaryAsString", "true")
    flights = stream("k string, x string")
    sink = flights.sink(table="t", key="k", value=value)
    flights.commit(sink, [{"k": "a", "x": "short"}], [{"k": "b", "x": LONG}])
    found = flights.rows("t")["b"]
    assert found == (LONG.encode() if value else {"x": LONG})
