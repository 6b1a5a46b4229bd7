r"""Word count over a state of some hundred MB: FLIP-50's table, with Spark's own state store as the baseline.

    tools/run python tests/services/run.py redis -- \
        python benchmarks/bench_word_count.py --store {redis} [--state-mb 566] [--shapes uniform]
    tools/run python benchmarks/bench_word_count.py --store sqlite:///tmp/word-count --state-mb 64

The same stream (Spark's rate-micro-batch, words by their number's hash; of shape zipf: rank r about 1/r of
the time) on local[2], one query after the other, each on its own state, filled with every word once before it
is timed:

    spark, all in memory        groupBy().count(), update mode, written nowhere; RocksDB with memory for all
    spark, 43 %                 RocksDB with memory for 43 % of the state, the rest on the disk
    spark, MSET, ...            the same two, their rows to ``--redis`` (default: ``--store``) by one MSET per
                                Arrow batch
    tidegate, all in memory     txn.reduce, its state cached in memory; log, store and flip are counted
    tidegate, 57 % spilled      memory for 43 % of the state, the rest of the cache on the disk
    tidegate, cache for 43 %    the rest is read from the store
    tidegate, no cache          every state is read from the store

RocksDB's memory is that of its block cache and its write buffers, of all its instances together. Printed per
shape: records per second of each batch and their medians, and the ratios to Spark's with the same memory,
alone and with MSET. The words are 80 bytes, so 566 MB are about 5.6 million words. None of Spark's writers
makes a batch visible as a whole.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from harness import (
    ROCKSDB,
    UNIT,
    Samples,
    medians,
    new_folder,
    parser_of,
    rate,
    running,
    shown,
    sink_in,
    spark_on,
)

WORD_BYTES, ROW_BYTES = 80, 101
SHARE = 0.43
"""Of the state in memory, where not all is: FLIP-50 spilled 57 %."""
ALL, PART = "all in memory", "43 %"
SHAPES = ("uniform", "zipf")
ROCKSDB_CONF = "spark.sql.streaming.stateStore.rocksdb"


# -- the stream -----------------------------------------------------------------------------------------


def words(spark: Any, arguments: argparse.Namespace) -> Any:
    """First every word once, in as many batches as it takes, then words at random."""
    rank = (
        f"floor(pow({arguments.words}, {UNIT})) - 1"
        if arguments.zipf
        else f"floor({arguments.words} * {UNIT})"
    )
    number = f"CASE WHEN value < {arguments.fill_rows} THEN value % {arguments.words} ELSE {rank} END"
    return rate(spark, arguments.batch, advanceMillisPerBatch=1_000).selectExpr(
        f"rpad(concat('word-', cast({number} as bigint)), {WORD_BYTES}, '.') AS word"
    )


# -- Spark alone, and followed by a writer ------------------------------------------------------------------


def writers_to(url: str) -> dict[str, Callable[[Any], object]]:
    """Return Spark's writers by name, all without versions."""
    writers: dict[str, Callable[[Any], object]] = {"spark": nowhere}
    if url:
        import redis

        from tidegate.bench.baselines.redis import write_arrow

        client = functools.partial(redis.Redis.from_url, url)
        writers["spark, MSET"] = functools.partial(write_arrow, client, "m:")
    return writers


def limit_rocksdb(spark: Any, memory_bytes: int) -> None:
    """Let all RocksDB instances of the JVM that are opened from now on share that memory."""
    spark.conf.set(f"{ROCKSDB_CONF}.boundedMemoryUsage", "true")
    spark.conf.set(f"{ROCKSDB_CONF}.maxMemoryUsageMB", str(max(1, memory_bytes // 1_000_000)))
    # The first limit of a JVM would stay.
    state = spark._jvm.org.apache.spark.sql.execution.streaming.state  # noqa: SLF001 - no setting does it
    state.StateStore.stop()
    state.RocksDBMemoryManager.resetWriteBufferManagerAndCache()


def nowhere(batch: Any) -> None:
    batch.write.format("noop").mode("append").save()


# -- running a query -----------------------------------------------------------------------------------------


def timed(
    spark: Any, arguments: argparse.Namespace, write: Callable[[Any, int], None], *, counted: bool
) -> list[float]:
    """Records per second of the batches after the fill and one more; ``counted``: Spark counts the words."""
    stream, seen, per_second = words(spark, arguments), -1, list[float]()
    last = arguments.fills + arguments.rounds
    if counted:
        stream = stream.groupBy("word").count()
    writer = stream.writeStream.outputMode("update" if counted else "append").foreachBatch(write)
    end = time.monotonic() + arguments.deadline_s
    with running(writer) as query:
        while seen < last:
            if query.exception() is not None:
                raise RuntimeError(str(query.exception()))
            if time.monotonic() > end:
                raise TimeoutError(f"batch {last} did not come within {arguments.deadline_s} s")
            for progress in [each for each in query.recentProgress if each["batchId"] > seen]:
                seen = progress["batchId"]
                if seen > arguments.fills:
                    seconds = progress["durationMs"]["triggerExecution"] / 1_000
                    per_second.append(progress["numInputRows"] / seconds)
            time.sleep(0.05)
    return per_second[: arguments.rounds]


def theirs(
    spark: Any, arguments: argparse.Namespace, write: Callable[[Any], object], memory_bytes: int
) -> list[float]:
    limit_rocksdb(spark, memory_bytes)
    return timed(spark, arguments, lambda batch, _: write(batch), counted=True)


def ours(spark: Any, arguments: argparse.Namespace, name: str, **options: int) -> list[float]:
    notes: list[dict[str, float]] = []

    def count(txn: Any, batch: Any) -> None:
        txn.reduce("words", batch.selectExpr("word", "1 AS n"), key="word", reducers={"n": "sum"})

    with (
        new_folder() as folder,
        sink_in(folder, arguments, f"-{name.rsplit(maxsplit=1)[-1].strip('%')}", **options) as sink,
    ):
        commit = sink.each(count)

        def write(batch: Any, batch_id: int) -> None:
            commit(batch, batch_id)
            state = sink.last_state
            asked = max(1, state.hits + state.absent + state.misses)
            known = (state.hits + state.absent) / asked
            on_disk = state.disk_bytes / max(1, state.cache_bytes)
            notes.append(sink.last_phases | {"reading": state.seconds, "known": known, "on disk": on_disk})

        per_second = timed(spark, arguments, write, counted=False)
    counted = notes[arguments.fills + 1 :]
    phases = ", ".join(
        f"{phase} {statistics.median(note[phase] for note in counted):.2f}" for phase in counted[0]
    )
    print(f"{name}: {phases}", file=sys.stderr, flush=True)
    return per_second


def runs_of(spark: Any, arguments: argparse.Namespace, redis: str) -> dict[str, Callable[[], list[float]]]:
    """Return every run by its name."""
    state = arguments.state_mb * 1_000_000
    # The newest values are next to older ones until they are merged.
    everything, part = 4 * state, int(SHARE * state)
    runs: dict[str, Callable[[], list[float]]] = {}
    for writer, write in writers_to(redis).items():
        for amount, memory in ((ALL, everything), (PART, part)):
            runs[f"{writer}, {amount}"] = functools.partial(theirs, spark, arguments, write, memory)
    cached = {"state_cache_bytes": everything, "state_memory_bytes": everything}
    for name, options in {
        ALL: cached,
        "57 % spilled": cached | {"state_memory_bytes": part},
        "cache for 43 %": {"state_cache_bytes": part, "state_memory_bytes": part},
        "no cache": {"state_cache_bytes": 0},
    }.items():
        runs[f"tidegate, {name}"] = functools.partial(ours, spark, arguments, name, **options)
    return runs


def main() -> None:
    parser = parser_of(__doc__, wal=False, store=True, state_mb=566, rounds=4)
    parser.add_argument("--redis", help="where Spark's rows go")
    parser.add_argument("--batch", type=int, default=1_000_000, help="records per batch")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--only", nargs="*", help="beginnings of the names of what to run")
    parser.add_argument("--deadline-s", type=float, default=900.0, help="of each query")
    arguments = parser.parse_args()
    arguments.words = arguments.state_mb * 1_000_000 // ROW_BYTES
    arguments.fills = -(-arguments.words // arguments.batch)
    arguments.fill_rows = arguments.fills * arguments.batch
    redis = arguments.redis or (arguments.store if arguments.store.startswith("redis") else "")
    settings = {
        "spark__driver__memory": "4g",
        "spark__sql__streaming__stateStore__providerClass": ROCKSDB,
        "spark__sql__streaming__numRecentProgressUpdates": "1000",
    }
    with spark_on(**settings) as spark:
        names = tuple(arguments.only or ("",))
        for shape in arguments.shapes:
            arguments.zipf = shape == "zipf"
            runs = runs_of(spark, arguments, redis)
            report({name: run() for name, run in runs.items() if name.startswith(names)}, arguments)


def report(per_second: Samples, arguments: argparse.Namespace) -> None:
    shape = "zipf" if arguments.zipf else "uniform"
    print(
        f"{arguments.words:,} words, {arguments.state_mb} MB of state, {shape};"
        f" {arguments.batch:,} records per batch"
    )
    middle = medians(per_second, warm_up=0)
    for name, each in per_second.items():
        amount = ALL if name.endswith(ALL) else PART
        bases = (middle.get(f"{writer}, {amount}") for writer in ("spark", "spark, MSET"))
        ratios = " ".join(f"{middle[name] / base:5.2f}" if base else "    -" for base in bases)
        rates = shown((one / 1e3 for one in each), 0)
        print(f"{name:27} {middle[name] / 1e3:7.0f} K records/s  {ratios} of spark's, MSET's   ({rates})")


if __name__ == "__main__":
    main()
