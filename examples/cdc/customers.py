"""Captured changes from a Kafka topic into a versioned table, and an API that waits for its own write.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \
        customers.py --kafka broker1:9092 --wal kafka://broker1:9092 --store redis://cache:6379/0

Each record is JSON: {"op": "c", "id": 7, "lsn": 41, "name": "Ada"}; op d deletes.
With --format avro it is the same in Avro, by the schema below, without a registry's header; then the package
spark-avro_2.13 is needed, too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.avro.functions import from_avro

from tidegate.spark import Transaction, VersionedSink

NAMESPACE, TABLE, TOPIC = "customers", "customers", "customers"
CHANGE = "op string, id bigint, lsn bigint, name string"
AVRO = json.dumps(
    {
        "type": "record",
        "name": "change",
        "fields": [
            {"name": "op", "type": "string"},
            {"name": "id", "type": "long"},
            {"name": "lsn", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
        ],
    }
)


def write(txn: Transaction, batch: DataFrame) -> None:
    """One batch of changes in JSON as one version."""
    apply(txn, batch, functions.from_json(functions.col("value").cast("string"), CHANGE))


def write_avro(txn: Transaction, batch: DataFrame) -> None:
    """One batch of changes in Avro as one version."""
    apply(txn, batch, from_avro(functions.col("value"), AVRO, {"mode": "FAILFAST"}))


def apply(txn: Transaction, batch: DataFrame, parsed: Column) -> None:
    """The changes that the records hold. A tombstone, as Debezium writes one after a delete, has no value."""
    changes = batch.where("value IS NOT NULL").select(parsed.alias("change")).select("change.*")
    txn.apply_changes(TABLE, changes, "id", sequence_by="lsn", op_column="op", delete_values=["d"])


FORMATS = {"json": write, "avro": write_avro}


def start(spark: SparkSession, kafka: str, sink: VersionedSink, checkpoint: str, form: str = "json") -> Any:
    """The running query."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )
    return (
        records.writeStream.foreachBatch(sink.each(FORMATS[form]))
        .option("checkpointLocation", checkpoint)
        .start()
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", required=True, help="host1:9092,host2:9092")
    parser.add_argument("--wal", required=True, help="the log's URL")
    parser.add_argument("--store", required=True, help="the store's URL")
    parser.add_argument("--checkpoint", default="/tmp/customers-checkpoint")  # noqa: S108 - an example
    parser.add_argument("--format", default="json", choices=FORMATS)
    given = parser.parse_args(arguments)
    sink = VersionedSink(namespace=NAMESPACE, wal=given.wal, store=given.store)
    spark = SparkSession.builder.getOrCreate()
    start(spark, given.kafka, sink, given.checkpoint, given.format).awaitTermination()


if __name__ == "__main__":
    main()
