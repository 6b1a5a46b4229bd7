"""A large batch into SQLite: tidegate beside the plainest writer, in one run.

    tools/run python benchmarks/bench_sqlite_batch.py [--rows 1000000] [--keys 400000] [--rounds 3]

Both write each batch of the same parquet files inside foreachBatch, in turns, on local[2]. The plain
writer is what one writes first: ``foreachPartition``, rows as Spark hands them over, one
transaction per partition with INSERT OR REPLACE into a file of the same kind (WAL mode,
synchronous FULL), no log, no version, nothing atomic over partitions. Printed: seconds per
batch and the ratio of medians (tidegate / plain); below 1.0 tidegate is faster.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def plain_writer(folder: str) -> Callable[[Iterable[Any]], None]:
    """A foreachPartition function: each partition into a file of its own, in one transaction."""

    def write(rows: Iterable[Any]) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.partitionId() if context else 0
        with sqlite3.connect(f"{folder}/part-{number}.sqlite", isolation_level=None, timeout=60) as file:
            file.execute("PRAGMA journal_mode = WAL")
            file.execute("PRAGMA synchronous = FULL")
            file.execute("CREATE TABLE IF NOT EXISTS t (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID")
            file.execute("BEGIN IMMEDIATE")
            file.executemany("INSERT OR REPLACE INTO t VALUES (?, ?)", ((row.key, row.value) for row in rows))
            file.execute("COMMIT")
        file.close()

    return write


def report(seconds: dict[str, list[float]]) -> None:
    """The medians without the warm-up, and their ratio."""
    for name, all_of in seconds.items():
        shown = " ".join(f"{one:.2f}" for one in all_of)
        print(f"{name:9} median {statistics.median(all_of[1:]):6.2f} s   (all: {shown})")
    medians = {name: statistics.median(all_of[1:]) for name, all_of in seconds.items()}
    print(f"ratio tidegate / plain: {medians['tidegate'] / medians['plain']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    from pyspark.sql import SparkSession

    from tidegate.spark import VersionedSink

    folder = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.driver.memory", "3g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.range(0, arguments.rows, numPartitions=2).selectExpr(
        f"concat('key-', cast(pmod(hash(id), {arguments.keys}) as string)) as key",
        "concat('{\"n\":', id, ',\"text\":\"', substr(sha1(cast(id as string)), 1, 36), '\"}') as value",
    )
    (folder / "plain").mkdir()
    for number in range(arguments.rounds + 1):
        source = folder / "input" / f"part-{number:03}.parquet"
        rows.write.parquet(str(source))
    schema = rows.schema
    sink = VersionedSink(
        namespace="bench",
        wal=f"file://{folder}/wal",
        store=f"sqlite://{folder}/store",
        table="t",
        key="key",
        value="value",
    )
    seconds: dict[str, list[float]] = {"plain": [], "tidegate": []}

    def timed(name: str, write: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        def run(batch: Any, batch_id: int) -> None:
            started = time.perf_counter()
            write(batch, batch_id)
            seconds[name].append(time.perf_counter() - started)

        return run

    plain = timed("plain", lambda batch, _: batch.foreachPartition(plain_writer(str(folder / "plain"))))
    tide = timed("tidegate", sink)

    def in_turns(batch: Any, batch_id: int) -> None:
        for write in (plain, tide) if batch_id % 2 else (tide, plain):
            write(batch, batch_id)

    query = (
        spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", 2)
        .parquet(str(folder / "input" / "*"))
        .writeStream.foreachBatch(in_turns)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    sink.close()
    spark.stop()
    shutil.rmtree(folder)
    print(f"{arguments.rows:,} rows over {arguments.keys:,} keys; the first batch of each is a warm-up")
    report(seconds)


if __name__ == "__main__":
    main()
