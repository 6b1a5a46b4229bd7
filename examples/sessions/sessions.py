"""Sessions of users: one closes after half an hour without clicks of its user, and is a row of its own then.

    spark-submit sessions.py --input /data/clicks --wal file:///data/wal --store sqlite:///data/store

Each line of a file in the input folder is a click:

    {"user": "ada", "page": "/home", "at": "2026-11-21T10:15:00Z"}

The table ``open`` has the running session of each user, ``sessions`` those that closed, by user and begin. A
click after the close begins a new session. Spark runs a batch only when a source has rows: the ticks make one
each minute, also when nobody clicks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidegate.spark import VersionedSink

NAMESPACE, PAUSE = "clicks", "30 min"
CLICK = "user string, page string, at timestamp"
OPEN = "begin timestamp, pages array<string>"
OUTPUTS = {"sessions": ("user string, begin timestamp", "pages array<string>")}

Emit = Callable[[str, Any, Any], None]
Session = dict[str, Any]


def click(_user: str, rows: Iterator[dict[str, Any]], session: Session | None, _emit: Emit) -> Session:
    """Add a user's clicks to the running session, or begin one."""
    clicks = list(rows)
    pages = [one["page"] for one in clicks]
    if session is None:
        return {"begin": clicks[0]["at"], "pages": pages}
    return {"begin": session["begin"], "pages": session["pages"] + pages}


def close(user: str, session: Session, emit: Emit) -> None:
    """Emit a session without clicks, and forget it."""
    emit("sessions", (user, session["begin"]), {"pages": session["pages"]})


def write(txn: Any, clicks: DataFrame) -> None:
    """Write the sessions of a batch: those with clicks, and those that close."""
    txn.update(
        "open",
        clicks.where("user IS NOT NULL"),  # a tick has none
        key="user",
        fn=click,
        schema=OPEN,
        outputs=OUTPUTS,
        order_by="at",
        timeout=PAUSE,
        on_timeout=close,
    )


def clicks_and_ticks(spark: SparkSession, folder: str) -> DataFrame:
    """Read the clicks, and a row without a user each second, so that there is always a next batch."""
    clicks = spark.readStream.schema(CLICK).json(folder)
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    return clicks.unionByName(ticks.selectExpr("timestamp AS at"), allowMissingColumns=True)


def start(spark: SparkSession, folder: str, sink: VersionedSink, checkpoint: str, every: str) -> Any:
    """Start the query; ``every`` is the time from batch to batch, as in "1 minute"."""
    query = clicks_and_ticks(spark, folder).writeStream.foreachBatch(sink.each(write))
    return query.option("checkpointLocation", checkpoint).trigger(processingTime=every).start()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until the query ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True, help="a folder of JSON files")
    parser.add_argument("--wal", required=True, help="the log's URL")
    parser.add_argument("--store", required=True, help="the store's URL")
    parser.add_argument("--checkpoint", default="/tmp/clicks-checkpoint")  # noqa: S108 - an example
    given = parser.parse_args(arguments)
    sink = VersionedSink(namespace=NAMESPACE, wal=given.wal, store=given.store)
    spark = SparkSession.builder.getOrCreate()
    start(spark, given.input, sink, given.checkpoint, "1 minute").awaitTermination()
    sink.close()


if __name__ == "__main__":
    main()
