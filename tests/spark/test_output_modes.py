"""What a query's output mode means for how its batches are written (docs/spark.md)."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.spark

SCHEMA = "carrier string, late boolean"


@pytest.fixture
def departures(stream):
    """Three batches; in the last one no carrier of the first is late any more often."""
    made = stream(SCHEMA)
    made.add(
        [{"carrier": "UA", "late": True}, {"carrier": "B6", "late": True}],
        [{"carrier": "UA", "late": True}],
        [{"carrier": "AA", "late": True}] * 3,
    )
    return made


def run(made, spark, mode, function):
    """A query that keeps state in Spark: the carriers and how often they were late."""
    counts = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(made.input))
        .groupBy("carrier")
        .count()
    )
    shown = counts.orderBy("count", ascending=False).limit(2) if mode == "complete" else counts
    query = (
        shown.writeStream.outputMode(mode)
        .foreachBatch(function)
        .option("checkpointLocation", str(made.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)


def test_update_upserts_what_changed(departures, spark):
    sink = departures.sink(table="late", key="carrier")
    run(departures, spark, "update", sink)
    sink.close()
    assert departures.rows("late", 1) == {"UA": {"count": 1}, "B6": {"count": 1}}
    assert departures.rows("late", 3) == {"UA": {"count": 2}, "B6": {"count": 1}, "AA": {"count": 3}}


def test_complete_replaces_the_table(departures, spark):
    """What is no longer among the result's rows is gone with the version; an upsert would keep it."""
    sink = departures.sink()
    run(departures, spark, "complete", sink.each(lambda txn, rows: txn.replace("most", rows, key="carrier")))
    sink.close()
    assert departures.rows("most", 2).keys() == {"UA", "B6"}
    assert departures.rows("most", 3) == {"AA": {"count": 3}, "UA": {"count": 2}}
    assert departures.rows("most", 2)["UA"] == {"count": 2}
