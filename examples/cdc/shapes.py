"""Captured changes as each tool writes them to Kafka, in JSON, into a versioned table.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \
        shapes.py --shape debezium-postgresql --kafka broker1:9092 --wal kafka://broker1:9092 \
        --store redis://cache:6379/0

The table is customers (id, name, mail). Of each shape the sequence has no ties, and docs/cdc.md says why.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.functions import col

from tidegate.spark import Transaction, VersionedSink

NAMESPACE, TABLE, TOPIC = "customers", "customers", "customers"
ROW = "id bigint, name string, mail string"
UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's text in place of one that an update left as it was, and of such a field of MongoDB's here."""


MAXWELL_DDL = ("table-create", "table-alter", "database-create", "database-alter")
CANAL_DDL = ("CREATE", "ALTER", "CINDEX", "DINDEX", "QUERY")
"""Changes of a schema. Another one empties or drops a table, and is refused: then load the table again."""


def parsed(records: DataFrame, schema: str) -> DataFrame:
    """The records' JSON as columns, and their offsets. Tombstones, records without a value, are left out."""
    content = functions.from_json(col("value").cast("string"), schema)
    return records.where("value IS NOT NULL").select(content.alias("c"), "offset").select("c.*", "offset")


def without_kinds(content: DataFrame, column: str, *kinds: str) -> DataFrame:
    """Leave out the records that change no row. Any other one without a key is refused: also no JSON."""
    return content.where(~functions.coalesce(col(column).isin(*kinds), functions.lit(False)))  # noqa: FBT003


def without_old_keys(rows: DataFrame, old: Column, delete: str) -> DataFrame:
    """Add a delete of the old key to an update that changes the key, which these tools send as one record."""
    both = functions.array(functions.lit(False), functions.lit(True))  # noqa: FBT003
    ends = functions.when(old != col("id"), both).otherwise(functions.slice(both, 1, 1))
    twice = rows.select("*", old.alias("old_id"), functions.explode(ends).alias("is_old")).drop("old")
    return twice.withColumns(
        {
            "op": functions.when(col("is_old"), delete).otherwise(col("op")),
            "id": functions.when(col("is_old"), col("old_id")).otherwise(col("id")),
        }
    ).drop("is_old", "old_id")


def debezium(records: DataFrame, source: str, *sequence: Column) -> DataFrame:
    """Envelopes with before and after, with the converter's schema around them or without it."""
    envelope = f"op string, before struct<{ROW}>, after struct<{ROW}>, source struct<{source}>"
    content = parsed(records, f"payload struct<{envelope}>, {envelope}")
    names = ("op", "before", "after", "source")
    bare = content.select(
        *(functions.coalesce(f"payload.{name}", name).alias(name) for name in names), "offset"
    )
    rows = bare.withColumn("row", functions.when(col("op") == "d", col("before")).otherwise(col("after")))
    return rows.select("op", *sequence, "offset", "row.*")


def number_of(file: str) -> Column:
    """The number of a binlog file. As text, 1000000 is before 999999."""
    return functions.substring_index(file, ".", -1).cast("bigint")


def from_postgresql(records: DataFrame) -> DataFrame:
    """A row of a snapshot has no position, or that of the snapshot."""
    return debezium(records, "lsn bigint", functions.coalesce("source.lsn", functions.lit(0)).alias("lsn"))


def from_mysql(records: DataFrame) -> DataFrame:
    """The position of an event in the binlog, and the row's number in the event."""
    place = (
        number_of("source.file").alias("file"),
        col("source.pos").alias("pos"),
        col("source.row").alias("row_no"),
    )
    return debezium(records, "file string, pos bigint, row int", *place)


def from_sql_server(records: DataFrame) -> DataFrame:
    """Positions are hexadecimal texts of one length, which have the order of their bytes."""
    names = ("commit_lsn", "change_lsn")
    place = (functions.coalesce(f"source.{name}", functions.lit("")).alias(name) for name in names)
    return debezium(records, "commit_lsn string, change_lsn string", *place)


def from_oracle(records: DataFrame) -> DataFrame:
    """System change numbers are texts of several lengths: they are compared as numbers."""
    scn = functions.coalesce("source.commit_scn", "source.scn").cast("bigint").alias("scn")
    return debezium(records, "commit_scn string, scn string", scn)


def from_maxwell(records: DataFrame) -> DataFrame:
    """Maxwell with output_binlog_position=true. Rows of a bootstrap have no position: any change is newer."""
    content = parsed(records, f"type string, position string, data struct<{ROW}>, old struct<id: bigint>")
    rows = without_kinds(content, "type", "bootstrap-start", "bootstrap-complete", *MAXWELL_DDL)
    file = number_of(functions.substring_index("position", ":", 1))  # type: ignore[arg-type]
    pos = functions.substring_index("position", ":", -1).cast("bigint")
    place = [
        functions.coalesce(one, functions.lit(0)).alias(name) for one, name in ((file, "file"), (pos, "pos"))
    ]
    changes = rows.select(col("type").alias("op"), *place, "offset", "data.*", "old")
    return without_old_keys(changes, col("old.id"), "delete")


def from_canal(records: DataFrame) -> DataFrame:
    """A flat message has a list of rows, all of whose cells are texts, and no position."""
    texts = ROW.replace("bigint", "string")
    content = parsed(
        records, f"type string, isDdl boolean, data array<struct<{texts}>>, old array<struct<id: string>>"
    )
    rows = without_kinds(content, "type", *CANAL_DDL).select(
        col("type").alias("op"), "offset", "old", functions.posexplode_outer("data").alias("row_no", "row")
    )
    old = functions.get(col("old"), col("row_no"))["id"].cast("bigint")
    changes = rows.select("op", "offset", "row_no", "row.*", old.alias("old"))
    return without_old_keys(changes.withColumn("id", col("id").cast("bigint")), col("old"), "DELETE")


def from_goldengate(records: DataFrame) -> DataFrame:
    """A position is a text of twenty digits. An update may have only the columns that it changed.

    One that changes the key needs both images whole: the new key has no row that could have the others.
    """
    content = parsed(records, f"op_type string, pos string, before struct<{ROW}>, after struct<{ROW}>")
    row = functions.when(col("op_type") == "D", col("before")).otherwise(col("after"))
    changes = content.withColumn("row", row).select(
        col("op_type").alias("op"), "pos", "offset", "row.*", col("before.id").alias("old")
    )
    return without_old_keys(changes, col("old"), "D")


def from_mongodb(records: DataFrame) -> DataFrame:
    """Events of a change stream. Those of one transaction have one time.

    A document is whole, so a field that it lacks is null. An update names the fields that it sets or removes.
    """
    document = ROW.replace("id bigint", "_id bigint")
    content = parsed(
        records,
        "operationType string, clusterTime struct<`$timestamp`: struct<t: bigint, i: bigint>>,"
        f" documentKey struct<_id: bigint>, fullDocument struct<{document}>,"
        " updateDescription struct<updatedFields: map<string,string>, removedFields: array<string>>",
    )
    updated, removed = (
        col(f"updateDescription.{name}").alias(name) for name in ("updatedFields", "removedFields")
    )

    def field(name: str) -> Column:
        of_update = (
            functions.when(functions.map_contains_key(updated, name), updated[name])
            .when(functions.array_contains(removed, name), None)
            .otherwise(UNAVAILABLE)
        )
        is_whole = col("fullDocument").isNotNull()
        return functions.when(is_whole, col(f"fullDocument.{name}")).otherwise(of_update).alias(name)

    return content.select(
        col("operationType").alias("op"),
        col("documentKey._id").alias("id"),
        *(col(f"clusterTime.`$timestamp`.{name}").alias(f"time_{name}") for name in "ti"),
        "offset",
        field("name"),
        field("mail"),
    )


class Shape(NamedTuple):
    """How records become changes, and how these are applied."""

    changes: Callable[[DataFrame], DataFrame]
    arguments: Mapping[str, Any]


KEEP = {"keep_when": {"mail": UNAVAILABLE}}
SHAPES = {
    "debezium-postgresql": Shape(from_postgresql, {"sequence_by": ["lsn", "offset"], **KEEP}),
    "debezium-mysql": Shape(from_mysql, {"sequence_by": ["file", "pos", "row_no", "offset"]}),
    "debezium-sqlserver": Shape(from_sql_server, {"sequence_by": ["commit_lsn", "change_lsn", "offset"]}),
    "debezium-oracle": Shape(from_oracle, {"sequence_by": ["scn", "offset"], **KEEP}),
    "maxwell": Shape(from_maxwell, {"sequence_by": ["file", "pos", "offset"]}),
    "canal": Shape(from_canal, {"sequence_by": ["offset", "row_no"], "delete_values": ["DELETE"]}),
    "goldengate": Shape(
        from_goldengate,
        {"sequence_by": ["pos", "offset"], "delete_values": ["D"], "ignore_nulls": ["name", "mail"]},
    ),
    "mongodb": Shape(
        from_mongodb,
        {
            "sequence_by": ["time_t", "time_i", "offset"],
            "keep_when": {"name": UNAVAILABLE, "mail": UNAVAILABLE},
        },
    ),
}


def write(txn: Transaction, batch: DataFrame, shape: str) -> None:
    """One batch of records as one version."""
    changes, arguments = SHAPES[shape]
    txn.apply_changes(TABLE, changes(batch), "id", op_column="op", **arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", required=True, choices=SHAPES)
    parser.add_argument("--kafka", required=True, help="host1:9092,host2:9092")
    parser.add_argument("--wal", required=True, help="the log's URL")
    parser.add_argument("--store", required=True, help="the store's URL")
    parser.add_argument("--checkpoint", default="/tmp/customers-checkpoint")  # noqa: S108 - an example
    given = parser.parse_args(arguments)
    sink = VersionedSink(namespace=NAMESPACE, wal=given.wal, store=given.store)
    records = (
        SparkSession.builder.getOrCreate()
        .readStream.format("kafka")
        .option("kafka.bootstrap.servers", given.kafka)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = records.writeStream.foreachBatch(sink.each(partial(write, shape=given.shape)))
    query.option("checkpointLocation", given.checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
