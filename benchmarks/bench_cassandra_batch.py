r"""Large batches into Cassandra: tidegate beside writers without any guarantee, the connector among them.

    tools/run python tests/services/run.py kafka cassandra -- \
        python benchmarks/bench_cassandra_batch.py --wal {kafka} --store {cassandra} --jars <folder>

All write the same batches, in turns, on local[2], beside the servers on the same cores:
(a) ``foreachPartition`` with ``execute_concurrent_with_args``, an INSERT per row (fewer rows: it is that
slow); (b) one process with unlogged batches of 200 rows of one partition, as the driver documents them;
(c) the Spark Cassandra Connector with its best options, from ``--jars`` (how to fetch them:
spark-cassandra-connector-pom.xml); tidegate with its log, its decision, its versions
and its flip. Printed: rows per second of each, medians, and the ratios; the first round is a warm-up.

Then queries of their own, in turns, each of so many batches: the connector's, tidegate's with commit="sync"
and with "pipelined". Rows per second there are from the second batch's start until the last one is visible.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

KEYSPACE, TABLE, KEY_GROUPS = "rivals", "rows", 128
INSERT = "INSERT INTO rivals.rows (kg, key, version, value) VALUES (?, ?, ?, ?)"
BATCH_ROWS, IN_FLIGHT, CONCURRENCY = 200, 64, 100
KG = f"cast(pmod(hash(key), {KEY_GROUPS}) as int) as kg"
ROW = (
    "concat('key-', cast(id as string)) as key",
    "concat('{\"n\":', id, ',\"text\":\"', substr(sha1(cast(id as string)), 1, 36), '\"}') as value",
)
DEADLINE_S = 600.0
A, B, C, OURS, APPLY = "(a) single INSERTs", "(b) batches", "(c) connector", "tidegate, visible", "its apply"


# -- the others: no log, no versions, nothing atomic; one table of the shape that tidegate's has ------


@contextlib.contextmanager
def session_at(host: str, port: int) -> Iterator[Any]:
    from cassandra.cluster import Cluster

    cluster = Cluster([host], port=port)
    try:
        yield cluster.connect()
    finally:
        cluster.shutdown()


def make_table(host: str, port: int, copies: int) -> None:
    with session_at(host, port) as session:
        replication = f"{{'class': 'NetworkTopologyStrategy', 'replication_factor': {copies}}}"
        session.execute(f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = {replication}")
        session.execute(
            f"CREATE TABLE IF NOT EXISTS {KEYSPACE}.{TABLE} (kg int, key text, version bigint, value text,"
            " PRIMARY KEY ((kg), key, version)) WITH CLUSTERING ORDER BY (key ASC, version DESC)"
            " AND compaction = {'class': 'LeveledCompactionStrategy'}"
        )


def single_inserts(host: str, port: int, version: int) -> Callable[[Iterable[Any]], None]:
    """(a) Each partition of the batch by ``execute_concurrent_with_args``, an INSERT per row."""

    def write(rows: Iterable[Any]) -> None:
        from cassandra.concurrent import execute_concurrent_with_args

        with session_at(host, port) as session:
            insert = session.prepare(INSERT)
            given = ((row.kg, row.key, version, row.value) for row in rows)
            execute_concurrent_with_args(session, insert, given, concurrency=CONCURRENCY)

    return write


def in_batches(host: str, port: int, batch: Any, version: int) -> None:
    """(b) One process: unlogged batches of one partition, 200 rows each, as the driver documents them."""
    from cassandra.query import BatchStatement, BatchType

    table = batch.toArrow().sort_by("kg")
    with session_at(host, port) as session:
        insert, waiting = session.prepare(INSERT), deque[Any]()

        def send(rows: list[tuple[Any, ...]]) -> None:
            statement = BatchStatement(BatchType.UNLOGGED)
            for row in rows:
                statement.add(insert, row)
            if len(waiting) == IN_FLIGHT:
                waiting.popleft().result()
            waiting.append(session.execute_async(statement))

        held: list[tuple[Any, ...]] = []
        for kg, key, value in zip(*(table[name].to_pylist() for name in ("kg", "key", "value")), strict=True):
            if held and (held[0][0] != kg or len(held) == BATCH_ROWS):
                send(held)
                held = []
            held.append((kg, key, version, value))
        if held:
            send(held)
        for future in waiting:
            future.result()


def connector(batch: Any, version: int) -> None:
    """(c) The Spark Cassandra Connector with the options that were the fastest here."""
    (
        batch.selectExpr("kg", "key", f"cast({version} as bigint) as version", "value")
        .write.format("org.apache.spark.sql.cassandra")
        .option("keyspace", KEYSPACE)
        .option("table", TABLE)
        .option("spark.cassandra.output.batch.grouping.key", "partition")
        .option("spark.cassandra.output.batch.size.bytes", 64 * 1024)
        .option("spark.cassandra.output.concurrent.writes", 16)
        .mode("append")
        .save()
    )


# -- the comparison ----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wal", required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--jars", required=True, help="the folder with the connector's jars")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--slow-rows", type=int, default=20_000, help="rows for (a)")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--queries", type=int, default=2, help="of each kind, in turns")
    arguments = parser.parse_args()
    spark = session(arguments.store, arguments.jars)
    took = measure(spark, arguments)
    streamed = stream_in_turns(spark, arguments)
    spark.stop()
    report(took, arguments)
    report_streams(streamed)


def session(store: str, jars: str) -> Any:
    from pyspark.sql import SparkSession

    node = urlsplit(store)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.driver.memory", "3g")
        .config("spark.jars", ",".join(str(jar) for jar in Path(jars).glob("*.jar")))
        .config("spark.cassandra.connection.host", node.hostname)
        .config("spark.cassandra.connection.port", node.port)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextlib.contextmanager
def sink_of(arguments: argparse.Namespace, name: str, **more: Any) -> Iterator[Any]:
    """A sink of a namespace that goes in the end."""
    from tidegate.sinks.open_store import open_store
    from tidegate.spark import VersionedSink

    namespace = f"bench-{os.getpid()}-{name}"
    sink = VersionedSink(
        namespace=namespace,
        wal=arguments.wal,
        store=arguments.store,
        store_options={"create": True},
        table="t",
        key="key",
        value="value",
        allow_unsafe=True,
        **more,
    )
    try:
        yield sink
    finally:
        sink.close()
        with contextlib.closing(open_store(arguments.store, namespace)) as store:
            store.drop()


def stream_in_turns(spark: Any, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Rows per second of whole queries, of each kind."""
    per_second: dict[str, list[float]] = defaultdict(list)
    for turn in range(arguments.queries):
        per_second[C].append(
            stream(spark, arguments, lambda batch, _: connector(batch.selectExpr(KG, "*"), 1))
        )
        for mode in ("sync", "pipelined"):
            with sink_of(arguments, f"{mode}-{turn}", commit=mode) as sink:
                per_second[f"tidegate, {mode}"].append(stream(spark, arguments, sink, sink.drain))
    return per_second


def stream(
    spark: Any,
    arguments: argparse.Namespace,
    write: Callable[[Any, int], Any],
    drain: Callable[[float], None] = lambda _: None,
) -> float:
    """Rows per second of one query of so many batches, behind its first."""
    began: list[float] = []
    ended = threading.Event()

    def clocked(batch: Any, batch_id: int) -> None:
        if ended.is_set():
            return
        began.append(time.perf_counter())
        write(batch, batch_id)
        if len(began) > arguments.rounds:
            drain(DEADLINE_S)
            began.append(time.perf_counter())
            ended.set()

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", arguments.rows)
    batches = (
        source.option("numPartitions", 2)
        .load()
        .selectExpr(f"value % {arguments.rows} as id")
        .selectExpr(*ROW)
    )
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        query = batches.writeStream.foreachBatch(clocked).option("checkpointLocation", folder).start()
        end = time.monotonic() + DEADLINE_S
        while not ended.wait(0.2):
            if not query.isActive or time.monotonic() > end:
                raise SystemExit(f"a query ended before its batches: {query.exception()}")
        query.stop()
    return arguments.rows * arguments.rounds / (began[-1] - began[1])


def measure(spark: Any, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Rows per second of each writer, in every round."""
    node = urlsplit(arguments.store)
    at = node.hostname, node.port
    make_table(*at, copies=1)
    with sink_of(arguments, "turns") as sink:
        return in_turns(spark, arguments, at, sink)


def in_turns(spark: Any, arguments: argparse.Namespace, at: Any, sink: Any) -> dict[str, list[float]]:
    per_second: dict[str, list[float]] = defaultdict(list)
    for version in range(1, arguments.rounds + 2):
        batch = rows(spark, arguments.rows).cache()
        batch.count()
        few = batch.limit(arguments.slow_rows).repartition(2).cache()
        few.count()
        writers = [
            (A, len_of(few), lambda few=few, v=version: few.foreachPartition(single_inserts(*at, v))),
            (B, arguments.rows, lambda b=batch, v=version: in_batches(*at, b, v)),
            (C, arguments.rows, lambda b=batch, v=version: connector(b, v)),
            (OURS, arguments.rows, lambda b=batch, v=version: sink.load({"t": b.drop("kg")}, token=str(v))),
        ]
        for turn in range(len(writers)):
            name, count, write = writers[(turn + version) % len(writers)]
            started = time.perf_counter()
            write()
            per_second[name].append(count / (time.perf_counter() - started))
            if name == OURS:
                per_second[APPLY].append(count / sink.last_phases["decided"])
        batch.unpersist()
        few.unpersist()
    return per_second


def rows(spark: Any, count: int) -> Any:
    return spark.range(0, count, numPartitions=2).selectExpr(*ROW).selectExpr(KG, "key", "value")


def len_of(batch: Any) -> int:
    count: int = batch.count()
    return count


def report(per_second: dict[str, list[float]], arguments: argparse.Namespace) -> None:
    medians = {name: statistics.median(each[1:]) for name, each in per_second.items()}
    print(f"{arguments.rows:,} rows of as many keys; K rows/s, the first round being a warm-up")
    for name, each in per_second.items():
        print(f"{name:20} {medians[name] / 1e3:7.1f}   ({' '.join(f'{one / 1e3:.1f}' for one in each)})")
    print(f"tidegate / (a): {medians[OURS] / medians[A]:.1f}   (at least 10 was aimed at)")
    print(f"tidegate / (b): {medians[OURS] / medians[B]:.2f}   (at least 1.2)")
    print(f"tidegate / (c): {medians[OURS] / medians[C]:.2f}   (at least 0.7)")
    print(f"its apply / (c): {medians[APPLY] / medians[C]:.2f}   (at least 1.0)")


def report_streams(per_second: dict[str, list[float]]) -> None:
    print("whole queries, K rows/s behind the first batch, until the last is visible")
    medians = {name: statistics.median(each) for name, each in per_second.items()}
    for name, each in per_second.items():
        print(f"{name:20} {medians[name] / 1e3:7.1f}   ({' '.join(f'{one / 1e3:.1f}' for one in each)})")
    for mode, asked in (("sync", 0.8), ("pipelined", 1.0)):
        print(f"tidegate, {mode} / (c): {medians[f'tidegate, {mode}'] / medians[C]:.2f}   (at least {asked})")


if __name__ == "__main__":
    main()
