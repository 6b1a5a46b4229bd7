"""The driver of test_driver_killed.py: four batches, and a place at which something is killed.

    python killed_driver.py FOLDER OPTIONS MASTER PLACE

OPTIONS: the sink's log, and its store where that is not SQLite in FOLDER, as JSON. PLACE: ``batch`` kills
this driver and its JVM when batch 1 has begun, before the sink sees it (Spark has its offsets, nothing is
staged); ``stage`` does it from a task that has written its frames and not acked; ``executor`` kills that
task's executor instead, once. Places inside the sink come through TIDEGATE_FAILPOINTS, which kill this
process only: its JVM then ends by itself. ``none``: nothing.
Whenever the function of a batch runs, its id goes to FOLDER/calls; whenever a batch is done, how it read
its state, to FOLDER/reads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import psutil

from support.spark_driver import run_query, session
from tidegate.spark import VersionedSink
from tidegate.spark.staging import job

BATCHES = [
    [{"k": f"k{n}", "n": n} for n in range(30)],
    [{"k": f"k{n}", "n": 100 * n - 100} for n in range(10)],  # k0 is deleted
    [{"k": f"k{n}", "n": 7} for n in range(0, 40, 3)],
    [],
]


def write_input(folder: Path) -> None:
    """A file for each batch, older first."""
    (folder / "input").mkdir()
    for index, rows in enumerate(BATCHES):
        path = folder / "input" / f"{index}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_600_000_000 + 100 * index,) * 2)


def expected(version: int) -> dict[str, dict]:
    """The two tables at a version."""
    newest, sums = {}, {}
    for batch in BATCHES[:version]:
        for row in batch:
            sums[row["k"]] = {"n": sums.get(row["k"], {"n": 0})["n"] + row["n"]}
            newest[row["k"]] = {"n": row["n"]}
            if row["n"] < 0:
                del newest[row["k"]]
    return {"newest": newest, "sums": sums}


def kill(*processes: int) -> None:
    for process in processes:
        os.kill(process, signal.SIGKILL)


def killing(original, place: str, once: Path, drivers: tuple[int, ...]):
    """``stage._task`` that, in batch 1, kills after the frames are durable and before the ack."""

    def make(*arguments):
        run = original(*arguments)

        def task(batches):
            from pyspark import TaskContext

            acks = list(run(batches))
            if TaskContext.get().getLocalProperty("streaming.sql.batchId") == "1" and not once.exists():
                once.touch()
                if place == "stage":
                    kill(*drivers)
                else:
                    daemon = psutil.Process().parent()
                    kill(daemon.parent().pid)
                signal.pause()  # whoever was killed takes this worker along
            yield from acks

        return task

    return make


def main(folder: Path, options: dict, master: str, place: str) -> None:
    spark = session(master, "killed driver")
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    drivers = (jvm, os.getpid())
    if place in ("stage", "executor"):
        job._task = killing(job._task, place, folder / "killed", drivers)
    where = {
        "namespace": "flights",
        "store": f"sqlite://{folder}/store",
        "local_dir": f"{folder}/local",
        **options,
    }
    # The cache is in the test's own folder: from memory the next application on this host would clear it.
    sink = VersionedSink(parallelism=2, state_memory_bytes=0, **where)

    def each(txn, rows):
        with (folder / "calls").open("a") as calls:
            calls.write(f"{txn.batch_id}\n")
        txn.upsert("newest", rows, key="k", delete_when="n < 0")
        txn.reduce("sums", rows, key="k", reducers={"n": "sum"})
        txn.local_state("seen", rows, lambda _, mine, state, __: [*state, *(b"%d" % r["n"] for r in mine)])

    commit = sink.each(each)

    def run(rows, batch_id):
        if place == "batch" and batch_id == 1:
            kill(*drivers)
        commit(rows, batch_id)
        state = sink.last_state
        with (folder / "reads").open("a") as reads:
            reads.write(f"{batch_id} {state.hits} {state.misses}\n")

    run_query(spark, folder, run)
    sink.close()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3], sys.argv[4])
