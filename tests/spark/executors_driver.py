"""The driver of test_kafka_executors.py and test_kafka_workers.py: batches, and notes of who did what.

    python executors_driver.py FOLDER LOG MASTER PLANS

LOG: what the sink is told of the log, as JSON; PLANS: what happens in a batch, by its number:
[what, who]. What: ``staging`` kills a task after some of its frames were acknowledged, ``staged``
after all were, before its own ack; ``applying`` after a chunk, before the seal; ``fork`` lets the
worker go on as two processes. Who: ``worker`` is the task's Python process, ``executor`` its JVM; while
applying the JVM of everyone who staged the version. Once for a batch.

Each event is a line of JSON in FOLDER/notes. At the end it prints which processes outlived Spark.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from support.spark_driver import DEAD_EXECUTORS, run_query, session
from tidegate.spark import VersionedSink
from tidegate.spark.staging import apply_job, job

FRAMES_FIRST = 3
"""So many frames are acknowledged when a task is killed while it stages."""
DEADLINE_S = 60.0
NO_DAEMON = "no-daemon"


def name(pid: int) -> str:
    """A process by number and birth: numbers come again."""
    return f"{pid}:{psutil.Process(pid).create_time()}"


def is_there(process: str) -> bool:
    try:
        return name(int(process.partition(":")[0])) == process
    except psutil.NoSuchProcess:
        return False


def kill(process: str) -> None:
    if is_there(process):
        os.kill(int(process.partition(":")[0]), signal.SIGKILL)


class Watch:
    """Goes to the workers by value: notes what happens there, and kills as planned."""

    def __init__(self, folder: str, plans: dict) -> None:
        self.folder, self.plans = folder, plans

    # -- notes --------------------------------------------------------------------------------------

    def note(self, kind, **more):
        line = json.dumps({"kind": kind, "process": name(os.getpid()), "at": time.time(), **more}) + "\n"
        file = os.open(f"{self.folder}/notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, line.encode())  # one write: lines of several processes do not mix
        os.close(file)

    def notes(self, kind):
        lines = Path(self.folder, "notes").read_text().splitlines()
        return [note for note in map(json.loads, lines) if note["kind"] == kind]

    def here(self):
        """Which batch, task and executor this is."""
        from pyspark import TaskContext

        context, me = TaskContext.get(), psutil.Process()
        parents = [parent for parent in me.parents() if parent.name() == "java"]
        return {
            "batch": context.getLocalProperty("streaming.sql.batchId"),
            "partition": context.partitionId(),
            "jvm": name(parents[0].pid),
        }

    # -- kills --------------------------------------------------------------------------------------

    def planned(self, what, batch):
        """Who shall be killed (or what else be done) now, if anyone; told once for a batch."""
        wanted, who = self.plans.get(batch, ("", ""))
        if wanted != what:
            return ""
        try:
            os.close(os.open(f"{self.folder}/once-{batch}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return ""
        return who

    def stagers(self, batch):
        return {note["jvm"] for note in self.notes("staged") if note["batch"] == batch}

    def kill(self, who, here, **more):
        jvms = {here["jvm"]} if who == "executor" else set()
        if who == "executor" and self.plans[here["batch"]][0] == "applying":
            jvms |= self.stagers(here["batch"])
        self.note("killed", who=who, jvms=sorted(jvms), **here, **more)
        for jvm in jvms - {here["jvm"]}:
            kill(jvm)
        kill(here["jvm"] if who == "executor" else name(os.getpid()))
        signal.pause()  # the executor takes this worker along

    # -- inside a worker ----------------------------------------------------------------------------

    def clients(self):
        """From now on this process notes the clients that it makes, and whose it uses."""
        from tidegate.wal.kafka.clients import Clients

        if hasattr(Clients, "makers"):
            return
        Clients.makers, watch, made, lent = {}, self, Clients._made, Clients._lent

        def noted(clients, kind, configuration):
            client = made(clients, kind, configuration)
            Clients.makers[id(client)] = name(os.getpid())
            watch.note("made", what=kind.__name__)
            return client

        @contextlib.contextmanager
        def checked(clients, *arguments):
            with lent(clients, *arguments) as client:
                watch.note("used", maker=Clients.makers[id(client)])
                yield client

        Clients._made, Clients._lent = noted, checked

    def frames(self, here):
        """The task is killed once its first frames are acknowledged."""
        from tidegate.wal.kafka.producer import DeliveryReports

        send, watch = DeliveryReports.send, self

        def sent(receipts, content):
            send(receipts, content)
            if len(receipts._offsets) == FRAMES_FIRST and (who := watch.planned("staging", here["batch"])):
                end = time.monotonic() + DEADLINE_S
                while receipts._missing and time.monotonic() < end:
                    receipts._producer.poll(0.1)
                acked = [offset for offset in receipts._offsets if offset >= 0]
                watch.kill(who, here, segment=receipts._key.decode(), acked=acked)

        DeliveryReports.send = sent
        return lambda: setattr(DeliveryReports, "send", send)

    def chunks(self, here):
        """The task is killed once its first chunk is in the store."""
        from tidegate.base import failpoints

        hit, watch = failpoints.hit, self

        def hits(name):
            if name == "apply.after_chunk":
                if who := watch.planned("applying", here["batch"]):
                    watch.kill(who, here)
                doomed = watch.plans.get(here["batch"]) == ["applying", "executor"]
                if doomed and here["jvm"] in watch.stagers(here["batch"]):
                    time.sleep(DEADLINE_S)  # whoever came first kills this executor: it must not be quicker
            hit(name)

        failpoints.hit = hits
        return lambda: setattr(failpoints, "hit", hit)

    def fork(self, endpoints):
        """A copy of this worker stages and reads by itself; this one goes on with its own clients."""
        from tidegate.wal import open_log

        ((_, _, _, uuid, _),) = open_log._shared  # the one that this worker's tasks share
        named = endpoints.wal, endpoints.namespace, uuid, endpoints.wal_options
        mine = open_log.shared_log(*named)
        me, child = name(os.getpid()), os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                for log in (mine, open_log.shared_log(*named)):
                    addresses = log.stage(f"forked-{os.getpid()}-{id(log)}", [b"one", b"two"])
                    read = {blob.content for blob in log.read(addresses)}
                    self.note("forked", parent=me, same=log is mine, right=read == {b"one", b"two"})
                os._exit(0)
            os._exit(1)
        end = time.monotonic() + DEADLINE_S
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.01)
        addresses = mine.stage(f"parent-{os.getpid()}", [b"three"])
        right = [blob.content for blob in mine.read(addresses)] == [b"three"]
        self.note("forking", status=ended[1], right=right)


def staging(watch: Watch, original):
    def make(work, *arguments):
        run = original(work, *arguments)

        def task(batches):
            here = watch.here()
            watch.clients()
            undo = watch.frames(here)
            try:
                acks = list(run(batches))
            finally:
                undo()
            watch.note("staged", **here)
            if watch.planned("fork", here["batch"]):
                watch.fork(work.endpoints)
            if who := watch.planned("staged", here["batch"]):
                watch.kill(who, here)
            yield from acks

        return task

    return make


def applying(watch: Watch, original):
    def make(*arguments):
        run = original(*arguments)

        def task(works):
            here = watch.here()
            watch.clients()
            undo = watch.chunks(here)
            try:
                done = list(run(works))
            finally:
                undo()
            watch.note("applied", **here)
            yield from done

        return task

    return make


def start_session(master: str) -> SparkSession:
    """``local[2] no-daemon``: each task has a Python process of its own, which ends as Python does."""
    master, _, rest = master.partition(" ")
    return session(
        master,
        "executors",
        {
            **DEAD_EXECUTORS,
            "spark.python.use.daemon": str(rest != NO_DAEMON).lower(),
        },
    )


def outlived(processes: set[str]) -> list[str]:
    """Those of the processes that are still there at the deadline."""
    end = time.monotonic() + DEADLINE_S
    while left := sorted(filter(is_there, processes)):
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    return left


def main(folder: Path, log: dict, master: str, plans: dict) -> None:
    spark = start_session(master)
    watch = Watch(str(folder), plans)
    job._task = staging(watch, job._task)
    apply_job._tasks = applying(watch, apply_job._tasks)
    sink = VersionedSink(
        namespace="flights",
        parallelism=2,
        key_groups=16,
        frame_bytes=500,
        driver_apply_max_changes=0,
        driver_stage_max_rows=0,
        **{"store": f"sqlite://{folder}/store", **log},
    )

    def each(txn, rows):
        watch.note("called", batch=str(txn.batch_id))
        txn.upsert("newest", rows, key="k", delete_when="n < 0")
        txn.reduce("sums", rows, key="k", reducers={"n": "sum"})

    run_query(spark, folder, sink.each(each))
    sink.close()
    spark.stop()
    workers = {note["process"] for kind in ("staged", "applied") for note in watch.notes(kind)}
    watch.note("ended", outlived=outlived(workers))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
