r"""Large batches into Cassandra: tidegate beside writers without any guarantee, the connector among them.

    tools/run python tests/services/run.py kafka cassandra -- \
        python benchmarks/bench_cassandra_batch.py --wal {kafka} --store {cassandra} --jars <folder>

All write the same batches, in turns, on local[2], beside the servers on the same cores:
(a) ``foreachPartition`` with ``execute_concurrent_with_args``, an INSERT per row (fewer rows: it is that
slow); (b) one process with unlogged batches of 200 rows of one partition, as the driver documents them;
(c) the Spark Cassandra Connector with its best options, from ``--jars`` (how to fetch them:
spark-cassandra-connector-pom.xml); tidegate with its log, its decision, its versions
and its flip. Printed: rows per second of each, medians, and the ratios; the first round is a warm-up.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
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
    arguments = parser.parse_args()
    spark = session(arguments.store, arguments.jars)
    took = measure(spark, arguments)
    spark.stop()
    report(took, arguments)


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


def measure(spark: Any, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Rows per second of each writer, in every round."""
    from tidegate.sinks.open_store import open_store
    from tidegate.spark import VersionedSink

    node, namespace = urlsplit(arguments.store), f"bench-{os.getpid()}"
    at = node.hostname, node.port
    make_table(*at, copies=1)
    sink = VersionedSink(
        namespace=namespace,
        wal=arguments.wal,
        store=arguments.store,
        store_options={"create": True},
        table="t",
        key="key",
        value="value",
        allow_unsafe=True,
    )
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
    sink.close()
    with contextlib.closing(open_store(arguments.store, namespace)) as store:
        store.drop()
    return per_second


def rows(spark: Any, count: int) -> Any:
    text = "concat('{\"n\":', id, ',\"text\":\"', substr(sha1(cast(id as string)), 1, 36), '\"}') as value"
    named = spark.range(0, count, numPartitions=2).selectExpr(
        "concat('key-', cast(id as string)) as key", text
    )
    return named.selectExpr(KG, "key", "value")


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


if __name__ == "__main__":
    main()
