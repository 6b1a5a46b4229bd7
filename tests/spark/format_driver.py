"""The driver of test_stream_writer.py: a stream that writes by format, and is started again when it ends.

    python format_driver.py FOLDER RUNS

FOLDER has the log, the store and the checkpoint. Each batch sets ten keys to its own number, so a snapshot
with two numbers is torn. RUNS: the number of starts; every one of them continues where the last one ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

from support.spark_driver import session
from tidegate.spark import prepare, register

KEYS = 10


def start(spark, folder: Path):
    """The query, whose batches come one after another."""
    source = spark.readStream.load(format="rate-micro-batch", rowsPerBatch=KEYS)
    rows = source.selectExpr("value % 10 AS k", "value div 10 AS batch")
    return (
        prepare(rows, "k", schema="k bigint, batch bigint", order_by="batch", parallelism=2)
        .writeStream.format("tidegate")
        .options(namespace="n", wal=f"file://{folder}/wal", store=f"sqlite://{folder}/store", table="t")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start()
    )


def main(folder: Path, runs: int) -> None:
    spark = session("local[2]", "format")
    register(spark)
    for run in range(runs):
        query = start(spark, folder)
        (folder / f"run-{run}").touch()
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - the test ends it so
            print(str(error)[:2000], flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
