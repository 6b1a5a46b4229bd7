"""The public API as a writer's code, for type checkers; ``tests/repo/test_public_types.py`` runs them.

A wrong use carries the error that mypy must give: with none, mypy calls the comment unused. Pyright has to
give an error in the lines marked so, and in no other.
"""

from __future__ import annotations

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import Unpack, assert_type

import tidegate
from tidegate.spark import Transaction, VersionedSink, cause, configure

spark = configure(SparkSession.builder.master("local[2]")).getOrCreate()
sink = VersionedSink(
    namespace="flights",
    wal="file:///data/wal",
    store="sqlite:///data/store",
    table="aircraft",
    key="tailnum",
    keep_versions=7,
    commit="pipelined",
    on_bad_record="quarantine",
    parallelism="executors",
    ttl="7 days",
)
VersionedSink(namespace="n", wal="w", store="s", keep_version=3)  # type: ignore[call-arg]  # refused
VersionedSink(namespace="n", wal="w", store="s", keep_versions="3")  # type: ignore[arg-type]  # refused
VersionedSink(namespace="n", wal="w", store="s", commit="async")  # type: ignore[arg-type]  # refused
VersionedSink(namespace="n", wal="w", store="s", parallelism="all")  # type: ignore[arg-type]  # refused
VersionedSink(namespace="n", wal="w", store="s", ttl={"sessions": "7 days", "users": None})


def sink_of(**options: Unpack[tidegate.SinkOptions]) -> VersionedSink:
    """A user's own function that passes options on."""
    return VersionedSink(namespace="n", wal="w", store="s", **options)


sink_of(max_lease_s=60, wait_aof=True)
sink_of(max_lease=60)  # type: ignore[call-arg]  # refused


def write(txn: Transaction, rows: DataFrame) -> None:
    txn.reduce("airports", rows, "origin", {"departures": "sum", "latest": "max"})
    txn.reduce("airports", rows, "origin", {"delay": "avg"})  # type: ignore[dict-item]  # refused


query = spark.readStream.format("rate").load().writeStream.foreachBatch(sink.each(write)).start()
try:
    query.awaitTermination()
except StreamingQueryException as error:
    assert_type(cause(error), tidegate.TidegateError | None)
    if isinstance(cause(error), tidegate.FencedError):
        raise
assert_type(sink.last_error, BaseException | None)
