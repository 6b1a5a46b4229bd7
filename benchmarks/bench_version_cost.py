r"""What a version costs, one thing changed at a time: changes, key groups, layers, executors.

    tools/run python tests/services/run.py kafka redis -- \
        python benchmarks/bench_version_cost.py --wal {kafka} --store {redis} [--rounds 4] [--only changes]

Versions follow one another, each of which rewrites the same keys with values of some 60 bytes, as large
batches of one query (no small one is staged by the driver), on local[2] unless it is the executors that
change: those are processes of one core and 1 GB, as ``local-cluster`` starts them. Where one thing changes,
the others stay at 100,000 changes, 128 key groups and two versions kept. Printed for each point are medians
behind a warm-up of two versions:

    visible   seconds of the call of foreachBatch, and of them staging, apply and seal, and the rest
    period    seconds from version to version, merges beside them counted, Spark's own work for a batch, too
    readable  the most versions that readers could ask for right behind one: those that are kept, and those
              that wait to be retired
    get, 1,000 keys   a read at the newest version right behind the last one, milliseconds

Last, seconds until visible are fitted over changes and key groups touched: a + b * changes + c * key groups.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
WARM_UP = 2
READS = 300
DEADLINE_S = 600.0
PARTS = {"stage": ("ready", "staging"), "apply": ("decided",)}
"""By the states that a commit is in."""


class Point(NamedTuple):
    """What a version is made of, and where."""

    changes: int = 100_000
    key_groups: int = 128
    keep: int = 2
    executors: int = 0

    @property
    def master(self) -> str:
        return f"local-cluster[{self.executors},1,1024]" if self.executors else "local[2]"


GRID = {
    "changes": [Point(changes=changes) for changes in (10_000, 30_000, 100_000, 300_000, 1_000_000)],
    "key groups": [Point(key_groups=groups) for groups in (128, 1_024, 8_192, 32_768)],
    "layers": [Point(keep=keep) for keep in (1, 2, 4, 8)],
    "executors": [Point(changes=300_000, executors=executors) for executors in (1, 2, 4, 8)],
}


class Cost(NamedTuple):
    """Seconds, and milliseconds of reads."""

    visible: float
    stage: float
    apply: float
    period: float
    get_ms: float
    many_ms: float
    readable: int


def session(point: Point) -> Any:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(point.master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", max(2, point.executors))
        .config("spark.executor.memory", "1g")
        .config("spark.driver.memory", "3g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def rows(spark: Any, point: Point) -> Any:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", point.changes)
    return (
        source.option("numPartitions", max(2, point.executors))
        .load()
        .selectExpr(
            f"concat('key-', cast(value % {point.changes} as string)) as key",
            "concat('{\"n\":', value, ',\"text\":\"', substr(sha1(cast(value as string)), 1, 36), '\"}')"
            " as value",
        )
    )


def read_ms(store: str, namespace: str, changes: int) -> tuple[float, float]:
    """p50 of a get, and of 1,000 keys at once, milliseconds."""
    import tidegate

    took: dict[int, list[float]] = {1: [], 1_000: []}
    with tidegate.connect(store, namespace=namespace) as client:
        table = client.table("t")
        for number in range(READS):
            first = number * 7_919 % changes
            keys = [f"key-{(first + step) % changes}" for step in range(1_000)]
            started = time.perf_counter()
            found = table.get(keys[0])
            took[1].append(time.perf_counter() - started)
            if number % 10 == 0:
                started = time.perf_counter()
                many = table.get_many(keys)
                took[1_000].append(time.perf_counter() - started)
                assert len(many) == 1_000
            assert found is not None
    one, many_ = (1_000 * statistics.median(each) for each in took.values())
    return one, many_


def measured(arguments: argparse.Namespace, spark: Any, point: Point, folder: Path) -> Cost:
    from tidegate.sinks.open_store import open_store
    from tidegate.spark import VersionedSink

    namespace = f"bench-{folder.name[-8:].lower().replace('_', '0')}"
    sink = VersionedSink(
        namespace=namespace,
        wal=arguments.wal,
        store=arguments.store,
        store_options={"create": True} if arguments.store.startswith("cassandra") else None,
        table="t",
        key="key",
        value="value",
        key_groups=point.key_groups,
        keep_versions=point.keep,
        driver_stage_max_rows=0,
        allow_unsafe=True,
    )
    began: list[float] = []
    took: list[dict[str, float]] = []
    enough = threading.Event()
    store = open_store(arguments.store, namespace)
    readable = 0

    def write(batch: Any, batch_id: int) -> None:
        began.append(time.perf_counter())
        nonlocal readable
        sink(batch, batch_id)
        took.append({"visible": time.perf_counter() - began[-1], **sink.last_phases})
        pointer = store.pointer()
        readable = max(readable, pointer.visible - max(pointer.horizon, 1) + 1)
        if len(took) > WARM_UP + max(arguments.rounds, point.keep):
            enough.set()

    query = rows(spark, point).writeStream.foreachBatch(write)
    running = query.option("checkpointLocation", str(folder / "checkpoint")).start()
    end = time.monotonic() + DEADLINE_S
    while not enough.wait(0.2):
        if not running.isActive or time.monotonic() > end:
            raise SystemExit(f"{point} ended without its versions: {running.exception()}")
    one, many = read_ms(arguments.store, namespace, point.changes)
    running.stop()
    sink.close()
    with contextlib.closing(store):
        store.drop()
    counted = took[WARM_UP : len(began)]

    def median(*phases: str) -> float:
        return statistics.median(sum(each.get(phase, 0.0) for phase in phases) for each in counted)

    periods = [later - before for before, later in zip(began[WARM_UP:], began[WARM_UP + 1 :], strict=False)]
    parts = {name: median(*phases) for name, phases in PARTS.items()}
    period = statistics.median(periods)
    return Cost(median("visible"), parts["stage"], parts["apply"], period, one, many, readable)


def points(arguments: argparse.Namespace) -> Iterator[tuple[str, Point]]:
    for name in arguments.only or GRID:
        for point in GRID[name]:
            yield name, point


def report(name: str, point: Point, cost: Cost) -> None:
    rest = cost.visible - cost.stage - cost.apply
    print(
        f"{name:10} {point.changes:>9,} changes  {point.key_groups:>6,} groups  keep {point.keep}"
        f"  {point.master:24}"
        f" visible {cost.visible:6.2f} s (stage {cost.stage:.2f}, apply {cost.apply:.2f}, rest {rest:.2f})"
        f"  period {cost.period:6.2f} s  get {cost.get_ms:.2f} ms  1,000 keys {cost.many_ms:.1f} ms"
        f"  readable {cost.readable}",
        flush=True,
    )


def fitted(costs: dict[Point, Cost]) -> None:
    import numpy as np

    alike = [point for point in costs if not point.executors and point.keep == Point().keep]
    if len(alike) < 4:
        return
    left = np.array([[1.0, point.changes, min(point.key_groups, point.changes)] for point in alike])
    right = np.array([costs[point].visible for point in alike])
    weights = 1 / right  # each point counts by its relative error
    (a, b, c), *_ = np.linalg.lstsq(left * weights[:, None], right * weights, rcond=None)
    off = max(abs(left @ np.array([a, b, c]) / right - 1))
    print(
        f"fitted: visible = {a:.2f} s + {b * 1e6:.2f} us a change + {c * 1e6:.1f} us a key group touched;"
        f" of {len(alike)} points none is off by more than {off:.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wal", required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=list(GRID))
    arguments = parser.parse_args()
    costs: dict[Point, Cost] = {}
    spark, master = None, None
    for name, point in points(arguments):
        if point in costs:
            report(name, point, costs[point])
            continue
        if spark is None or master != point.master:
            if spark is not None:
                spark.stop()
            spark, master = session(point), point.master
        folder = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
        costs[point] = measured(arguments, spark, point, folder)
        shutil.rmtree(folder)
        report(name, point, costs[point])
    assert spark is not None
    spark.stop()
    fitted(costs)


if __name__ == "__main__":
    main()
