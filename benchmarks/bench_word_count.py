r"""Word count over a state of some hundred MB: tidegate's ``reduce`` beside Spark's own state store.

    tools/run python tests/services/run.py redis -- \
        python benchmarks/bench_word_count.py --store {redis} [--state-mb 566] [--zipf]
    tools/run python benchmarks/bench_word_count.py --store sqlite:///tmp/word-count --state-mb 64

The same stream (Spark's rate-micro-batch, words by their number's hash; ``--zipf``: rank r about 1/r of the
time) on local[2], one query after the other, each on its own state, filled with every word once before it
is timed:

    spark              groupBy().count() with RocksDB, update mode, written nowhere
    spark, MSET        the same, its rows to ``--redis`` (default: ``--store``) by one MSET per Arrow batch
    spark, pipelines   the same by redis-py pipelines of 5,000 SETs
    tidegate, cached   txn.reduce, its state cached on the host, log and store and flip counted
    tidegate, 43 %     the cache has room for 43 % of the state, the rest is read from the store
    tidegate, no cache every state is read from the store

Printed: records per second of each batch and their medians, and the ratios to "spark, MSET". The words
are 80 bytes, so 566 MB are about 5.6 million words. None of Spark's writers makes a batch visible as a whole.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
WORD_BYTES, ROW_BYTES, PIPELINE = 80, 101, 5_000
SHARE = 0.43
"""Of the state in the cache, where not all is: FLIP-50 spilled 57 %."""
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


# -- the stream -----------------------------------------------------------------------------------------


def words(spark: Any, arguments: argparse.Namespace) -> Any:
    """First every word once, in as many batches as it takes, then words at random."""
    numbers = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=arguments.batch, numPartitions=2, advanceMillisPerBatch=1_000
    )
    unit = "((shiftrightunsigned(xxhash64(value), 11)) / 9007199254740992D)"
    rank = (
        f"floor(pow({arguments.words}, {unit})) - 1"
        if arguments.zipf
        else f"floor({arguments.words} * {unit})"
    )
    number = f"CASE WHEN value < {arguments.fill_rows} THEN value % {arguments.words} ELSE {rank} END"
    return numbers.load().selectExpr(
        f"rpad(concat('word-', cast({number} as bigint)), {WORD_BYTES}, '.') AS word"
    )


# -- Spark alone, and what it may be written with -----------------------------------------------------------


def in_arrow(url: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Each Arrow batch as one MSET."""

    def write(batches: Iterable[Any]) -> Iterator[Any]:
        import redis

        client = redis.Redis.from_url(url)
        for batch in batches:
            keys, counts = (column.to_pylist() for column in batch.columns)
            if keys:
                client.mset({"m:" + key: count for key, count in zip(keys, counts, strict=True)})
        client.close()
        yield from ()

    return write


def pipelined(url: str) -> Callable[[Iterable[Any]], None]:
    """Each partition through redis-py's pipelines, a SET per row."""

    def write(rows: Iterable[Any]) -> None:
        import redis

        client = redis.Redis.from_url(url)
        pipe, waiting = client.pipeline(transaction=False), 0
        for row in rows:
            pipe.set("p:" + row.word, row["count"])
            waiting += 1
            if waiting == PIPELINE:
                pipe.execute()
                waiting = 0
        pipe.execute()
        client.close()

    return write


def nowhere(batch: Any) -> None:
    batch.write.format("noop").mode("append").save()


# -- running a query -----------------------------------------------------------------------------------------


def timed(
    spark: Any, arguments: argparse.Namespace, write: Callable[[Any, int], None], *, counted: bool
) -> list[float]:
    """Records per second of the batches after the fill and one more; ``counted``: Spark counts the words."""
    stream = words(spark, arguments)
    folder, seconds = tempfile.mkdtemp(prefix="tidegate-bench-"), list[float]()
    last = arguments.fills + arguments.rounds

    def one(batch: Any, batch_id: int) -> None:
        write(batch, batch_id)

    query = (
        (stream.groupBy("word").count() if counted else stream)
        .writeStream.outputMode("update" if counted else "append")
        .foreachBatch(one)
        .option("checkpointLocation", folder)
        .start()
    )
    try:
        seen, end = -1, time.monotonic() + arguments.deadline_s
        while seen < last:
            if query.exception() is not None:
                raise RuntimeError(str(query.exception()))
            if time.monotonic() > end:
                raise TimeoutError(f"batch {last} did not come within {arguments.deadline_s} s")
            progress = [p for p in query.recentProgress if p["batchId"] > seen]
            for each in progress:
                seen = each["batchId"]
                took = each["durationMs"]["triggerExecution"] / 1_000
                if seen > arguments.fills:
                    seconds.append(each["numInputRows"] / took)
            time.sleep(0.05)
    finally:
        query.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return seconds[: arguments.rounds]


def ours(spark: Any, arguments: argparse.Namespace, cache_bytes: int, name: str) -> list[float]:
    from tidegate.sinks.open_store import open_store
    from tidegate.spark import VersionedSink

    namespace, log = f"words-{name}-{os.getpid()}", tempfile.mkdtemp(prefix="tidegate-bench-")
    sink = VersionedSink(
        namespace=namespace,
        wal=arguments.wal or f"file://{log}",
        store=arguments.store,
        store_options={"create": True} if arguments.store.startswith("cassandra") else None,
        allow_unsafe=True,
        state_cache_bytes=cache_bytes,
    )

    def write(txn: Any, batch: Any) -> None:
        txn.reduce("words", batch.selectExpr("word", "1 AS n"), key="word", reducers={"n": "sum"})

    notes: list[dict[str, float]] = []
    commit = sink.each(write)

    def each(batch: Any, batch_id: int) -> None:
        commit(batch, batch_id)
        state = sink.last_state
        asked = max(1, state.hits + state.absent + state.misses)
        notes.append(
            sink.last_phases | {"reading": state.seconds, "known": (state.hits + state.absent) / asked}
        )

    try:
        return timed(spark, arguments, each, counted=False)
    finally:
        later = notes[arguments.fills + 1 :]
        names = later[0] if later else ()
        medians = {one: statistics.median(note[one] for note in later) for one in names}
        told = ", ".join(f"{one} {seconds:.2f}" for one, seconds in medians.items())
        print(f"{name}: seconds of {told}", file=sys.stderr, flush=True)
        sink.close()
        with contextlib.closing(open_store(arguments.store, namespace)) as store:
            store.drop()
        shutil.rmtree(log, ignore_errors=True)


def session() -> Any:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.driver.memory", "4g")
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .config("spark.sql.streaming.numRecentProgressUpdates", 1_000)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", required=True)
    parser.add_argument("--wal", help="default: files")
    parser.add_argument("--redis", help="where Spark's rows go")
    parser.add_argument("--state-mb", type=int, default=566)
    parser.add_argument("--batch", type=int, default=1_000_000, help="records per batch")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--zipf", action="store_true")
    parser.add_argument("--only", nargs="*", help="beginnings of the names of what to run")
    parser.add_argument("--deadline-s", type=float, default=900.0, help="of each query")
    arguments = parser.parse_args()
    arguments.words = arguments.state_mb * 1_000_000 // ROW_BYTES
    arguments.fills = -(-arguments.words // arguments.batch)
    arguments.fill_rows = arguments.fills * arguments.batch
    redis = arguments.redis or (arguments.store if arguments.store.startswith("redis") else None)
    state, spark = arguments.state_mb * 1_000_000, session()
    runs: dict[str, Callable[[], list[float]]] = {
        "spark": lambda: timed(spark, arguments, lambda batch, _: nowhere(batch), counted=True),
        "spark, MSET": lambda: timed(
            spark,
            arguments,
            lambda batch, _: nowhere(batch.mapInArrow(in_arrow(redis or ""), "word string")),
            counted=True,
        ),
        "spark, pipelines": lambda: timed(
            spark, arguments, lambda batch, _: batch.foreachPartition(pipelined(redis or "")), counted=True
        ),
        "tidegate, cached": lambda: ours(spark, arguments, 8 * state, "cached"),
        "tidegate, 43 %": lambda: ours(spark, arguments, int(SHARE * state), "part"),
        "tidegate, no cache": lambda: ours(spark, arguments, 0, "none"),
    }
    if redis is None:
        runs = {name: run for name, run in runs.items() if name not in ("spark, MSET", "spark, pipelines")}
    if arguments.only:
        runs = {name: run for name, run in runs.items() if name.startswith(tuple(arguments.only))}
    took = {name: run() for name, run in runs.items()}
    spark.stop()
    report(took, arguments)


def report(took: dict[str, list[float]], arguments: argparse.Namespace) -> None:
    shape = "zipf" if arguments.zipf else "uniform"
    print(
        f"{arguments.words:,} words, {arguments.state_mb} MB of state, {shape};"
        f" {arguments.batch:,} records per batch"
    )
    medians = {name: statistics.median(each) for name, each in took.items()}
    beside = medians.get("spark, MSET", medians.get("spark"))
    for name, each in took.items():
        ratio = f"{medians[name] / beside:5.2f}" if beside else "    -"
        shown = " ".join(f"{one / 1e3:.0f}" for one in each)
        print(f"{name:18} {medians[name] / 1e3:7.0f} K records/s  {ratio} of spark's   ({shown})")


if __name__ == "__main__":
    main()
