"""The driver of test_lost_checkpoint.py: sums of a Kafka topic, until the topic has no more.

    python kafka_sums_driver.py FOLDER BOOTSTRAP JARS CHECKPOINT STARTING_OFFSETS

An error of the sink is printed, and the exit code is 1 then.
"""

from __future__ import annotations

import sys
from pathlib import Path

from support.spark_driver import session
from tidegate.errors import TidegateError
from tidegate.spark import VersionedSink

TOPIC = "numbers"


def main(folder: Path, bootstrap: str, jars: str, checkpoint: str, starting: str) -> None:
    from pyspark.sql import functions

    spark = session("local[2]", "kafka sums", {"spark.jars": jars})
    sink = VersionedSink(namespace="flights", store=f"sqlite://{folder}/store", wal=f"file://{folder}/wal")
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", TOPIC)
        .option("maxOffsetsPerTrigger", 40)
        .option("startingOffsets", starting)
        .load()
    )
    numbers = source.select(
        functions.col("partition").alias("k"), functions.col("value").cast("string").cast("bigint").alias("n")
    )
    commit = sink.each(lambda txn, rows: txn.reduce("sums", rows, "k", reducers={"n": "sum"}))
    errors = []

    def each(rows, batch_id):
        try:
            commit(rows, batch_id)
        except TidegateError as error:
            errors.append(error)
            raise

    query = (
        numbers.writeStream.foreachBatch(each)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except Exception:
        for error in errors:
            print(f"{type(error).__name__}: {error}", flush=True)
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
