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
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
PIPELINE = 5_000


def pipelined(url: str) -> Callable[[Iterable[Any]], None]:
    """(a) Each partition through redis-py's pipelines, a SET per row."""

    def write(rows: Iterable[Any]) -> None:
        import redis

        client = redis.Redis.from_url(url)
        pipe, waiting = client.pipeline(transaction=False), 0
        for row in rows:
            pipe.set("a:" + row.key, row.value)
            waiting += 1
            if waiting == PIPELINE:
                pipe.execute()
                waiting = 0
        pipe.execute()
        client.close()

    return write


def in_arrow(url: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """(b) Each Arrow batch as one MSET."""

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        import redis

        client = redis.Redis.from_url(url)
        for batch in batches:
            keys, values = (column.to_pylist() for column in batch.columns)
            client.mset({"b:" + key: value for key, value in zip(keys, values, strict=True)})
        client.close()
        yield from ()

    return write


class SparkRedis:
    """(c) spark-redis in a Spark of its own, which lives beside the other one and idles between its turns."""

    def __init__(self, python: str, jars: str, url: str) -> None:
        at = urlsplit(url)
        script = Path(__file__).with_name("spark_redis_writer.py")
        command = [python, str(script), jars, at.hostname or "localhost", str(at.port or 6379)]
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
    from tidegate.sinks.redis import namespace as redis_header

    space = store._space  # noqa: SLF001 - what the background does is seen nowhere else
    last = space.of_group(space.made.key_groups - 1, "layers", b"t", b"%d" % 2**31, b"0")
    end = time.monotonic() + 120
    while time.monotonic() < end:
        pointer = store.pointer()
        # Of the last key group first: to ask for the headers of 32,768 takes the server what a merge does.
        layers = [int(version) for version in space.asked([last])[0][1:]]
        if pointer.horizon >= pointer.visible - keep + 1 and min(layers, default=2**31) > pointer.horizon:
            found = redis_header.headers(space).values()
            oldest = [min(at) for each in found for at in each.layers.values()]
            if min(oldest, default=2**31) > pointer.horizon:
                return
        time.sleep(0.005)
    raise TimeoutError("the layers were not merged within 120 s")


def report(seconds: dict[str, list[float]], rows: int) -> None:
    medians = {name: statistics.median(each[1:]) for name, each in seconds.items()}
    for name, all_of in seconds.items():
        shown = " ".join(f"{one:.2f}" for one in all_of)
        per_s = rows / medians[name] / 1e3
        print(f"{name:18} median {medians[name]:6.2f} s {per_s:7,.0f} K rows/s   (all: {shown})")
    merged = medians["tidegate, merged"]
    print(f"throughput of tidegate / (a): {medians['(a) pipelines'] / merged:.2f}  (merges counted)")
    print(f"time of tidegate / (b): {merged / medians['(b) MSET']:.2f}  (merges counted)")
    if (c := medians.get("(c) spark-redis")) is not None:
        print(f"throughput of tidegate / (c): {c / merged:.2f}  (merges counted)")


def session() -> Any:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.driver.memory", "3g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def write_input(spark: Any, folder: Path, arguments: argparse.Namespace) -> Any:
    """A file for each batch; the rows of the last one."""
    for number in range(arguments.rounds + 1):
        key = "id" if arguments.keys >= arguments.rows else f"pmod(hash(id), {arguments.keys})"
        key = f"{key} + {number * arguments.keys * arguments.fresh // 100}"
        rows = spark.range(0, arguments.rows, numPartitions=2).selectExpr(
            f"concat('key-', cast({key} as string)) as key",
            "concat('{\"n\":', id, ',\"text\":\"', substr(sha1(cast(id as string)), 1, 36), '\"}') as value",
        )
        rows.write.parquet(str(folder / "input" / f"part-{number:03}.parquet"))
    return rows


def in_turns(
    url: str,
    sink: Any,
    run_batch: Callable[[Any, int], None],
    store: Any,
    other: Callable[[int], float] | None,
    seconds: dict[str, list[float]],
    stages: dict[str, list[float]],
) -> Callable[[Any, int], None]:
    """Each batch goes through all writers, another one first each time; the seconds go to the two dicts."""

    def clocked(name: str, started: float) -> None:
        seconds.setdefault(name, []).append(time.perf_counter() - started)

    def plain(batch: Any) -> None:
        started = time.perf_counter()
        batch.foreachPartition(pipelined(url))
        clocked("(a) pipelines", started)

    def fast(batch: Any) -> None:
        started = time.perf_counter()
        batch.mapInArrow(in_arrow(url), "key string").write.format("noop").mode("append").save()
        clocked("(b) MSET", started)

    def tide(batch: Any, batch_id: int) -> None:
        started = time.perf_counter()
        run_batch(batch, batch_id)
        clocked("tidegate, visible", started)
        for name, took in sink.last_phases.items():
            stages.setdefault(name, []).append(took)
        await_merged(store, 2)
        clocked("tidegate, merged", started)

    def write(batch: Any, batch_id: int) -> None:
        writers = [lambda: plain(batch), lambda: fast(batch), lambda: tide(batch, batch_id)]
        if other is not None:
            writers.append(lambda: seconds.setdefault("(c) spark-redis", []).append(other(batch_id)))
        for turn in range(len(writers)):
            writers[(turn + batch_id) % len(writers)]()

    return write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wal", required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--fresh", type=int, default=0, metavar="PERCENT", help="keys that are new each time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--key-groups", type=int, default=128)
    parser.add_argument("--replace", action="store_true", help="each batch is the whole table")
    parser.add_argument("--spark-redis", nargs=2, metavar=("PYTHON", "JARS"), help="writer (c)")
    arguments = parser.parse_args()
    from tidegate.sinks.open_store import open_store
    from tidegate.spark import VersionedSink

    folder = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    spark = session()
    rows = write_input(spark, folder, arguments)
    namespace = f"bench-{os.getpid()}"
    parts = None if arguments.replace else {"table": "t", "key": "key", "value": "value"}
    sink = VersionedSink(
        namespace=namespace,
        wal=arguments.wal,
        store=arguments.store,
        key_groups=arguments.key_groups,
        allow_unsafe=True,
        **(parts or {}),
    )
    run_batch = sink if parts else sink.each(lambda tx, batch: tx.replace("t", batch, "key", value="value"))
    seconds: dict[str, list[float]] = {}
    stages: dict[str, list[float]] = {}
    store = open_store(arguments.store, namespace)
    spark_redis = SparkRedis(*arguments.spark_redis, arguments.store) if arguments.spark_redis else None

    def other(batch_id: int) -> float:
        assert spark_redis is not None
        return spark_redis.write(folder / "input" / f"part-{batch_id:03}.parquet")

    query = (
        spark.readStream.schema(rows.schema)
        .option("maxFilesPerTrigger", 2)
        .parquet(str(folder / "input" / "*"))
        .writeStream.foreachBatch(
            in_turns(arguments.store, sink, run_batch, store, other if spark_redis else None, seconds, stages)
        )
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    if spark_redis:
        spark_redis.close()
    sink.close()
    spark.stop()
    store.drop()
    store.close()
    shutil.rmtree(folder)
    print(f"{arguments.rows:,} rows over {arguments.keys:,} keys; the first batch of each is a warm-up")
    report(seconds, arguments.rows)
    shown = ", ".join(f"{name} {statistics.median(took[1:]):.2f}" for name, took in stages.items())
    print(f"stages of tidegate, median s: {shown}")


if __name__ == "__main__":
    main()
