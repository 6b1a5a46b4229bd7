"""The driver of test_affinity.py and of benchmarks/bench_affinity.py: where do tasks run, batch by batch?

    python affinity_driver.py FOLDER SETTINGS

SETTINGS, as JSON: ``affinity``, ``wait`` (spark.locality.wait), ``tasks``, ``rows``, ``stable`` (batches per
phase), ``step`` ("reduce", or "update": its state is read in a stage in front), ``play`` (of ``PLAYS``:
"lost" if it is left out), and ``options`` of the sink. A standalone cluster with workers at 127.0.0.1 to .3,
each with its own temporary folder for the cache of state. With "shared" the first two are one location, and
share it. Before each phase of the play workers are killed, or come in place of killed ones. With "dynamic"
Spark ends executors that are idle, until one is left, and starts others when tasks wait.

It adds a line of JSON per batch to FOLDER/notes: phase, assigned (executor of each task, null without), ran
(executor and host of each task), reads (keys that the caches knew, all that were asked for), executors (id:
host), before (those before the batch), seconds.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

from services.support.spark.cluster import SparkCluster
from support.spark_driver import DEAD_EXECUTORS, run_query, session
from tidegate.spark import VersionedSink
from tidegate.spark.placement.preferred import executors_now
from tidegate.spark.staging import job

ADDRESSES = FIRST, SECOND, THIRD = "127.0.0.1", "127.0.0.2", "127.0.0.3"
SHARED = {FIRST: "H1", SECOND: "H1", THIRD: "H3"}
LOST = {"stable": "", "lost": f"kill {SECOND}", "back": f"add {SECOND}"}
PLAYS = {
    "lost": LOST,
    "shared": LOST,
    "rolling": {"stable": ""}
    | {f"{at} {how}": f"{what} {at}" for at in ADDRESSES for how, what in (("down", "kill"), ("up", "add"))},
}
"""What happens to a worker before each phase, by the play."""
PLAYS["dynamic"] = {"three": "grow", "one": "shrink", "three again": "grow", "one again": "shrink"}
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": 1,
    "spark.dynamicAllocation.maxExecutors": 3,
    "spark.executor.cores": 1,
    **{
        f"spark.dynamicAllocation.{name}": "1s"
        for name in ("executorIdleTimeout", "cachedExecutorIdleTimeout", "shuffleTracking.timeout")
    },
}
DEADLINE_S = 120.0


def start_session(master: str, wait: str, play: str) -> SparkSession:
    return session(
        master,
        "affinity",
        {
            **DEAD_EXECUTORS,
            "spark.sql.shuffle.partitions": 3,
            "spark.locality.wait": wait,
            **(DYNAMIC if play == "dynamic" else {}),
        },
    )


def wait_for_executors(spark: SparkSession, count: int) -> None:
    end = time.monotonic() + DEADLINE_S
    while len(executors_now(spark.sparkContext)) != count:
        assert time.monotonic() < end, f"there are not {count} executors within {DEADLINE_S} s"
        time.sleep(0.1)


def grow(spark: SparkSession, folder: Path) -> None:
    """Let three tasks wait until each has an executor."""
    begun = folder / f"grown-{time.monotonic_ns()}"

    def task(_: int) -> None:
        while not begun.exists():
            time.sleep(0.05)

    waiting = threading.Thread(target=spark.sparkContext.parallelize(range(3), 3).foreach, args=(task,))
    waiting.start()
    try:
        wait_for_executors(spark, 3)
    finally:
        begun.touch()
        waiting.join(DEADLINE_S)


def main(folder: Path, settings: dict) -> None:
    (folder / "input").mkdir(parents=True)
    tempfile.tempdir = str(folder)  # the driver's own: it remembers there where tasks ran
    play = settings.get("play", "lost")
    batches = len(PLAYS[play]) * settings["stable"]
    for at in range(batches):
        rows = [{"k": f"k{n}", "n": n} for n in range(settings["rows"])]
        path = folder / "input" / f"{at:04}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_600_000_000 + 100 * at,) * 2)
    locations = SHARED if play == "shared" else None
    with SparkCluster(folder / "cluster", *ADDRESSES, locations=locations) as cluster:
        spark = start_session(cluster.url, settings["wait"], play)
        try:
            run(spark, cluster, folder, settings)
        finally:
            spark.stop()


def run(spark: SparkSession, cluster: SparkCluster, folder: Path, settings: dict) -> None:
    acks: list = []
    staged = job.SparkBarrier.stage
    job.SparkBarrier.stage = lambda self, *words: acks.append(staged(self, *words)) or acks[-1]
    sink = VersionedSink(
        namespace="flights",
        wal=f"file://{folder}/wal",
        store=f"sqlite://{folder}/store",
        key_groups=4 * settings["tasks"],
        parallelism=settings["tasks"],
        affinity=settings["affinity"],
        driver_apply_max_changes=0,
        driver_stage_max_rows=0,
        **settings.get("options", {}),
    )

    def reduce(txn, rows):
        txn.reduce("sums", rows, key="k", reducers={"n": "sum"})

    def update(txn, rows):
        txn.update("sums", rows, "k", total, schema="n bigint")

    def total(_key, rows, state, _emit):
        return {"n": (state["n"] if state else 0) + sum(row["n"] for row in rows)}

    phases = list(PLAYS[settings.get("play", "lost")].items())
    commit = sink.each(update if settings.get("step") == "update" else reduce)

    def each(rows, batch_id):
        phase, happens = phases[batch_id // settings["stable"]]
        what, _, address = happens.partition(" ")
        if what and batch_id % settings["stable"] == 0:
            if what == "grow":
                grow(spark, folder)
            elif what == "shrink":
                wait_for_executors(spark, 1)
            else:
                getattr(cluster, what)(address)
                wait_for_executors(spark, 2 if what == "kill" else 3)
        before, start = executors_now(spark.sparkContext), time.monotonic()
        commit(rows, batch_id)
        state = sink.last_state
        current = sink._writing.now and sink._writing.now.placement and sink._writing.now.placement.current
        note = {
            "phase": phase,
            "assigned": current and list(current.executors),
            "met": sink.affinity,
            "ran": [(ack.executor, ack.host) for ack in sorted(acks[-1], key=lambda ack: ack.task)],
            "reads": [state.hits + state.absent, state.hits + state.absent + state.misses],
            "executors": executors_now(spark.sparkContext),
            "before": before,
            "seconds": time.monotonic() - start,
        }
        with (folder / "notes").open("a") as notes:
            notes.write(json.dumps(note) + "\n")

    if settings.get("play") != "dynamic":
        wait_for_executors(spark, 3)
    run_query(spark, folder, each)
    sink.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
