"""The stream of rows that all writers receive, and the loop over its batches."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidegate.bench.plan import TABLE, Plan
from tidegate.errors import TidegateError
from tidegate.spark import VersionedSink

VALUE = "concat('{\"n\":', id, ',\"text\":\"', substr(sha1(cast(id as string)), 1, 36), '\"}') AS value"
"""Some 60 bytes of JSON, new ones for a key in each batch."""


@contextlib.contextmanager
def session(master: str, settings: Mapping[str, Any]) -> Iterator[SparkSession]:
    """Yield the active session, or one with these settings, which is stopped afterwards."""
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    builder = SparkSession.builder.master(master).appName("tidegate bench")
    with _interrupts_put_off() as interrupts:
        spark = builder.config(map={**quiet, **settings}).getOrCreate()
    if interrupts:
        spark.stop()
        raise KeyboardInterrupt
    spark.sparkContext.setLogLevel("ERROR")
    if "spark.sql.shuffle.partitions" not in settings:
        spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def _interrupts_put_off() -> Iterator[list[int]]:
    """Yield the Ctrl-Cs meanwhile: a JVM whose start is interrupted does not end with this process.

    PySpark sets a handler of its own, which asks the JVM within another request: the one before is set again.
    """
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield came
        return
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)


def rows_of(numbers: DataFrame, keys: int) -> DataFrame:
    """Select ``key`` and ``value`` for each ``id``, over ``keys`` different keys."""
    key = f"concat('key-', lpad(cast(pmod(id, {keys}) AS string), 9, '0')) AS key"
    return numbers.selectExpr(key, VALUE)


def spark_rows(spark: SparkSession, plan: Plan) -> DataFrame:
    """Make one batch of the plan's rows, without a stream."""
    return rows_of(
        spark.range(0, plan.rows, numPartitions=spark.sparkContext.defaultParallelism), plan.distinct
    )


def sink_for(plan: Plan, part: str, **options: Any) -> VersionedSink:
    """Make a sink into a namespace of this part's own; it opens nothing before its first batch."""
    where = plan.endpoints(part)
    return VersionedSink(
        namespace=where.namespace,
        wal=plan.wal,
        store=plan.store,
        wal_options=plan.wal_options,
        store_options=plan.store_options,
        table=TABLE,
        key="key",
        value="value",
        allow_unsafe=plan.allow_unsafe,
        **options,
    )


def stream(
    spark: SparkSession,
    plan: Plan,
    rows: int,
    keys: int,
    batches: int,
    run: Callable[[DataFrame, int], None],
) -> None:
    """Call ``run`` for each of ``batches`` batches of ``rows`` rows, inside foreachBatch.

    TidegateError: the query failed, with its error as the cause, or took longer than ``deadline_s``.
    """
    done = 0

    def each(batch: DataFrame, batch_id: int) -> None:
        nonlocal done
        run(batch, batch_id)
        done += 1

    tasks = spark.sparkContext.defaultParallelism
    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=rows, numPartitions=tasks)
    try:
        numbers = source.load().selectExpr("value AS id")
        run_query(rows_of(numbers, keys), each, lambda: done == batches, plan.deadline_s)
    except QueryTimeoutError as error:
        within = f"{done} of {batches} batches were written within {plan.deadline_s:g} s"
        msg = f"{within}: take fewer rows, or more time"
        raise TidegateError(msg) from error


class QueryTimeoutError(TidegateError):
    """The query did not finish in time."""


def run_query(
    rows: DataFrame,
    write: Callable[[DataFrame, int], object],
    finished: Callable[[], bool],
    deadline_s: float,
) -> None:
    """Call ``write`` for each batch of the stream inside foreachBatch, until ``finished`` after one.

    TidegateError: the query failed, with its error as the cause. QueryTimeoutError: it took longer
    than ``deadline_s``.
    """
    ended = threading.Event()

    def each(batch: DataFrame, batch_id: int) -> None:
        if not ended.is_set():
            write(batch, batch_id)
            if finished():
                ended.set()

    end = time.monotonic() + deadline_s
    with running(rows.writeStream.foreachBatch(each)) as query:
        while query.isActive and not ended.wait(0.1) and time.monotonic() < end:
            pass
        failed = query.exception()
    if failed is not None:
        raise TidegateError(f"the query failed: {str(failed).strip().splitlines()[0]}") from failed
    if not ended.is_set():
        raise QueryTimeoutError(f"the query did not finish within {deadline_s:g} s")


@contextlib.contextmanager
def running(writer: Any) -> Iterator[Any]:
    """Start the query of a DataStreamWriter, with a checkpoint of its own; stop it afterwards."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-", ignore_cleanup_errors=True) as folder:
        query = writer.option("checkpointLocation", folder).start()
        try:
            yield query
        finally:
            query.stop()
