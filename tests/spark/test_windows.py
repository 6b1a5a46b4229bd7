"""Windowed aggregates with a watermark: instants as keys, in append and in update mode."""

from __future__ import annotations

import collections
import datetime
import importlib.util
import json
import os
from pathlib import Path

import pytest

import tidegate
from tidegate.errors import ConfigError
from tidegate.spark import VersionedSink, register

pytestmark = pytest.mark.spark

DAY = datetime.datetime(2026, 10, 25, tzinfo=datetime.timezone.utc)
"""The day on which Berlin has the hour from 2 to 3 twice: from 0 to 1 and from 1 to 2 in UTC."""
MINUTES = [(5, 10, 65), (75, 59, 61), (130, 200), (20,)]
"""The minutes of each batch's visits: 59 is late by less than the watermark, 20 by more. Spark drops late
rows by the watermark of the batch before.
"""


@pytest.fixture(scope="module")
def example():
    path = Path(__file__).parents[2] / "examples/windows/hourly.py"
    spec = importlib.util.spec_from_file_location("hourly", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def visits(folder):
    folder.mkdir()
    for number, minutes in enumerate(MINUTES):
        lines = [
            json.dumps({"at": (DAY + datetime.timedelta(minutes=m)).isoformat(), "page": "/"})
            for m in minutes
        ]
        path = folder / f"{number}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (1_600_000_000 + 100 * number,) * 2)
    return str(folder)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", ["update", "append"])
def test_hours_are_keys_in_either_mode_whatever_the_time_zone(example, spark, conf, tmp_path, mode):
    conf("spark.sql.session.timeZone", "Europe/Berlin")
    store = f"sqlite://{tmp_path}/store"
    sink = VersionedSink(
        namespace="visits", wal=f"file://{tmp_path}/wal", store=store, table=example.TABLE, key=example.KEY
    )
    query = example.start(spark, visits(tmp_path / "in"), sink, str(tmp_path / "checkpoint"), mode)
    assert query.awaitTermination(300)
    sink.close()
    counted = collections.Counter(m // 60 for minutes in MINUTES for m in minutes if m != 20)
    if mode == "append":  # the watermark is at 190 minutes
        del counted[3]
    hours = {(DAY + datetime.timedelta(hours=hour), "/"): {"count": n} for hour, n in counted.items()}
    with tidegate.connect(store, "visits") as gate, gate.snapshot() as snapshot:
        table = snapshot.table("hourly")
        assert dict(table.scan()) == hours
        berlin = datetime.timezone(datetime.timedelta(hours=2))
        assert table.get((DAY.astimezone(berlin), "/")) == {"count": counted[0]}
        assert [column.type for column in table.schema().key] == ["timestamp", "string"]
    register(spark)
    rows = spark.read.format("tidegate").options(namespace="visits", store=store, table="hourly").load()
    assert rows.schema.simpleString() == "struct<hour:timestamp,page:string,count:bigint>"
    micros = {row[0]: row[1] for row in rows.selectExpr("unix_micros(hour)", "count").collect()}
    assert micros == {int(at.timestamp()) * 1_000_000: value["count"] for (at, _), value in hours.items()}


def test_a_window_is_no_key_and_the_message_has_the_columns(stream):
    made = stream("at timestamp, page string")

    def check(rows, batch_id):
        windowed = rows.selectExpr("named_struct('start', at, 'end', at) AS window", "page")
        with pytest.raises(ConfigError, match=r'withColumn\("window_start", col\("window.start"\)\)'):
            made.sink().each(lambda txn, _: txn.upsert("t", windowed, "window"))(rows, batch_id)

    made.add([{"at": DAY, "page": "/"}])
    made.in_batch(check)


@pytest.mark.both_ways
def test_times_outside_of_pythons_years_are_bad_keys_and_others_come_back(stream):
    made = stream("at timestamp, wall timestamp_ntz, page string")
    wall = datetime.datetime(2026, 3, 29, 2, 30)  # noqa: DTZ001 - a wall clock; Berlin had no such time
    made.add([{"at": DAY, "wall": wall, "page": "a"}, {"at": DAY, "wall": None, "page": "b"}])

    def each(txn, rows):
        sometimes = "CASE page WHEN 'a' THEN at ELSE TIMESTAMP_LTZ'+12000-01-01T00:00:00Z' END AS at"
        txn.upsert("instants", rows.selectExpr(sometimes, "page"), "at")
        txn.upsert("walls", rows.where("page = 'a'").select("wall", "page"), ["page", "wall"])

    sink = made.sink(on_bad_record="quarantine")
    ran = made.run(sink.each(each))
    assert ran.error is None
    assert made.rows("instants") == {DAY: {"page": "a"}}
    assert made.rows("walls") == {("a", wall): {}}
    (refused,) = made.rows("_quarantine").values()
    assert refused["cause"] == "column at of its key has a time that is not of the years 1 to 9999"
