"""Visits per hour and page, counted by event time with a watermark, as a versioned table.

    spark-submit hourly.py --input /data/visits --wal file:///data/wal --store sqlite:///data/store

Each line of a file in the input folder is a visit: {"at": "2026-11-21T10:15:00Z", "page": "/home"}.

Mode update writes an hour's row each time its count changes, so readers see the running hour. Mode append
writes it once, when no visit of the hour can count any more: visits more than 10 minutes late are dropped.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions

from tidegate.spark import VersionedSink

NAMESPACE, TABLE, KEY = "visits", "hourly", ["hour", "page"]
VISIT = "at timestamp, page string"


def hourly(visits: DataFrame) -> DataFrame:
    """Count visits per hour and page. The hour's begin is the key: a struct such as ``window`` is none."""
    hours = visits.withWatermark("at", "10 minutes").groupBy(functions.window("at", "1 hour"), "page")
    return hours.count().select(functions.col("window.start").alias("hour"), "page", "count")


def start(spark: SparkSession, folder: str, sink: VersionedSink, checkpoint: str, mode: str) -> Any:
    """Start the query; it ends when it has read all files that are there."""
    visits = spark.readStream.schema(VISIT).option("maxFilesPerTrigger", 1).json(folder)
    query = hourly(visits).writeStream.outputMode(mode).foreachBatch(sink)
    return query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until all files are read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True, help="a folder of JSON files")
    parser.add_argument("--wal", required=True, help="the log's URL")
    parser.add_argument("--store", required=True, help="the store's URL")
    parser.add_argument("--checkpoint", default="/tmp/visits-checkpoint")  # noqa: S108 - an example
    parser.add_argument("--mode", default="update", choices=("update", "append"))
    given = parser.parse_args(arguments)
    sink = VersionedSink(namespace=NAMESPACE, wal=given.wal, store=given.store, table=TABLE, key=KEY)
    spark = SparkSession.builder.getOrCreate()
    start(spark, given.input, sink, given.checkpoint, given.mode).awaitTermination()
    sink.close()


if __name__ == "__main__":
    main()
