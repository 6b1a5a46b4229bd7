"""``prepare``: rows as they are staged, at the task that owns them, in front of ``writeStream``.

The JVM makes key and value, by the expressions of an upsert. A task of Python then passes each map task's
rows on, and adds what only a task knows: the order of its rows, and a mark of its output to every task behind
the shuffle (``state/output_rows.py``). The output's schema names everything that the writer has to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, functions
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from tidegate.base.decoders import json_decoder
from tidegate.base.names import did_you_mean
from tidegate.base.text import brief
from tidegate.errors import ConfigError
from tidegate.keys.groups import check_parallelism, groups_of, key_groups_for
from tidegate.spark.calls.checks import (
    Names,
    check_key_type,
    check_unique,
    check_value_type,
    columns_named,
    key_columns,
    no_dataframe,
)
from tidegate.spark.calls.columns import (
    bytes_value,
    column,
    group_at,
    json_value,
    key_bytes,
    key_group,
    place,
    schema_column,
    task_of,
    unless_deleted,
    unusable_where,
)
from tidegate.spark.calls.legacy_dates import written_as_they_are
from tidegate.spark.calls.newer import check_alone
from tidegate.spark.session.marked_runs import marked
from tidegate.spark.session.releases import repartition_by_id, type_of_ddl
from tidegate.spark.staging.collect import is_ordered
from tidegate.spark.state.apply_changes import sequence_column
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.staging.last_per_key import HASH_BITS, PLACE, TABLE_BITS

PREPARED = "tidegate"
"""The name, in the metadata of the column of keys, of what the writer has to know."""
ORDER = "o0"
WHERE = "prepare"


class Prepared(msgspec.Struct, frozen=True):
    """Rows that were prepared: the columns of the table, the tasks that own them, and what they may do."""

    schema: TableSchema
    parallelism: int
    key_groups: int
    newer_by: str | None
    deletes: bool


def prepare(  # noqa: PLR0913 - the keywords of an upsert
    df: DataFrame,
    key: Names,
    *,
    schema: str | StructType | None = None,
    order_by: Names | None = None,
    newer_by: str | None = None,
    delete_when: str | None = None,
    value: str | None = None,
    parallelism: int | None = None,
    key_groups: int | None = None,
) -> DataFrame:
    """Make rows ready for ``writeStream.format("tidegate")``: each in the task that owns its key.

    Call it as the last step before ``writeStream``. The keywords up to ``value`` are those of
    ``Transaction.upsert``, and mean the same. ``schema`` names the columns of ``df``, as DDL such as
    ``"tailnum string, flights int"``: then ``df`` is not analysed. Columns that it leaves out are not
    written.

    ``parallelism`` is the number of tasks; default: Spark's, and that of ``spark.sql.shuffle.partitions``
    with Spark Connect. ``key_groups`` are those of the namespace; default: those of a new one.

    It writes nothing. Raises: ConfigError: an argument is wrong. While the query runs, the batch fails if
    ``schema`` has another type than a column.
    """
    if not isinstance(df, DataFrame) and not hasattr(df, "sparkSession"):
        raise no_dataframe(WHERE, df)
    check_alone(WHERE, newer_by, {"order_by": order_by, "delete_when": delete_when, "value": value})
    fields = _fields(df, schema)
    rows = written_as_they_are(WHERE, df, fields)
    named = {field.name: field for field in fields}
    keys = [_one(named, name, "key") for name in key_columns(WHERE, key)]
    for field in keys:
        check_key_type(WHERE, field)
    others = [field for field in fields if field not in keys]
    stored, table = _value(keys, others, named, value)
    if newer_by is not None:
        newer = _one({field.name: field for field in others}, newer_by, "newer_by")
        sequence_column(WHERE, schema_column(newer), "newer_by")
        why = f"column {newer_by} of newer_by is null in it, so it cannot be compared with the stored row"
        stored = unusable_where([(column(newer_by).isNull(), why, "filter such rows out")], stored)
    if delete_when is not None:
        if not isinstance(delete_when, str):
            raise ConfigError(f"{WHERE}: delete_when={brief(delete_when)} must be a predicate in Spark SQL")
        stored = unless_deleted(functions.expr(delete_when), stored)
    by = newer_by if newer_by is not None else order_by
    order = (
        []
        if by is None
        else [_ordered(_one(named, n, "order_by")) for n in columns_named(WHERE, "order_by", by)]
    )
    tasks = _tasks(df, parallelism)
    groups = key_groups_for(tasks) if key_groups is None else key_groups
    check_parallelism(tasks, groups, " here")
    prepared = Prepared(table, tasks, groups, newer_by, delete_when is not None)
    of_key = key_bytes(keys) if schema is None else _typed(fields, key_bytes(keys))
    return _placed(rows, of_key, order, stored, prepared)


def prepared_in(schema: StructType) -> Prepared:
    """Return what ``prepare`` wrote into the schema of its rows. Raises: ConfigError."""
    texts = [field.metadata[PREPARED] for field in schema.fields if PREPARED in field.metadata]
    if len(texts) != 1 or [name for name in schema.names if not name.startswith("o")] != [PLACE, "k", "v"]:
        raise ConfigError(
            "format('tidegate') writes rows that tidegate.spark.prepare has placed: call rows = prepare(df,"
            " key=...) as the last step before rows.writeStream. Nothing was written"
        )
    return json_decoder(Prepared).decode(texts[0])


# -- columns ------------------------------------------------------------------------------------------


def _fields(df: DataFrame, schema: str | StructType | None) -> list[StructField]:
    kind = type_of_ddl(schema) if isinstance(schema, str) else df.schema if schema is None else schema
    if not isinstance(kind, StructType):
        raise ConfigError(
            f"{WHERE}: schema={brief(schema)} must name columns, as in 'tailnum string, flights int'"
        )
    check_unique(WHERE, kind.names)
    return list(kind.fields)


def _one(named: dict[str, StructField], name: str, what: str) -> StructField:
    if name not in named:
        raise ConfigError(
            f"{WHERE}: column {brief(name)} of {what} is missing; the columns are {', '.join(named)}"
            f"{did_you_mean(name, named)}"
        )
    return named[name]


def _ordered(field: StructField) -> StructField:
    if not is_ordered(field):
        raise ConfigError(
            f"{WHERE}: order_by column {field.name} is {field.dataType.simpleString()}, which Python does not"
            " order as Spark does: order by a number, text, date or time, or write by foreachBatch"
        )
    return field


def _value(
    keys: Sequence[StructField],
    others: Sequence[StructField],
    named: dict[str, StructField],
    value: str | None,
) -> tuple[SparkColumn, TableSchema]:
    of_key = tuple(map(schema_column, keys))
    if value is None:
        for field in others:
            check_value_type(WHERE, field)
        return json_value(others), TableSchema(of_key, tuple(map(schema_column, others)))
    field = _one(named, value, "value")
    if not isinstance(field.dataType, StringType | BinaryType):
        shown = field.dataType.simpleString()
        raise ConfigError(f"{WHERE}: value column {value} is {shown}; it must be binary or string")
    return bytes_value(value), TableSchema(of_key, (schema_column(field),), "bytes", UNSET)


def _typed(fields: Sequence[StructField], stored: SparkColumn) -> SparkColumn:
    """Return the column, which fails where a column has another type than ``schema`` says.

    Spark's optimiser knows the answer without a row. The message names no class: Spark prints the plan in the
    text of every error of the query, and ``cause`` would find it there.
    """
    actual = functions.concat_ws(", ", *(functions.typeof(column(field.name)) for field in fields))
    named = ", ".join(field.dataType.simpleString() for field in fields)
    names = ", ".join(field.name for field in fields)
    wrong = functions.concat(
        functions.lit(
            "prepare was called with a schema that has other types than the"
            f" rows: {names} are {named} there, and in the rows "
        ),
        actual,
        functions.lit(". Nothing was written; name the types of the rows, or cast the columns first\n"),
    )
    return functions.when(actual == functions.lit(named), stored).otherwise(functions.raise_error(wrong))


def _tasks(df: DataFrame, parallelism: int | None) -> int:
    if parallelism is None:
        session: Any = df.sparkSession
        if hasattr(session, "_jsparkSession"):
            return int(session.sparkContext.defaultParallelism)
        return int(session.conf.get("spark.sql.shuffle.partitions"))
    argument: object = parallelism
    if not isinstance(argument, int) or isinstance(argument, bool) or argument < 1:
        raise ConfigError(f"{WHERE}: parallelism is {brief(argument)}; it must be a whole number, 1 or more")
    return argument


# -- rows to their tasks ------------------------------------------------------------------------------


def _placed(
    rows: DataFrame, key: SparkColumn, order: Sequence[StructField], stored: SparkColumn, prepared: Prepared
) -> DataFrame:
    names = [f"o{number}" for number in range(len(order))]
    columns = [column(field.name).alias(name) for field, name in zip(order, names, strict=True)]
    keyed = rows.select(key.alias("k"), functions.lit(0).alias("t"), *columns, stored.alias("v"))
    keyed = keyed.withColumn("g", key_group(functions.col("k"), prepared.key_groups))
    placed = keyed.select(place().alias(PLACE), "k", *names, "v")
    binary, long = BinaryType(), LongType()
    kinds = [StructField(name, field.dataType) for field, name in zip(order, names, strict=True)]
    out = StructType(
        [
            StructField(PLACE, long),
            StructField("k", binary),
            *(kinds or [StructField(ORDER, long)]),
            StructField("v", binary),
        ]
    )
    tasks, no_table = prepared.parallelism, (1 << TABLE_BITS) - 1
    groups = [groups_of(task, tasks, prepared.key_groups).start for task in range(tasks)]
    readers = {PLACE: [(group << TABLE_BITS | no_table) << HASH_BITS for group in groups]}
    sent = marked(placed, "rows", readers, kind=out, numbered="" if kinds else ORDER)
    owner = task_of(group_at(PLACE), prepared.parallelism, prepared.key_groups)
    dealt = repartition_by_id(sent, prepared.parallelism, owner)
    known = {PREPARED: msgspec.json.encode(prepared).decode()}
    shown = [functions.col(n).alias(n, metadata=known) if n == "k" else functions.col(n) for n in out.names]
    return dealt.select(*shown)


def newer_column(prepared: Prepared) -> Column | None:
    """Return the column of ``newer_by``; None: there is none."""
    return next((each for each in prepared.schema.value if each.name == prepared.newer_by), None)
