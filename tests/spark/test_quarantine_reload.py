"""Refused rows come back: exported, mended, loaded once under a token, dropped from the quarantine (T46)."""

from __future__ import annotations

import pytest
from log_places import command
from pyspark.sql import functions

from tidegate.wal.staging.quarantine import TABLE

pytestmark = [pytest.mark.spark, pytest.mark.only_log("file")]


def test_refused_rows_are_written_again_as_the_operations_page_says(stream, tmp_path, spark):
    flights = stream("k string, n int, at timestamp", staged_by="driver")
    sink = flights.sink(table="t", key="k", on_bad_record="quarantine", key_bytes_max=3)
    flights.commit(sink, [{"k": k, "n": n, "at": None} for k, n in (("a", 1), (None, 2), ("toolong", 3))])
    sink.close()
    file, where = str(tmp_path / "refused.parquet"), ["--store", flights.store, "--namespace", "flights"]
    command("quarantine", "export", "t", file, *where)

    refused = spark.read.parquet(file)
    assert {row["_cause"] for row in refused.collect()} == {
        "its key is null", "its key takes 7 bytes, 3 are allowed",
    }  # fmt: skip
    mended = refused.withColumn("k", functions.coalesce(functions.substring("k", 1, 3), functions.lit("new")))
    mended = mended.drop("_id", "_cause", "_key")
    for _ in range(2):  # as if cut short before the drop
        assert flights.sink(table="t", key="k").load({"t": mended}, token="refused once") == 2
    drop = ["quarantine", "drop", file, "--yes", "--force", *where, *flights.log.words]
    assert "version 3 is visible: 2 rows have left" in command(*drop)
    assert "nothing was written" in command(*drop)
    assert {key: row["n"] for key, row in flights.rows("t").items()} == {"a": 1, "new": 2, "too": 3}
    assert flights.rows(TABLE) == {}
