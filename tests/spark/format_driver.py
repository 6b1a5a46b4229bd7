"""The driver of test_stream_writer_killed.py: a stream that writes by format, and is killed in its steps.

    python format_driver.py FOLDER LAST KILLS

The stream ends after batch LAST. KILLS are lists of a batch, of who is killed in it, and where, as JSON.
``driver`` is this process with its JVM, ``worker`` the process of Python that comes to that place: a
failpoint, or ``returned``, where the version is visible and Spark has not written its commit log. Each is
done once; then FOLDER has the file ``killed-BATCH``. A query that ends by an error is started again.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

from support.spark_driver import session
from tidegate.base import failpoints
from tidegate.spark import prepare
from tidegate.spark.source.data_source import TidegateSource
from tidegate.spark.source.writing.stream_writer import StreamWriter

ROWS, KEYS = 60, 40
STARTS = 60
SCHEMA = "k bigint, n bigint, batch bigint"


def row_of(n: int) -> tuple[int, int]:
    """The key and the batch of the source's row ``n``. Each batch has keys twice, keys once, and not all."""
    batch = n // ROWS
    return (n * n + batch) % KEYS, batch


def is_delete(n: int) -> bool:
    return n % 7 == 0


@functools.lru_cache(maxsize=2_000)
def expected(version: int) -> dict[int, dict[str, int]]:
    """The table at a version, counted from the source's rows."""
    if not version:
        return {}
    rows = dict(expected(version - 1))
    for n in range((version - 1) * ROWS, version * ROWS):
        key, batch = row_of(n)
        rows.pop(key, None)
        if not is_delete(n):
            rows[key] = {"n": n, "batch": batch}
    return rows


class KillingWriter(StreamWriter):
    """The writer, in whose processes something is killed."""

    folder: str
    kills: list[tuple[int, str, str]]
    drivers: tuple[int, ...]

    def _armed(self, batch: int) -> None:
        failpoints.listen(functools.partial(self._killed, batch))

    def _killed(self, batch: int, place: str) -> None:
        for at, who, where in self.kills:
            if (at, where) == (batch, place):
                try:
                    Path(self.folder, f"killed-{batch}").touch(exist_ok=False)
                except FileExistsError:
                    return
                for process in self.drivers if who == "driver" else [os.getpid()]:
                    os.kill(process, signal.SIGKILL)
                signal.pause()  # the daemon that made this process takes it along

    def write(self, iterator: Iterator[Any]) -> Any:
        assert self._plan is not None
        self._armed(self._plan.batch.batch_id)
        return super().write(iterator)

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        self._armed(batchId)
        super().commit(messages, batchId)
        self._killed(batchId, "returned")


def source_of(**words: Any) -> type[TidegateSource]:
    """A source of the same name. It is pickled by value, so it has everything with it."""

    class KillingSource(TidegateSource):
        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
            writer = KillingWriter(self.options, schema, overwrite=overwrite)
            vars(writer).update(words)
            return writer

    return KillingSource


def start(spark: Any, folder: Path) -> Any:
    """Start the query, whose batches come one after another."""
    stream = spark.readStream.load(format="rate-micro-batch", rowsPerBatch=ROWS, numPartitions=2)
    batch = f"(value div {ROWS})"
    rows = stream.selectExpr(f"(value * value + {batch}) % {KEYS} AS k", "value AS n", f"{batch} AS batch")
    prepared = prepare(rows, "k", schema=SCHEMA, order_by="n", delete_when="n % 7 = 0", parallelism=2)
    return (
        prepared.writeStream.format("tidegate")
        .options(namespace="n", wal=f"file://{folder}/wal", store=f"sqlite://{folder}/store", table="t")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start()
    )


def main(folder: Path, last: int, kills: list[tuple[int, str, str]]) -> None:
    spark = session("local[2]", "format")
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    words = {"folder": str(folder), "kills": kills, "drivers": (jvm, os.getpid())}
    spark.dataSource.register(source_of(**words))
    committed = folder / "checkpoint" / "commits" / str(last)
    for _ in range(STARTS):
        query = start(spark, folder)
        try:
            while not committed.exists():
                query.awaitTermination(0.2)
            query.stop()
        except StreamingQueryException as error:
            print(str(error)[:3000], flush=True)
        else:
            spark.stop()
            return
    sys.exit("the query does not continue")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
