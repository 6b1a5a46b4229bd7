"""The cost of Spark's check of lost shuffles, which every staging job switches on.

    tools/run python benchmarks/bench_whole_retries.py [--rows 1000] [--batches 60]

The batches of one query, local[2], alternate between three sides: ``without`` the check; ``on``, where the
session has it on, as by default from Spark 4.2; ``off``, where tidegate switches it on and back. Printed for
each are the median and p90 of the call of foreachBatch, and the median time of the switch alone.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from harness import (
    Samples,
    medians,
    new_folder,
    parser_of,
    percentile,
    rate,
    run_batches,
    seconds_of,
    sink_in,
    spark_on,
)

WITHOUT, ON, OFF = "without", "on", "off"


def main() -> None:
    parser = parser_of(__doc__, rows=1_000, batches=60)
    parser.add_argument("--warm-up", type=int, default=20, help="batches of each side before")
    parser.add_argument("--driver-stage-max-rows", type=int, default=0, help="0: all by the staging job")
    arguments = parser.parse_args()

    from tidegate.spark.session.whole_retries import OPTIONS, whole_retries
    from tidegate.spark.staging import job

    seconds: Samples = {WITHOUT: [], ON: [], OFF: []}
    switch: Samples = {ON: [], OFF: []}
    sides = itertools.cycle(seconds)
    options = {"table": "t", "key": "id", "driver_stage_max_rows": arguments.driver_stage_max_rows}
    with new_folder() as folder, spark_on() as spark, sink_in(folder, arguments, **options) as sink:

        def write(batch: Any, batch_id: int) -> None:
            side, session = next(sides), batch.sparkSession
            for name in OPTIONS:
                session.conf.set(name, "true" if side == ON else "false")
            job.whole_retries = contextlib.nullcontext if side == WITHOUT else whole_retries  # type: ignore[assignment]
            seconds[side].append(seconds_of(lambda: sink(batch, batch_id)))
            if side != WITHOUT:
                switch[side].append(seconds_of(functools.partial(_switched, session)))

        def _switched(session: Any) -> None:
            with whole_retries([session]):
                pass

        stream = rate(spark, arguments.rows).selectExpr("value % 100000 as id", "value", "timestamp")
        last = arguments.batches + arguments.warm_up
        run_batches(stream, write, lambda: len(seconds[OFF]) >= last, float("inf"))
    middle, switched = medians(seconds, arguments.warm_up), medians(switch, arguments.warm_up)
    print(f"{arguments.rows:,} rows a batch, {arguments.batches} batches of each after {arguments.warm_up}")
    for side, each in seconds.items():
        p90 = percentile(each[arguments.warm_up :], 0.9)
        print(
            f"{side:8} median {1000 * middle[side]:7.1f} ms   p90 {1000 * p90:7.1f} ms"
            f"   ratio {middle[side] / middle[WITHOUT]:.3f}   switch {1000 * switched.get(side, 0):.2f} ms"
        )


if __name__ == "__main__":
    main()
