r"""What a small batch costs: tidegate beside a sink that only collects, in one run, by phase.

    tools/run python benchmarks/bench_small_batch.py [--rows 1000] [--batches 100]
    tools/run python tests/services/run.py kafka redis-memory -- \
        python benchmarks/bench_small_batch.py --wal {kafka} --store {redis}
    tools/run python benchmarks/bench_small_batch.py --format [--batches 40] [--warm-up 20]

One query, local[2], whose batches go to two sinks in turns, so that what the machine does beside it
befalls both: one sink collects the batch to the driver and drops it, one commits it, to file+sqlite unless
told otherwise. Printed: p50 and p99 of both foreachBatch calls (when tidegate's returns, the version is
visible: that is the time to visible), what tidegate adds, and where its time goes, from one state of the
commit to the next.

``--format``: queries alternate, by foreachBatch, by ``writeStream.format("tidegate")``, and by a source of
Spark's whose tasks read the same shuffle's rows and whose commit does nothing: the bound of any such format.
Printed: the time of Spark's step ``addBatch`` of each, and their ratios to foreachBatch.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
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
TURNS = 2


def main() -> None:
    parser = parser_of(__doc__, wal=False, store=False, rows=1_000, batches=100)
    parser.add_argument("--warm-up", type=int, default=50, help="of each sink's before; the JVM compiles")
    parser.add_argument("--driver-stage-max-rows", type=int, default=5_000, help="0: by the staging job")
    parser.add_argument("--format", action="store_true", help="beside writeStream.format('tidegate')")
    arguments = parser.parse_args()
    if arguments.format:
        beside_format(arguments)
        return
    seconds: Samples = {COLLECT: [], OURS: []}
    phases: Samples = {}
    sides = itertools.cycle((OURS, COLLECT))  # a namespace begins with the first batch of its checkpoint
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


def beside_format(arguments: argparse.Namespace) -> None:
    from tidegate.spark import VersionedSink, prepare, register

    times: dict[str, list[int]] = {"foreachBatch": [], "nothing": [], "format": []}
    with new_folder() as folder, spark_on() as spark:
        register(spark)
        spark.dataSource.register(source_of_nothing())
        for turn, name in enumerate(list(times) * TURNS):
            stream = rate(spark, arguments.rows).selectExpr("value % 100000 as id", "value", "timestamp")
            where = {"wal": f"file://{folder}/wal", "store": f"sqlite://{folder}/store", "table": "t"}
            checkpoint = f"{folder}/checkpoint-{turn}"
            if name == "nothing":
                writer = stream.repartition(2, "id").writeStream.format("nothing")
                query = writer.option("checkpointLocation", checkpoint).start()
            elif name == "format":
                writer = prepare(stream, "id").writeStream.format("tidegate")
                writer = writer.options(namespace=f"n{turn}", **where)
                query = writer.option("checkpointLocation", checkpoint).start()
            else:
                sink = VersionedSink(namespace=f"n{turn}", key="id", **where)
                query = sink.start(stream.writeStream, checkpoint)
            times[name] += add_batch_times(query, arguments.warm_up, arguments.batches // TURNS)
    p50 = {name: percentile([each / 1000 for each in took], 0.5) for name, took in times.items()}
    for name, took in times.items():
        print(f"{name:22} p50 {1000 * p50[name]:7.1f} ms of {len(took)} batches")
    for name in ("nothing", "format"):
        print(f"ratio of {name:13} {p50[name] / p50['foreachBatch']:.2f}")


def source_of_nothing() -> type:
    """Return a data source whose tasks count their rows, and whose commit does nothing."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

    class Writer(DataSourceStreamArrowWriter):
        def write(self, iterator: Any) -> WriterCommitMessage:
            sum(map(len, iterator))
            return WriterCommitMessage()

        def commit(self, messages: Any, batchId: int) -> None: ...  # noqa: N803 - Spark's name

        def abort(self, messages: Any, batchId: int) -> None: ...  # noqa: N803 - Spark's name

    class Nothing(DataSource):
        @classmethod
        def name(cls) -> str:
            return "nothing"

        def streamWriter(self, schema: Any, overwrite: bool) -> Writer:  # noqa: FBT001, N802
            return Writer()

    return Nothing


def add_batch_times(query: Any, warm_up: int, batches: int) -> list[int]:
    """Return the ms of ``addBatch`` of a query's batches after the first ones, and stop it."""
    took: dict[int, int] = {}
    while len(took) < warm_up + batches and query.isActive:
        took.update((each["batchId"], each["durationMs"]["addBatch"]) for each in query.recentProgress)
        time.sleep(0.5)
    query.stop()
    return [took[batch] for batch in sorted(took)][warm_up : warm_up + batches]


if __name__ == "__main__":
    main()
