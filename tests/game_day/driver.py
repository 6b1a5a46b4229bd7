"""The driver's process of a game day: a stream with sums and newest rows, started and stopped by words.

    python driver.py

A line on standard input is a command: ``start SETTINGS`` starts the query, with the fields of ``rig.Job`` as
JSON, ``stop`` ends it as planned, the end of the input ends the process. Each event
is a line of JSON on standard output: ``ready``, ``started``, ``stopped``, ``logged`` (a warning or worse) and
``failed`` with the text of the query's error.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from typing import Any

from support.spark_driver import session
from tidegate.base.clock import Clock
from tidegate.errors import TidegateError
from tidegate.spark import VersionedSink

_printing = threading.Lock()


def report(event: str, text: str = "") -> None:
    with _printing:
        print(json.dumps({"event": event, "text": text}), flush=True)


class Reported(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        report("logged", self.format(record))


def set_clock_ahead(seconds: float) -> None:
    """Let tidegate's wall clock in this process be ahead, for good."""
    now_us = Clock.now_us
    Clock.now_us = lambda self: now_us(self) + int(seconds * 1_000_000)  # type: ignore[method-assign]


class Query:
    """One query at a time, on one session."""

    def __init__(self) -> None:
        self._job: dict[str, Any] = {}
        self._spark = session("local[2]", "game day")
        self._spark.sparkContext.setLogLevel("OFF")
        self._query: Any = None
        self._sink: VersionedSink | None = None
        self._error: TidegateError | None = None

    def start(self, settings: str) -> None:
        self._close()
        self._job = job = json.loads(settings)
        self._error = None
        if job.get("clock_ahead_s"):
            set_clock_ahead(job["clock_ahead_s"])
        try:
            self._sink = VersionedSink(
                namespace=job["namespace"],
                wal=job["wal"],
                store=job["store"],
                wal_options=job["wal_options"],
                store_options=job["store_options"],
                **job["options"],
            )
        except TidegateError as error:
            report("failed", f"{type(error).__name__}: {error}")
            return
        commit = self._sink.each(self._write)

        def each(rows: Any, batch_id: int) -> None:
            try:
                commit(rows, batch_id)
            except TidegateError as error:
                self._error = error
                raise

        self._query = (
            self._spark.readStream.schema("seq bigint, k string, n bigint")
            .option("maxFilesPerTrigger", job["files_per_batch"])
            .json(job["input"])
            .writeStream.foreachBatch(each)
            .option("checkpointLocation", job["checkpoint"])
            .trigger(processingTime="500 milliseconds")
            .start()
        )
        report("started")
        threading.Thread(target=self._watch, args=(self._query,), daemon=True).start()

    def _write(self, txn: Any, rows: Any) -> None:
        columns = self._job["totals"]
        txn.reduce("totals", rows.selectExpr(*columns), "k", {"count": "sum", "n": "sum", "last": "max"})
        txn.upsert("latest", rows.selectExpr(*self._job["latest"]), key="k", order_by="seq")

    def _watch(self, query: Any) -> None:
        try:
            query.awaitTermination()
        except Exception as failure:  # noqa: BLE001 - all are reported
            error = self._error
            report("failed", f"{type(error).__name__}: {error}" if error else str(failure)[:2000])

    def stop(self) -> None:
        self._close()
        report("stopped")

    def _close(self) -> None:
        try:
            if self._query is not None:
                self._query.stop()
            if self._sink is not None:
                self._sink.close()
        except TidegateError as error:
            report("failed", f"{type(error).__name__}: {error}")
        self._query = self._sink = None


def main() -> None:
    logging.getLogger("tidegate").addHandler(Reported(logging.WARNING))
    query = Query()
    report("ready")
    for line in sys.stdin:
        word, _, settings = line.strip().partition(" ")
        if word == "start":
            query.start(settings)
        else:
            query.stop()


if __name__ == "__main__":
    main()
