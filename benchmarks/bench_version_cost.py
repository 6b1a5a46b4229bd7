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
import functools
import itertools
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from harness import VALUE, medians, parser_of, rate, run_batches, seconds_of, sink_in, spark_on

from tidegate.sinks.open_store import open_store

WARM_UP = 2
READS = 300
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


def rows(spark: Any, point: Point) -> Any:
    return rate(spark, point.changes, max(2, point.executors)).selectExpr(
        f"concat('key-', cast(value % {point.changes} as string)) as key", VALUE.replace("id", "value")
    )


def read_ms(store: str, namespace: str, changes: int) -> tuple[float, float]:
    """p50 of a get, and of 1,000 keys at once, milliseconds."""
    import tidegate

    seconds: dict[str, list[float]] = {"one": [], "many": []}
    with tidegate.connect(store, namespace=namespace) as client:
        table = client.table("t")
        for number in range(READS):
            first = number * 7_919 % changes
            keys = [f"key-{(first + step) % changes}" for step in range(1_000)]
            seconds["one"].append(seconds_of(functools.partial(table.get, keys[0])))
            if number % 10 == 0:
                seconds["many"].append(seconds_of(functools.partial(table.get_many, keys)))
        assert len(table.get_many(keys)) == 1_000
    middle = medians(seconds, warm_up=0)
    return 1_000 * middle["one"], 1_000 * middle["many"]


def measured(arguments: argparse.Namespace, spark: Any, point: Point, number: int) -> Cost:
    options = {"table": "t", "key": "key", "value": "value", "driver_stage_max_rows": 0}
    options |= {"key_groups": point.key_groups, "keep_versions": point.keep}
    began: list[float] = []
    notes: list[dict[str, float]] = []
    last = WARM_UP + max(arguments.rounds, point.keep)
    with sink_in(None, arguments, f"-{number}", **options) as sink:
        namespace = f"bench-{os.getpid()}-{number}"
        with contextlib.closing(open_store(arguments.store, namespace)) as store:

            def write(batch: Any, batch_id: int) -> None:
                began.append(time.perf_counter())
                sink(batch, batch_id)
                note = {"visible": time.perf_counter() - began[-1], **sink.last_phases}
                pointer = store.pointer()
                note["readable"] = pointer.visible - max(pointer.horizon, 1) + 1
                notes.append(note)

            run_batches(rows(spark, point), write, lambda: len(notes) > last)
        one, many = read_ms(arguments.store, namespace, point.changes)

    def median(*phases: str) -> float:
        return statistics.median(sum(note.get(phase, 0.0) for phase in phases) for note in notes[WARM_UP:])

    parts = {name: median(*phases) for name, phases in PARTS.items()}
    period = statistics.median(later - before for before, later in itertools.pairwise(began[WARM_UP:]))
    readable = int(max(note["readable"] for note in notes))
    return Cost(median("visible"), parts["stage"], parts["apply"], period, one, many, readable)


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
    parser = parser_of(__doc__, wal=True, store=True, rounds=4)
    parser.add_argument("--only", nargs="+", choices=list(GRID))
    arguments = parser.parse_args()
    costs: dict[Point, Cost] = {}
    grid = [(name, point) for name in arguments.only or GRID for point in GRID[name]]
    for master, group in itertools.groupby(grid, lambda entry: entry[1].master):
        partitions = max(2, int(master.partition("[")[2].partition(",")[0].rstrip("]")))
        with spark_on(master, partitions=partitions, spark__executor__memory="1g") as spark:
            spark.sparkContext.setLogLevel("OFF")
            for name, point in group:
                if point not in costs:
                    costs[point] = measured(arguments, spark, point, len(costs))
                report(name, point, costs[point])
    fitted(costs)


if __name__ == "__main__":
    main()
