"""A large batch into SQLite: tidegate beside the plainest writer, in one run.

    tools/run python benchmarks/bench_sqlite_batch.py [--rows 1000000] [--keys 400000] [--rounds 3]

Both write each batch of the same parquet files inside foreachBatch, in turns, on local[2]. The plain
writer is what one writes first: ``foreachPartition``, rows as Spark hands them over, one
transaction per partition with INSERT OR REPLACE into a file of the same kind (WAL mode,
synchronous FULL), no log, no version, nothing atomic over partitions. Printed: seconds per
batch and the ratio of medians (tidegate / plain); below 1.0 tidegate is faster.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from harness import (
    VALUE,
    Samples,
    alternate,
    medians,
    new_folder,
    parser_of,
    run_batches,
    shown,
    sink_in,
    spark_on,
)

from tidegate.bench.baselines.sqlite import write_rows


def main() -> None:
    arguments = parser_of(__doc__, rows=1_000_000, keys=400_000, rounds=3).parse_args()
    seconds: Samples = {"plain": [], "tidegate": []}
    key = f"concat('key-', cast(pmod(hash(id), {arguments.keys}) as string)) as key"
    with (
        new_folder() as folder,
        spark_on() as spark,
        sink_in(folder, arguments, table="t", key="key", value="value") as sink,
    ):
        rows = spark.range(0, arguments.rows, numPartitions=2).selectExpr(key, VALUE)
        for number in range(arguments.rounds + 1):
            rows.write.parquet(str(folder / "input" / f"part-{number:03}.parquet"))

        def write(batch: Any, batch_id: int) -> None:
            sides = {
                "tidegate": lambda: sink(batch, batch_id),
                "plain": lambda: write_rows(str(folder / "plain"), batch),
            }
            alternate(sides, 1, seconds, start=batch_id)

        source = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 2)
        stream = source.parquet(str(folder / "input" / "*"))
        run_batches(stream, write, lambda: len(seconds["plain"]) > arguments.rounds)
    print(f"{arguments.rows:,} rows over {arguments.keys:,} keys; the first batch of each is a warm-up")
    middle = medians(seconds)
    for name, each in seconds.items():
        print(f"{name:9} median {middle[name]:6.2f} s   (all: {shown(each)})")
    print(f"ratio tidegate / plain: {middle['tidegate'] / middle['plain']:.2f}")


if __name__ == "__main__":
    main()
