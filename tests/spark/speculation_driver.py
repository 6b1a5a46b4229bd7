"""The driver of test_speculation.py: a query on a standalone cluster whose first staging try dawdles.

    python speculation_driver.py MASTER FOLDER LOG

The first attempt of partition 0's staging task writes its frames, then waits (bounded) until its
speculative twin has written its own: both have staged, one ack counts. LOG: what the sink is
told of the log, as JSON. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.spark_driver import run_query, session
from tidegate.spark import VersionedSink
from tidegate.spark.staging import job

WAIT_S = 60.0


def dawdling(seen: str, original):
    """``stage._task`` whose first attempt of partition 0 holds its ack back."""

    def make(*arguments):
        run = original(*arguments)

        def task(batches):
            import time
            from pathlib import Path

            from pyspark import TaskContext

            context = TaskContext.get()
            attempt, partition = context.attemptNumber(), context.partitionId() % 2  # of a job that is placed
            acks = list(run(batches))
            mark = Path(seen)
            (mark / f"{partition}-{attempt}").write_text(
                context.getLocalProperty("streaming.sql.batchId") or ""
            )
            end = time.monotonic() + WAIT_S
            while partition == 0 and attempt == 0 and time.monotonic() < end:
                if (mark / "0-1").exists():
                    break
                time.sleep(0.05)
            yield from acks

        return task

    return make


def main(master: str, folder: Path, log: dict) -> None:
    spark = session(
        master,
        "speculation",
        {
            "spark.executor.cores": 1,
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": "1.01",
            "spark.speculation.quantile": "0.1",
            "spark.speculation.minTaskRuntime": "100ms",
            "spark.locality.wait": "0s",
        },
    )
    seen = folder / "seen"
    seen.mkdir()
    job._task = dawdling(str(seen), job._task)
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    sink = VersionedSink(
        namespace="flights",
        store=f"sqlite://{folder}/store",
        parallelism=2,
        driver_apply_max_changes=0,
        driver_stage_max_rows=0,
        **log,
    )

    def each(txn, rows):
        txn.upsert("t", rows, key="k")
        txn.reduce("sums", rows.selectExpr("n % 3 AS k", "n"), key="k", reducers={"n": "sum"})

    hosts: set[str] = set()

    def run(rows, batch_id):
        sink.each(each)(rows, batch_id)
        hosts.update(info.host() for info in tracker.getExecutorInfos())

    run_query(spark, folder, run, all_at_once=True)
    sink.close()
    print(
        json.dumps({"hosts": sorted(hosts), "seen": sorted(path.name for path in seen.iterdir())}), flush=True
    )
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
