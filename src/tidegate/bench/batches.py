"""The stream of rows that all writers receive, and the loop over its batches."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidegate.bench.plan import TABLE, Plan
from tidegate.errors import TidegateError
from tidegate.spark import VersionedSink

VALUE = "concat('{\"n\":', id, ',\"text\":\"', substr(sha1(cast(id as string)), 1, 36), '\"}') AS value"
"""Some 60 bytes of JSON, new ones for a key in each batch."""


@contextlib.contextmanager
def spark_for(plan: Plan) -> Iterator[SparkSession]:
    """Yield the active session, or one on the plan's master, which is stopped afterwards."""
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(plan.master)
        .appName("tidegate bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.conf.set("spark.sql.shuffle.partitions", spark.sparkContext.defaultParallelism)
    try:
        yield spark
    finally:
        spark.stop()


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
    done, finished = 0, threading.Event()

    def each(batch: DataFrame, batch_id: int) -> None:
        nonlocal done
        if done < batches:
            run(batch, batch_id)
            done += 1
        if done == batches:
            finished.set()

    folder = tempfile.mkdtemp(prefix="tidegate-bench-")
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rows)
        .option("numPartitions", spark.sparkContext.defaultParallelism)
        .load()
        .selectExpr("value AS id")
    )
    query = rows_of(numbers, keys).writeStream.foreachBatch(each).option("checkpointLocation", folder).start()
    end = time.monotonic() + plan.deadline_s
    try:
        while query.isActive and not finished.wait(0.2) and time.monotonic() < end:
            pass
        failed = query.exception()
    finally:
        query.stop()
        shutil.rmtree(folder, ignore_errors=True)
    if failed is not None:
        raise TidegateError(f"the query failed: {str(failed).strip().splitlines()[0]}") from failed
    if done < batches:
        within = f"{done} of {batches} batches were written within {plan.deadline_s:g} s"
        msg = f"{within}: take fewer rows, or more time"
        raise TidegateError(msg)
