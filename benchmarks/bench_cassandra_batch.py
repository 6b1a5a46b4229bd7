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
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from harness import (
    VALUE,
    Samples,
    alternate,
    connector_settings,
    medians,
    parser_of,
    rate,
    run_batches,
    shown,
    sink_in,
    spark_on,
)

KEYSPACE, TABLE, KEY_GROUPS = "baselines", "rows", 128
INSERT = "INSERT INTO baselines.rows (kg, key, version, value) VALUES (?, ?, ?, ?)"
BATCH_ROWS, IN_FLIGHT, CONCURRENCY = 200, 64, 100
KG = f"cast(pmod(hash(key), {KEY_GROUPS}) as int) as kg"
ROW = ("concat('key-', cast(id as string)) as key", VALUE)
COLUMNS = {"table": "t", "key": "key", "value": "value"}
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
            arguments = ((row.kg, row.key, version, row.value) for row in rows)
            execute_concurrent_with_args(session, insert, arguments, concurrency=CONCURRENCY)

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
    parser = parser_of(__doc__, wal=True, store=True, rows=500_000, rounds=4)
    parser.add_argument("--jars", required=True, help="the folder with the connector's jars")
    parser.add_argument("--slow-rows", type=int, default=20_000, help="rows for (a)")
    parser.add_argument("--queries", type=int, default=2, help="of each kind, alternately")
    arguments = parser.parse_args()
    with spark_on(**connector_settings(arguments.store, arguments.jars)) as spark:
        measured = measure(spark, arguments)
        streamed = alternate_streams(spark, arguments)
    report(measured, arguments)
    report_streams(streamed)


def alternate_streams(spark: Any, arguments: argparse.Namespace) -> Samples:
    """Return rows per second of whole queries, of each kind."""
    per_second: Samples = defaultdict(list)
    for turn in range(arguments.queries):
        per_second[C].append(
            stream(spark, arguments, lambda batch, _: connector(batch.selectExpr(KG, "*"), 1))
        )
        for mode in ("sync", "pipelined"):
            with sink_in(None, arguments, f"-{mode}-{turn}", commit=mode, **COLUMNS) as sink:
                per_second[f"tidegate, {mode}"].append(stream(spark, arguments, sink, sink.drain))
    return per_second


def stream(
    spark: Any,
    arguments: argparse.Namespace,
    write: Callable[[Any, int], Any],
    drain: Callable[[float], None] = lambda _: None,
) -> float:
    """Return rows per second of one query of ``--rounds`` batches, after its first."""
    began: list[float] = []

    def clocked(batch: Any, batch_id: int) -> None:
        began.append(time.perf_counter())
        write(batch, batch_id)
        if len(began) > arguments.rounds:
            drain(DEADLINE_S)
            began.append(time.perf_counter())

    numbers = rate(spark, arguments.rows).selectExpr(f"value % {arguments.rows} as id")
    run_batches(numbers.selectExpr(*ROW), clocked, lambda: len(began) > arguments.rounds + 1)
    return float(arguments.rows * arguments.rounds / (began[-1] - began[1]))


def measure(spark: Any, arguments: argparse.Namespace) -> Samples:
    """Return rows per second of each writer, in every round."""
    node = urlsplit(arguments.store)
    address = str(node.hostname), int(node.port or 9042)
    make_table(*address, copies=1)
    per_second: Samples = defaultdict(list)
    with sink_in(None, arguments, "-alternate", **COLUMNS) as sink:
        for version in range(1, arguments.rounds + 2):
            batch = spark.range(0, arguments.rows, numPartitions=2).selectExpr(*ROW)
            batch = batch.selectExpr(KG, "key", "value").cache()
            few = batch.limit(arguments.slow_rows).repartition(2).cache()
            counts = dict.fromkeys((A, B, C, OURS), batch.count()) | {A: few.count()}
            writers = {
                A: lambda few=few, v=version: few.foreachPartition(single_inserts(*address, v)),
                B: lambda b=batch, v=version: in_batches(*address, b, v),
                C: lambda b=batch, v=version: connector(b, v),
                OURS: lambda b=batch, v=version: sink.load({"t": b.drop("kg")}, token=str(v)),
            }
            for name, (seconds,) in alternate(writers, 1, start=version).items():
                per_second[name].append(counts[name] / seconds)
            per_second[APPLY].append(arguments.rows / sink.last_phases["decided"])
            batch.unpersist()
            few.unpersist()
    return per_second


def report(per_second: Samples, arguments: argparse.Namespace) -> None:
    print(f"{arguments.rows:,} rows of as many keys; K rows/s, the first round being a warm-up")
    middle = print_medians(per_second, warm_up=1)
    print(f"tidegate / (a): {middle[OURS] / middle[A]:.1f}   (at least 10 was aimed at)")
    print(f"tidegate / (b): {middle[OURS] / middle[B]:.2f}   (at least 1.2)")
    print(f"tidegate / (c): {middle[OURS] / middle[C]:.2f}   (at least 0.7)")
    print(f"its apply / (c): {middle[APPLY] / middle[C]:.2f}   (at least 1.0)")


def report_streams(per_second: Samples) -> None:
    print("whole queries, K rows/s after the first batch, until the last is visible")
    middle = print_medians(per_second, warm_up=0)
    for mode, asked in (("sync", 0.8), ("pipelined", 1.0)):
        print(f"tidegate, {mode} / (c): {middle[f'tidegate, {mode}'] / middle[C]:.2f}   (at least {asked})")


def print_medians(per_second: Samples, warm_up: int) -> dict[str, float]:
    middle = medians(per_second, warm_up)
    for name, each in per_second.items():
        print(f"{name:20} {middle[name] / 1e3:7.1f}   ({shown((one / 1e3 for one in each), 1)})")
    return middle


if __name__ == "__main__":
    main()
