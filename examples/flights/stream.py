"""The demo's driver process: the month through Spark into three tables, one version a batch.

The driver itself applies batches of one day, and stages those that follow a small one. Spark's tasks stage
and apply batches of several days.

Run by ``tidegate demo`` as a process of its own, because it is going to be killed. It starts Spark, and
streams when its arguments come: it can wait while another one streams.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions

from tidegate.demo.data import APPLY_CHANGES, NOT_KNOWN
from tidegate.spark import Transaction, VersionedSink

SCHEMA = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int,"
    " sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string,"
    " dest string, air_time int, distance int, hour int, minute int, time_hour timestamp"
)


def write(txn: Transaction, flights: DataFrame) -> None:
    """One batch of flights into the three tables: all of it becomes one version."""
    flown = functions.col("dep_time").isNotNull()
    txn.upsert(
        "aircraft",
        flights.where(flown & functions.col("tailnum").isNotNull()).select(
            "tailnum", "carrier", "flight", "origin", "dest", "time_hour", "sched_dep_time"
        ),
        key="tailnum",
        order_by=["time_hour", "sched_dep_time", "flight"],
    )
    counted = flights.select(
        "origin",
        "dest",
        "distance",
        flown.cast("int").alias("departures"),
        (~flown).cast("int").alias("cancelled"),
        functions.col("tailnum").isNull().cast("int").alias("without_tail"),
        functions.when(flown, functions.col("time_hour")).alias("latest"),
    )
    txn.reduce(
        "airports",
        counted,
        key="origin",
        reducers={"departures": "sum", "cancelled": "sum", "without_tail": "sum", "latest": "max"},
    )
    txn.reduce("routes", counted, key=["origin", "dest"], reducers={"departures": "sum", "distance": "max"})


def session() -> SparkSession:
    """Start Spark: most of what a driver needs before its first batch."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("tidegate demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(spark: SparkSession, folder: Path, **sink_options: Any) -> None:
    """Stream every batch that is not visible yet into a sink with these options, then end."""
    sink = VersionedSink(**sink_options, small_batch_rows=APPLY_CHANGES)
    days = (
        spark.readStream.schema(SCHEMA)
        .option("header", "true")
        .option("nullValue", NOT_KNOWN)
        .option("maxFilesPerTrigger", 1)
        .csv(str(folder / "input"))
    )
    commit, reported = sink.each(write), False

    def run(flights: DataFrame, batch_id: int) -> None:
        nonlocal reported
        commit(flights, batch_id)
        if sink.recovered and not reported:
            print(json.dumps({"recovered": sink.recovered}), flush=True)
            reported = True

    query = (
        days.writeStream.foreachBatch(run)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    sink.close()
    spark.stop()


if __name__ == "__main__":
    started = session()
    # Not the command line, which every user of the machine can read (T48). Nothing comes if no turn comes.
    if given := sys.stdin.read():
        arguments = json.loads(given)
        main(started, Path(arguments.pop("folder")), **arguments)
