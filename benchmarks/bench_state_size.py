r"""What the size of the state costs: changes, a rescale and a restart at 100 K, 1 M and 10 M keys.

    tools/run python benchmarks/bench_state_size.py --store sqlite:///tmp/state-size
    tools/run python tests/services/run.py redis-memory -- \
        python benchmarks/bench_state_size.py --store {redis}

For each number of keys, on local[2], a namespace is filled by ``sink.load``, and what the fill leaves to be
merged or dropped is; then, over Spark's rate-micro-batch with 10,000 random keys a batch, figures are of
the ``--rounds`` batches behind the first:

    reduce, upsert   seconds of a batch (staging + apply of all); ratio to the same with the fewest keys
    2 -> 7 -> 3      the first batch at another parallelism (with a new sink, which opens the namespace)
                     against the one before, and the bytes of its change-log: nothing else is written
    restart          the driver is killed (SIGKILL) within a batch; seconds from the start of the next
                     driver's query, in a new JVM, to the next version, and how long the sink took of them
    spark            the same restart of groupBy().count() with RocksDB, from its checkpoint
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from harness import ROCKSDB, UNIT, rate, spark_on

CHANGES, FILL_BATCH = 10_000, 1_000_000
DEADLINE_S = 400.0
SETTINGS = {"spark__sql__streaming__stateStore__providerClass": ROCKSDB}

Note = dict[str, Any]


# -- a driver ----------------------------------------------------------------------------------------


def tell(**note: Any) -> None:
    print(json.dumps(note), flush=True)


def steps_of(rounds: int) -> list[tuple[str, int]]:
    """What each batch does, with how many tasks; the first of each only warms up."""
    steps = [("reduce", 2), ("reduce", 2), ("upsert", 2), ("reduce", 2), ("reduce", 7), ("reduce", 3)]
    return [step for step in steps for _ in range(rounds + 1)]


def ours(spark: Any, settings: Note, *, again: bool) -> None:
    """Fill, the steps, then batches until this process is killed; ``again``: until the next version."""
    from tidegate.spark import VersionedSink

    folder, keys = Path(settings["folder"]), settings["keys"]
    sinks: dict[int, VersionedSink] = {}
    steps = steps_of(settings["rounds"])

    def sink_of(parallelism: int) -> VersionedSink:
        if parallelism not in sinks:
            for other in sinks.values():
                other.close()
            sinks.clear()
            sinks[parallelism] = VersionedSink(
                namespace=settings["namespace"],
                wal=f"file://{folder}/wal",
                store=settings["store"],
                local_dir=str(folder / "local"),
                parallelism=parallelism,
                allow_unsafe=True,
            )
        return sinks[parallelism]

    def one(batch: Any, batch_id: int) -> None:
        kind, parallelism = steps[batch_id] if batch_id < len(steps) else ("endless", 2)
        if kind == "endless":
            tell(kind="begun", batch=batch_id)
        began = time.perf_counter()
        sink = sink_of(parallelism)

        def write(txn: Any, rows: Any) -> None:
            if kind == "upsert":
                txn.upsert("state", rows, key="k")
            else:
                txn.reduce("state", rows, key="k", reducers={"n": "sum"})

        sink.each(write)(batch, batch_id)
        took, state = time.perf_counter() - began, sink.last_state
        manifest = sink._writing.now.coordinator.last_manifest if sink._writing.now else None  # noqa: SLF001 - of no use to users
        written = sum(frame.bytes for frame in manifest.frames()) if manifest else 0
        asked = max(1, state.hits + state.absent + state.misses)
        known = (state.hits + state.absent) / asked
        tell(kind=kind, tasks=parallelism, seconds=took, bytes=written, known=known, phases=sink.last_phases)
        if again:
            tell(kind="again", seconds=time.perf_counter() - started, sink=took, recovered=sink.recovered)

    if not again:
        began = time.perf_counter()
        rows = spark.range(0, keys, 1, 8).selectExpr("cast(id as string) AS k", "id AS n")
        sink_of(2).load({"state": rows}, token="fill", key="k")  # noqa: S106 - no password
        filled = time.perf_counter()
        for token in ("one more", "and another"):
            sink_of(2).load({"state": rows.limit(1)}, token=token, key="k")
        settle(settings)
        tell(kind="filled", seconds=filled - began, settled=time.perf_counter() - filled)
    stream = rate(spark, CHANGES, advanceMillisPerBatch=1_000).selectExpr(
        f"cast(cast(floor({keys} * {UNIT}) as bigint) as string) AS k", "1L AS n"
    )
    started = time.perf_counter()
    written = stream.writeStream.foreachBatch(one).option("checkpointLocation", f"{folder}/checkpoint")
    written.start().awaitTermination(DEADLINE_S)


def settle(settings: Note) -> None:
    """Drop what the fill's next versions have replaced: batches are not to share the store with that."""
    from tidegate.committers.steps.retire import retire_up_to
    from tidegate.options import Options
    from tidegate.sinks.open_store import open_store
    from tidegate.wal.catch_up import catch_up
    from tidegate.wal.fold import View
    from tidegate.wal.open_log import open_log

    with (
        contextlib.closing(open_log(f"file://{settings['folder']}/wal", settings["namespace"])) as log,
        contextlib.closing(open_store(settings["store"], settings["namespace"])) as store,
    ):
        retire_up_to(log, store, catch_up(View(), log).state, Options(), lambda: False)


def rocksdb(spark: Any, settings: Note, *, again: bool) -> None:
    """Spark's own state: filled, then batches until this process is killed; ``again``: until the next."""
    folder, keys = Path(settings["folder"]), settings["keys"]
    fill = min(FILL_BATCH, keys)
    filled = -(-keys // fill) * fill
    key = f"CASE WHEN value < {filled} THEN value % {keys} ELSE cast(floor({keys} * {UNIT}) as bigint) END"
    done = threading.Event()

    def one(batch: Any, batch_id: int) -> None:
        last = (batch_id + 1) * fill >= filled
        if settings["endless"]:
            tell(kind="begun", batch=batch_id)
        batch.write.format("noop").mode("append").save()
        if again:
            tell(kind="again", seconds=time.perf_counter() - started)
        elif last and not settings["endless"]:
            done.set()

    def start(rows: int) -> Any:
        counted = (
            rate(spark, rows, advanceMillisPerBatch=1_000)
            .selectExpr(f"cast({key} as string) AS k")
            .groupBy("k")
            .count()
        )
        written = counted.writeStream.outputMode("update").foreachBatch(one)
        return written.option("checkpointLocation", f"{folder}/checkpoint").start()

    if not again:
        began = time.perf_counter()
        settings["endless"] = False
        query = start(fill)
        done.wait(DEADLINE_S)
        while not any(p["batchId"] + 1 >= filled // fill for p in query.recentProgress):
            time.sleep(0.05)
        query.stop()
        tell(kind="filled", seconds=time.perf_counter() - began)
        settings["endless"] = True
    started = time.perf_counter()
    start(CHANGES).awaitTermination(DEADLINE_S)


# -- drivers are started, listened to, and killed ------------------------------------------


@contextlib.contextmanager
def coordinator(role: str, settings: Note) -> Iterator[Callable[[], Note]]:
    """A driver in a process group of its own; gives what it tells next. It is killed at the end."""
    command = [sys.executable, __file__, "--role", role, "--settings", json.dumps(settings), "--store", "-"]
    log = Path(settings["folder"], f"{role}.log")
    told: queue.Queue[str] = queue.Queue()
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )

    def hear() -> None:
        for line in process.stdout or ():
            told.put(line)
        told.put("")

    listener = threading.Thread(target=hear, daemon=True)
    listener.start()

    def listen() -> Note:
        line = told.get(timeout=DEADLINE_S)
        if not line:
            raise SystemExit(log.read_text()[-3_000:])
        note: Note = json.loads(line)
        return note

    try:
        yield listen
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        listener.join()


def until(listen: Callable[[], Note], kind: str) -> list[Note]:
    """What is told, up to the first note of this kind."""
    notes = [listen()]
    while notes[-1]["kind"] != kind:
        notes.append(listen())
    return notes


def killed_and_again(role: str, settings: Note) -> tuple[list[Note], Note]:
    """A driver's notes until it is killed within a batch, and what the next one told."""
    with coordinator(role, settings) as listen:
        notes = until(listen, "begun") + until(listen, "begun")
        time.sleep(0.2)  # within the batch
    with coordinator(f"{role}-again", settings) as listen:
        return notes, until(listen, "again")[-1]


# -- the figures --------------------------------------------------------------------------------------------


def median(notes: list[Note]) -> float:
    return statistics.median(note["seconds"] for note in notes)


def phases_of(note: Note) -> str:
    """A batch's seconds; in front of them those of its staging and of its apply."""
    staging, applying = (note["phases"].get(name, 0.0) for name in ("staging", "decided"))
    return f"{staging:.2f}+{applying:.2f} of {note['seconds']:.2f}"


def of_size(arguments: argparse.Namespace, keys: int) -> dict[str, Any]:
    """All figures of one number of keys."""
    from tidegate.sinks.open_store import open_store

    folder, namespace = tempfile.mkdtemp(prefix="tidegate-bench-"), f"size-{keys}-{os.getpid()}"
    settings: Note = {"folder": folder, "keys": keys, "rounds": arguments.rounds, "endless": True}
    settings |= {"store": arguments.store, "namespace": namespace}
    try:
        notes, again = killed_and_again("ours", settings)
    finally:
        with contextlib.closing(open_store(arguments.store, namespace)) as store:
            store.drop()
        shutil.rmtree(folder, ignore_errors=True)
    filled, *batches = [note for note in notes if note["kind"] != "begun"]
    each = arguments.rounds + 1
    parts = [batches[at : at + each] for at in range(0, 6 * each, each)]
    found = {"filled": filled, "again": again, "parts": parts, "spark": None}
    if not arguments.no_spark and keys <= arguments.spark_max:
        settings["folder"] = folder = tempfile.mkdtemp(prefix="tidegate-bench-")
        try:
            notes, again = killed_and_again("spark", settings)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        found["spark"] = (notes[0]["seconds"], again["seconds"])
    return found


def report(keys: int, found: dict[str, Any], least: dict[str, Any]) -> None:
    behind, reduce, upsert, two, seven, three = found["parts"]
    filled, settled = found["filled"]["seconds"], found["filled"]["settled"]
    print(f"{keys:,} keys, filled in {filled:.1f} s, settled in {settled:.1f} s")
    for name, part, at_least in (
        ("reduce, right behind the fill", behind[1:], least["parts"][0][1:]),
        ("reduce", reduce[1:], least["parts"][1][1:]),
        ("upsert", upsert[1:], least["parts"][2][1:]),
        ("reduce again", two[1:], least["parts"][3][1:]),
    ):
        shown = ", ".join(phases_of(note) for note in part)
        ratio = median(part) / median(at_least)
        print(f"  {name}: {median(part):.2f} s, {ratio:.2f} of the fewest keys' ({shown})")
    for name, before, after in (("2 -> 7", two, seven), ("7 -> 3", seven, three)):
        last, first, later = median(before[1:]), after[0], median(after[1:])
        sizes, known = ([note[what] for note in (before[-1], first)] for what in ("bytes", "known"))
        print(
            f"  {name}: before {last:.2f} s, first {first['seconds']:.2f} s"
            f" ({first['seconds'] / last:.2f}), later {later:.2f} s;"
            f" change-log {sizes[0] / 1e3:.0f} KB, first {sizes[1] / 1e3:.0f} KB;"
            f" keys the cache knew {known[0]:.0%}, first {known[1]:.0%}"
        )
    again = found["again"]
    print(f"  restart: {again['seconds']:.2f} s, {again['sink']:.2f} s of them the sink's", end="")
    print(f"; versions recovered: {again['recovered']}")
    if found["spark"]:
        print(f"  spark: {found['spark'][1]:.2f} s (filled in {found['spark'][0]:.1f} s)")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", required=True)
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-spark", action="store_true", help="without Spark's own state")
    parser.add_argument("--spark-max", type=int, default=10_000_000, help="most keys for Spark's own state")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--settings", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role:
        name, _, again = given.role.partition("-")
        with spark_on(**SETTINGS) as spark:
            {"ours": ours, "spark": rocksdb}[name](spark, given.settings, again=bool(again))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    least: dict[str, Any] = {}
    for keys in given.keys:
        found = of_size(given, keys)
        least = least or found
        report(keys, found, least)


if __name__ == "__main__":
    main()
