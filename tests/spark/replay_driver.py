"""The driver of test_replayed_rows.py: a shuffle is lost after some staging tasks have read it.

    python replay_driver.py FOLDER KEY CALL CHECK

KEY: ``chance`` makes keys that differ when Spark makes the rows again, ``same`` does not. CALL is the
kind of call. CHECK ``off`` leaves out tidegate's guard, as a proof that the rows are mixed then.
"""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from pathlib import Path

from pyspark.sql import SparkSession, functions

from tidegate.spark import VersionedSink
from tidegate.spark.staging import job

ROWS, TASKS, READ_BEFORE = 400, 8, 2


def losing_shuffles(original, folder: Path):
    """``job._task``: after some tasks have staged, the next one removes all files of shuffles, once."""

    def make(*arguments):
        run = original(*arguments)

        def task(batches):
            acks = list(run(batches))
            if len(list((folder / "staged").iterdir())) == READ_BEFORE and not (folder / "lost").exists():
                (folder / "lost").touch()
                for path in (folder / "local").rglob("shuffle_*"):
                    path.unlink()
            (folder / "staged" / uuid.uuid4().hex).touch()
            yield from acks

        return task

    return make


def first_row(key, rows, state, emit):
    return {"n": next(iter(rows))["n"]}


def main(folder: Path, key: str, call: str, check: str) -> None:
    (folder / "staged").mkdir()
    spark = (
        SparkSession.builder.master("local[1,4]")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.shuffle.orderIndependentChecksum.enabled", "false")
        .config("spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch", "false")
        .getOrCreate()
    )
    job._task = losing_shuffles(job._task, folder)
    if check == "off":
        job.whole_retries = lambda _: contextlib.nullcontext()
    sink = VersionedSink(
        namespace="flights", wal=f"file://{folder}/wal", store=f"sqlite://{folder}/store", parallelism=TASKS,
        driver_stage_max_rows=0,
    )  # fmt: skip
    prefix = functions.udf(lambda n: f"{os.urandom(4).hex() if key == 'chance' else n % 7}-{n}", "string")
    rows = spark.range(ROWS).select(prefix("id").alias("k"), functions.col("id").alias("n"))

    def write(txn, _):
        match call:
            case "reduce":
                txn.reduce("t", rows, "k", {"n": "sum"})
            case "apply_changes":
                txn.apply_changes("t", rows, "k", sequence_by="n")
            case "update":
                txn.update("t", rows, "k", first_row, schema="n bigint")
            case _:
                getattr(txn, call)("t", rows, "k")

    if call == "load":
        sink.load({"t": rows}, token="once", key="k")
    else:
        source = spark.readStream.schema("x int").json(str(folder / "input"))
        query = (
            source.writeStream.foreachBatch(sink.each(write))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    sink.close()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
