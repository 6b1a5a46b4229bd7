"""The driver of test_replayed_rows.py: a shuffle is lost after some staging tasks have read it.

    python replay_driver.py FOLDER KEY CALL CHECK [CLASSES]

KEY: ``chance`` makes keys that differ when Spark makes the rows again, ``same`` does not. CALL is the kind
of call, or an upsert of rows with a shuffle of their own: ``nested``; ``adaptive``, where Spark plans each
stage by the one before; ``persisted``, where the function of foreachBatch keeps them and a half is lost;
``action``, where it collects them. CHECK ``off`` leaves out tidegate's guards, as a proof that the rows are
mixed then; ``session`` has Spark's own on in the whole session. CLASSES is the folder of NoRowChecksums, the
class of a shuffle manager.
"""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from pathlib import Path

from pyspark.sql import SparkSession, functions

from tidegate.spark import VersionedSink
from tidegate.spark.session.single_runs import SingleRuns
from tidegate.spark.staging import job

ROWS, TASKS, READ_BEFORE = 400, 8, 2


def lose_shuffles(folder: Path) -> None:
    """Note that a task has ended; after some tasks remove all files of shuffles, once."""
    if len(list((folder / "staged").iterdir())) == READ_BEFORE and not (folder / "lost").exists():
        (folder / "lost").touch()
        for path in (folder / "local").rglob("shuffle_*"):
            path.unlink()
    (folder / "staged" / uuid.uuid4().hex).touch()


def losing_shuffles(original, folder: Path):
    """``job._task``: after some tasks have staged, the next one removes all files of shuffles, once."""

    def make(*arguments):
        run = original(*arguments)

        def task(batches):
            acks = list(run(batches))
            lose_shuffles(folder)
            yield from acks

        return task

    return make


def read_and_lost(rows, folder: Path):
    """Return the rows, whose shuffle is lost while they are read."""

    def task(batches):
        read = list(batches)
        lose_shuffles(folder)
        yield from read

    return rows.mapInArrow(task, rows.schema)


def half_lost(rows, folder: Path):
    """Return the rows, kept in memory; then a half of them is lost there, and all files of shuffles."""
    kept = rows.persist()
    kept.count()
    context = kept.sparkSession.sparkContext
    (number,) = context._jsc.getPersistentRDDs()
    scheduler = context._jsc.sc().dagScheduler()
    field = scheduler.getClass().getDeclaredField("blockManagerMaster")
    field.setAccessible(True)
    for part in range(0, TASKS, 2):
        block = context._jvm.org.apache.spark.storage.RDDBlockId(int(number), part)
        field.get(scheduler).removeBlock(block)
    (folder / "staged" / "1").touch()
    (folder / "staged" / "2").touch()
    lose_shuffles(folder)
    return kept


def first_row(key, rows, state, emit):
    return {"n": next(iter(rows))["n"]}


def main(folder: Path, key: str, call: str, check: str, classes: str = "") -> None:
    (folder / "staged").mkdir()
    builder, spark_checks = SparkSession.builder, str(check == "session").lower()
    if classes:
        builder = builder.config("spark.driver.extraClassPath", classes)
        builder = builder.config("spark.shuffle.manager", "NoRowChecksums")
    spark = (
        builder.master("local[1,4]")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.adaptive.enabled", str(call == "adaptive").lower())
        .config("spark.sql.shuffle.orderIndependentChecksum.enabled", spark_checks)
        .config("spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch", spark_checks)
        .getOrCreate()
    )
    job._task = losing_shuffles(job._task, folder)
    if check == "off":
        job.whole_retries = lambda _: contextlib.nullcontext()
        SingleRuns.made_again = lambda *_: []
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
            case "nested" | "adaptive":
                txn.upsert("t", rows.repartition(TASKS, "k"), "k")
            case "persisted":
                txn.upsert("t", half_lost(rows.repartition(TASKS, "k"), folder), "k")
            case "action":
                read = read_and_lost(rows.repartition(TASKS, "k"), folder).collect()
                txn.upsert("t", spark.createDataFrame(read, rows.schema), "k")
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
