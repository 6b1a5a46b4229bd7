r"""What a small batch costs: tidegate beside a sink that only collects, in one run, by phase.

    tools/run python benchmarks/bench_small_batch.py [--rows 1000] [--batches 100]
    tools/run python tests/services/run.py kafka redis-memory -- \
        python benchmarks/bench_small_batch.py --wal {kafka} --store {redis}

One query, local[2], whose batches go to two sinks in turns, so that what the machine does beside it
befalls both: one sink collects the batch to the driver and drops it, one commits it, to file+sqlite unless
told otherwise. Printed: p50 and p99 of both foreachBatch calls (when tidegate's returns, the version is
visible: that is the time to visible), what tidegate adds, and where its time goes, from one state of the
commit to the next.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def session() -> Any:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", 2)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def report(
    seconds: dict[str, list[float]], phases: dict[str, list[float]], arguments: argparse.Namespace
) -> None:
    print(
        f"{arguments.rows:,} rows a batch, {arguments.batches} batches after {arguments.warm_up} to warm up;"
        " in ms"
    )
    milliseconds = {
        name: [1000 * one for one in all_of[arguments.warm_up :]] for name, all_of in seconds.items()
    }
    for name, all_of in milliseconds.items():
        print(f"{name:22} p50 {percentile(all_of, 0.5):7.1f}   p99 {percentile(all_of, 0.99):7.1f}")
    added = [
        percentile(milliseconds["tidegate"], p) - percentile(milliseconds["collect"], p) for p in (0.5, 0.99)
    ]
    print(f"{'tidegate adds':22} p50 {added[0]:7.1f}   p99 {added[1]:7.1f}")
    for name, took in phases.items():
        of_phase = [1000 * one for one in took[arguments.warm_up :]]
        print(f"  {name:20} p50 {percentile(of_phase, 0.5):7.1f}   p99 {percentile(of_phase, 0.99):7.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--warm-up", type=int, default=50, help="of each sink's before; the JVM compiles")
    parser.add_argument("--driver-stage-max-rows", type=int, default=5_000, help="0: by the staging job")
    parser.add_argument("--wal")
    parser.add_argument("--store")
    arguments = parser.parse_args()
    from tidegate.spark import VersionedSink

    folder = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    spark = session()
    sink = VersionedSink(
        namespace=f"bench-{os.getpid()}",
        wal=arguments.wal or f"file://{folder}/wal",
        store=arguments.store or f"sqlite://{folder}/store",
        table="t",
        key="id",
        allow_unsafe=True,
        driver_stage_max_rows=arguments.driver_stage_max_rows,
    )
    phases: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {"collect": [], "tidegate": []}

    def tide(batch: Any, batch_id: int) -> None:
        sink(batch, batch_id)
        for name, took in sink.last_phases.items():
            phases.setdefault(name, []).append(took)

    sinks: dict[str, Callable[[Any, int], Any]] = {
        "collect": lambda batch, _: batch.collect(),
        "tidegate": tide,
    }

    def in_turns(batch: Any, batch_id: int) -> None:
        name = list(sinks)[batch_id % 2]
        started = time.perf_counter()
        sinks[name](batch, batch_id)
        seconds[name].append(time.perf_counter() - started)

    query = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", arguments.rows)
        .option("numPartitions", 2)
        .load()
        .selectExpr("value % 100000 as id", "value", "timestamp")
        .writeStream.foreachBatch(in_turns)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    while query.isActive and len(seconds["tidegate"]) < arguments.batches + arguments.warm_up:
        query.awaitTermination(1)
    query.stop()
    if query.exception() is not None:
        raise SystemExit(str(query.exception()))
    sink.close()
    spark.stop()
    shutil.rmtree(folder)
    report(seconds, phases, arguments)


if __name__ == "__main__":
    main()
