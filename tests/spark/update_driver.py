"""The driver of test_update_killed.py: batches through ``txn.update``, and a place where something is killed.

    python update_driver.py FOLDER LOG MASTER PLACE

PLACE: ``function`` kills this driver and its JVM from inside the function, in batch 1; ``executor``
kills, in batch 1, the executor of a staging task that has written its frames, once the other one has
too: so what functions made is lost after one task has read it. ``chance`` does it with a function
that gives other results each time. ``none``: nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil

from support.spark_driver import DEAD_EXECUTORS, run_query, session
from tidegate.spark import VersionedSink
from tidegate.spark.staging import job

WAIT_S = 120.0


def once(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def await_file(path: str) -> None:
    end = time.monotonic() + WAIT_S
    while not Path(path).exists():
        if time.monotonic() > end:
            raise TimeoutError(path)
        time.sleep(0.02)


def note_first_ack(context, folder: str) -> None:
    """Once a task has staged in batch 1: a file when the driver has the ack of one."""
    await_file(f"{folder}/staged")
    tracker, end = context.statusTracker(), time.monotonic() + WAIT_S
    while time.monotonic() < end:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        if any(stage and stage.numCompletedTasks for stage in stages):
            once(f"{folder}/acked")
            return
        time.sleep(0.02)


def killing_executor(original, folder: str):
    """``stage._task``: in batch 1 the second task that has staged takes its executor along, once."""

    def make(*arguments):
        run = original(*arguments)

        def task(batches):
            from pyspark import TaskContext

            acks = list(run(batches))
            first = TaskContext.get().getLocalProperty("streaming.sql.batchId") != "1" or once(
                f"{folder}/staged"
            )
            if not first and once(f"{folder}/killed"):
                await_file(f"{folder}/acked")
                os.kill(psutil.Process().parent().parent().pid, signal.SIGKILL)
                signal.pause()
            yield from acks

        return task

    return make


def function(place: str, folder: str, drivers: tuple[int, ...], batch_id: int):
    """Counts, and tells another table of each count: rows that travel to other tasks."""

    def count(key, rows, state, emit):
        if place == "function" and batch_id == 1 and key == "k7" and once(f"{folder}/killed"):
            for driver in drivers:
                os.kill(driver, signal.SIGKILL)
            signal.pause()
        total = (state or {"n": 0})["n"] + sum(row["n"] for row in rows)
        emit("seen", f"seen {key}", {"n": time.time_ns() if place == "chance" else total})
        return {"n": total}

    return count


def forget(key, state, emit):
    return None


def main(folder: Path, log: dict, master: str, place: str) -> None:
    spark = session(
        master,
        "update",
        {
            **DEAD_EXECUTORS,
            "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
            "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
        },
    )
    drivers = (int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()), os.getpid())
    if place == "chance":  # Spark's own check would end the job first
        job.whole_retries = lambda _: contextlib.nullcontext()
    if place in ("executor", "chance"):
        job._task = killing_executor(job._task, str(folder))
        threading.Thread(target=note_first_ack, args=(spark.sparkContext, str(folder)), daemon=True).start()
    sink = VersionedSink(namespace="flights", store=f"sqlite://{folder}/store", parallelism=2, **log)

    def each(txn, rows):
        fn = function(place, str(folder), drivers, txn.batch_id)
        outputs = {"seen": ("k string", "n bigint")}
        timed = {"timeout": "1 hour", "on_timeout": forget}  # the rows of its tables could be mixed, too
        txn.update("sums", rows, "k", fn, schema="n bigint", outputs=outputs, **timed)

    run_query(spark, folder, sink.each(each))
    sink.close()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3], sys.argv[4])
