r"""Large batches into Redis: tidegate beside the plainest and the fastest writer without any guarantee.

    tools/run python tests/services/run.py kafka redis-memory -- \
        python benchmarks/bench_redis_batch.py --wal {kafka} --store {redis} \
        [--keys 400000] [--fresh 10] [--key-groups 1024] [--replace] [--spark-redis PYTHON JARS]

All write the same batches inside foreachBatch, in turns, on local[2], beside the servers on the same
cores: (a) ``foreachPartition`` with redis-py pipelines of 5,000 SETs; (b) ``mapInArrow`` with one MSET per
Arrow batch; (c) if asked for, spark-redis, which does not run on this Spark: PYTHON is that of an
environment with ``pyspark==3.5.9``, JARS a folder with its jars (spark-redis-pom.xml); tidegate, with
its log, its versions, and its merge into the base counted: until a
version is visible, and until the layer that it pushed out is merged. Printed: seconds per batch and
ratios of medians, the first batch being a warm-up. With ``--replace`` tidegate is told that a batch is
the whole table (``txn.replace``), as a query in the complete output mode knows: no row has to be moved onto
another. Without ``--fresh`` every batch has the same keys, so that a layer becomes the base as it is; with it
so many in a hundred are other ones than in the batch before, and rows are merged one by one.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from harness import (
    VALUE,
    Samples,
    alternate,
    medians,
    new_folder,
    parser_of,
    run_batches,
    shown,
    sink_in,
    spark_on,
)

from tidegate.bench.baselines.redis import write_arrow, write_rows
from tidegate.sinks.open_store import open_store

A, B, C = "(a) pipelines", "(b) MSET", "(c) spark-redis"
VISIBLE, MERGED = "tidegate, visible", "tidegate, merged"


class SparkRedis:
    """(c) spark-redis in a Spark of its own, which lives beside the other one and idles between its turns."""

    def __init__(self, python: str, jars: str, url: str) -> None:
        server = urlsplit(url)
        script = Path(__file__).with_name("spark_redis_writer.py")
        command = [python, str(script), jars, server.hostname or "localhost", str(server.port or 6379)]
        # The Spark, the Python path and the settings of this process are not for it.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PY"))
        }
        self._process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._said()

    def _said(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the Spark of spark-redis ended with {self._process.wait(10)}")
        return line

    def write(self, folder: Path) -> float:
        """Seconds that the rows of *folder* took."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder}\n")
        self._process.stdin.flush()
        return float(self._said())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def await_merged(store: Any, keep: int) -> None:
    """Until every layer that nobody may read by itself any more is in the base."""
    from tidegate.sinks.redis import seals as redis_header
    from tidegate.sinks.redis.client.replies import plain
    from tidegate.sinks.redis.keys import header_key

    space = store._space  # noqa: SLF001 - what the background does is seen nowhere else
    header = header_key(space.namespace, space.made.key_groups - 1)
    end = time.monotonic() + 120
    while time.monotonic() < end:
        pointer = store.pointer()
        # Of the last key group first: to ask for the headers of 32,768 takes the server what a merge does.
        (listed,) = space.calls.run([plain(header, b"HGET", header, b"l:t")])
        layers = [int(version) for version in listed.split(b",")] if listed else []
        if pointer.horizon >= pointer.visible - keep + 1 and min(layers, default=2**31) > pointer.horizon:
            headers = redis_header.headers(space).values()
            oldest = [min(versions) for header in headers for versions in header.layers.values()]
            if min(oldest, default=2**31) > pointer.horizon:
                return
        time.sleep(0.005)
    raise TimeoutError("the layers were not merged within 120 s")


def report(seconds: Samples, rows: int) -> None:
    middle = medians(seconds)
    for name, each in seconds.items():
        per_s = rows / middle[name] / 1e3
        print(f"{name:18} median {middle[name]:6.2f} s {per_s:7,.0f} K rows/s   (all: {shown(each)})")
    print(f"throughput of tidegate / (a): {middle[A] / middle[MERGED]:.2f}  (merges counted)")
    print(f"time of tidegate / (b): {middle[MERGED] / middle[B]:.2f}  (merges counted)")
    if C in middle:
        print(f"throughput of tidegate / (c): {middle[C] / middle[MERGED]:.2f}  (merges counted)")


def write_input(spark: Any, folder: Path, arguments: argparse.Namespace) -> Any:
    """Write a file for each batch; return the stream of them."""
    for number in range(arguments.rounds + 1):
        key = "id" if arguments.keys >= arguments.rows else f"pmod(hash(id), {arguments.keys})"
        key = f"{key} + {number * arguments.keys * arguments.fresh // 100}"
        rows = spark.range(0, arguments.rows, numPartitions=2).selectExpr(
            f"concat('key-', cast({key} as string)) as key", VALUE
        )
        rows.write.parquet(str(folder / "input" / f"part-{number:03}.parquet"))
    source = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 2)
    return source.parquet(str(folder / "input" / "*"))


def writers_of(
    url: str, sink: Any, run_batch: Callable[[Any, int], None], store: Any, seconds: Samples, stages: Samples
) -> Callable[[Any, int], dict[str, Callable[[], object]]]:
    """Return the writers of a batch by name; tidegate's adds its phases to ``stages``."""
    client = functools.partial(redis.Redis.from_url, url)

    def merged(batch: Any, batch_id: int) -> None:
        started = time.perf_counter()
        run_batch(batch, batch_id)
        seconds.setdefault(VISIBLE, []).append(time.perf_counter() - started)
        for name, took in sink.last_phases.items():
            stages.setdefault(name, []).append(took)
        await_merged(store, 2)

    return lambda batch, batch_id: {
        A: lambda: write_rows(client, "a:", batch),
        B: lambda: write_arrow(client, "b:", batch),
        MERGED: lambda: merged(batch, batch_id),
    }


@contextlib.contextmanager
def spark_redis(command: list[str] | None, url: str) -> Iterator[SparkRedis | None]:
    """Yield writer (c), if it was asked for."""
    if not command:
        yield None
        return
    with contextlib.closing(SparkRedis(*command, url)) as other:
        yield other


def main() -> None:
    parser = parser_of(
        __doc__, wal=True, store=True, rows=1_000_000, keys=1_000_000, rounds=5, key_groups=128
    )
    parser.add_argument("--fresh", type=int, default=0, metavar="PERCENT", help="keys that are new each time")
    parser.add_argument("--replace", action="store_true", help="each batch is the whole table")
    parser.add_argument("--spark-redis", nargs=2, metavar=("PYTHON", "JARS"), help="writer (c)")
    arguments = parser.parse_args()
    seconds: Samples = {}
    stages: Samples = {}
    columns = {} if arguments.replace else {"table": "t", "key": "key", "value": "value"}
    with (
        new_folder() as folder,
        spark_redis(arguments.spark_redis, arguments.store) as other,
        spark_on() as spark,
        sink_in(None, arguments, key_groups=arguments.key_groups, **columns) as sink,
        contextlib.closing(open_store(arguments.store, f"bench-{os.getpid()}")) as store,
    ):
        replace = sink.each(lambda txn, batch: txn.replace("t", batch, "key", value="value"))
        writers = writers_of(
            arguments.store, sink, replace if arguments.replace else sink, store, seconds, stages
        )

        def write(batch: Any, batch_id: int) -> None:
            sides = writers(batch, batch_id)
            if other is not None:
                sides[C] = lambda: other.write(folder / "input" / f"part-{batch_id:03}.parquet")
            alternate(sides, 1, seconds, start=batch_id)

        stream = write_input(spark, folder, arguments)
        run_batches(stream, write, lambda: len(seconds.get(MERGED, ())) > arguments.rounds, float("inf"))
    print(f"{arguments.rows:,} rows over {arguments.keys:,} keys; the first batch of each is a warm-up")
    report(seconds, arguments.rows)
    phases = ", ".join(f"{name} {took:.2f}" for name, took in medians(stages).items())
    print(f"stages of tidegate, median s: {phases}")


if __name__ == "__main__":
    main()
