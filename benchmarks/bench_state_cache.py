r"""What the cache of state is worth: ``reduce`` with all in memory, 57 % of it on a disk, 43 % kept, none.

    tools/run python benchmarks/bench_state_cache.py [--keys 100000] [--batch 25000] [--rounds 3]
    tools/run python tests/services/run.py redis -- python benchmarks/bench_state_cache.py --store {redis}

local[2]. Per mode one query over Spark's rate-micro-batch: it writes every key once, then ``--rounds``
batches of uniform keys, then as many of zipf ones (rank r about 1/r of the time). A state is about 100
bytes. Printed, medians over the rounds: seconds of a batch, seconds that the slower task spent reading
state, the share of keys that the cache knew; and ratios to "no cache".
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
TEXT_BYTES, ROW_BYTES = 70, 150
"""A state is a JSON object of about 100 bytes; with its key and place a row of the cache takes 150."""
DEADLINE_S = 600.0


class Batch(NamedTuple):
    """One batch's seconds, those of reading state, and the share of keys that were known."""

    seconds: float
    reading: float
    known: float


def keys_of(arguments: argparse.Namespace) -> str:
    """The key of a row by its number: first every key, then uniform, then zipf."""
    filled = -(-arguments.keys // arguments.batch) * arguments.batch
    zipf_from = filled + (arguments.rounds + 1) * arguments.batch
    unit = "((shiftrightunsigned(xxhash64(value), 11)) / 9007199254740992D)"
    return (
        f"CASE WHEN value < {filled} THEN value % {arguments.keys}"
        f" WHEN value < {zipf_from} THEN floor({arguments.keys} * {unit})"
        f" ELSE floor(pow({arguments.keys}, {unit})) - 1 END"
    )


def run(
    spark: Any, arguments: argparse.Namespace, cache_bytes: int, memory_bytes: int
) -> dict[str, list[Batch]]:
    """The batches of one mode, by their keys' distribution; the first of each only warms up."""
    from tidegate.spark import VersionedSink

    folder = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    fills = -(-arguments.keys // arguments.batch)
    last = fills + 2 * (arguments.rounds + 1) - 1
    sink = VersionedSink(
        namespace=f"bench-{os.getpid()}-{cache_bytes}-{memory_bytes}",
        wal=arguments.wal or f"file://{folder}/wal",
        store=arguments.store or f"sqlite://{folder}/store",
        local_dir=str(folder / "local"),
        state_cache_bytes=cache_bytes,
        state_memory_bytes=memory_bytes,
        allow_unsafe=True,
        keep_versions=1,
    )
    batches: list[Batch] = []

    def write(txn: Any, rows: Any) -> None:
        txn.reduce("state", rows, key="k", reducers={"n": "sum", "text": "last"}, order_by="value")

    def one(rows: Any, batch_id: int) -> None:
        if batch_id > last:
            return
        started = time.perf_counter()
        each(rows, batch_id)
        state = sink.last_state
        asked = state.hits + state.absent + state.misses
        known = (state.hits + state.absent) / asked if asked else 0.0
        batches.append(Batch(time.perf_counter() - started, state.seconds, known))

    each = sink.each(write)
    query = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", arguments.batch)
        .option("numPartitions", 2)
        .load()
        .selectExpr(
            f"cast(cast({keys_of(arguments)} as bigint) as string) AS k",
            "value AS n",
            f"rpad(cast(value as string), {TEXT_BYTES}, '.') AS text",
            "value",
        )
        .writeStream.foreachBatch(one)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    end = time.monotonic() + DEADLINE_S
    while query.isActive and len(batches) <= last and time.monotonic() < end:
        query.awaitTermination(0.1)
    query.stop()
    if query.exception() is not None:
        raise SystemExit(str(query.exception()))
    sink.close()
    shutil.rmtree(folder)
    if len(batches) <= last:
        raise SystemExit(f"{len(batches)} batches were done within {DEADLINE_S} s")
    uniform, zipf = fills + 1, fills + arguments.rounds + 2
    return {
        "uniform": batches[uniform : uniform + arguments.rounds],
        "zipf": batches[zipf : zipf + arguments.rounds],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=25_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wal")
    parser.add_argument("--store")
    arguments = parser.parse_args()
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", 2)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    size = arguments.keys * ROW_BYTES
    part = int(0.43 * size)
    modes = {
        "no cache": (0, 0),
        "43 %": (part, part),
        "57 % disk": (4 * size, part),
        "all": (4 * size, 4 * size),
    }
    found = {name: run(spark, arguments, *room) for name, room in modes.items()}
    spark.stop()
    print(f"{arguments.keys:,} keys of about 100 bytes, {arguments.batch:,} rows a batch")
    print(f"{'':18} {'batch s':>8} {'ratio':>6} {'reading s':>10} {'ratio':>6} {'known':>6}")
    for keys in ("uniform", "zipf"):
        medians = {
            name: [statistics.median(column) for column in zip(*of_mode[keys], strict=True)]
            for name, of_mode in found.items()
        }
        for name, (batch, reading, known) in medians.items():
            whole, read = batch / medians["no cache"][0], reading / medians["no cache"][1]
            print(f"{keys:8}{name:10} {batch:8.2f} {whole:6.2f} {reading:10.3f} {read:6.2f} {known:6.1%}")


if __name__ == "__main__":
    main()
