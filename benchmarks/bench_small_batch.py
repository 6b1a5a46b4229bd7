r"""What a small batch costs: tidegate beside a sink that only collects, in one run, by phase.

    tools/run python benchmarks/bench_small_batch.py [--rows 1000] [--batches 100]
    tools/run python tests/services/run.py kafka redis-memory -- \
        python benchmarks/bench_small_batch.py --wal {kafka} --store {redis}

One query, local[2], whose batches go to two sinks in turns, so that what the machine does beside it
befalls both: one sink collects the batch to the driver and drops it, one commits it, to file+sqlite unless
told otherwise. Printed: p50 and p99 of both foreachBatch calls (when tidegate's returns, the version is
visible: that is the time to visible), what tidegate adds, and where its time goes, from one state of the
commit to the next.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from harness import (
    Samples,
    new_folder,
    parser_of,
    percentile,
    rate,
    run_batches,
    seconds_of,
    sink_in,
    spark_on,
)

COLLECT, OURS = "collect", "tidegate"


def main() -> None:
    parser = parser_of(__doc__, wal=False, store=False, rows=1_000, batches=100)
    parser.add_argument("--warm-up", type=int, default=50, help="of each sink's before; the JVM compiles")
    parser.add_argument("--driver-stage-max-rows", type=int, default=5_000, help="0: by the staging job")
    arguments = parser.parse_args()
    seconds: Samples = {COLLECT: [], OURS: []}
    phases: Samples = {}
    sides = itertools.cycle(seconds)
    options = {"table": "t", "key": "id", "driver_stage_max_rows": arguments.driver_stage_max_rows}
    with new_folder() as folder, spark_on() as spark, sink_in(folder, arguments, **options) as sink:

        def write(batch: Any, batch_id: int) -> None:
            name = next(sides)
            work = batch.collect if name == COLLECT else lambda: sink(batch, batch_id)
            seconds[name].append(seconds_of(work))
            for phase, took in sink.last_phases.items() if name == OURS else ():
                phases.setdefault(phase, []).append(took)

        stream = rate(spark, arguments.rows).selectExpr("value % 100000 as id", "value", "timestamp")
        last = arguments.batches + arguments.warm_up
        run_batches(stream, write, lambda: len(seconds[OURS]) >= last, float("inf"))
    print(
        f"{arguments.rows:,} rows a batch, {arguments.batches} batches after {arguments.warm_up} to warm up;"
        " in ms"
    )
    figures = {
        name: [1000 * percentile(each[arguments.warm_up :], share) for share in (0.5, 0.99)]
        for name, each in (seconds | {f"  {name}": each for name, each in phases.items()}).items()
    }
    added = [ours - collect for ours, collect in zip(figures[OURS], figures[COLLECT], strict=True)]
    sinks, by_phase = {name: figures.pop(name) for name in seconds}, figures
    for name, (p50, p99) in {**sinks, "tidegate adds": added, **by_phase}.items():
        print(f"{name:22} p50 {p50:7.1f}   p99 {p99:7.1f}")


if __name__ == "__main__":
    main()
