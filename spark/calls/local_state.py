"""The first stage of a local state: rows are dealt to instances, each runs the function once.

The instance of a row is a function of the row alone, never of the partitions that Spark happened to
make: a replay is planned differently (T14). The resulting changes join the rows of all other calls,
as an update's do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions, types

from tidegate.base.names import check_name, check_own_name
from tidegate.base.text import brief
from tidegate.errors import ConfigError
from tidegate.keys.groups import KEY_GROUPS_MAX
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import shared_store
from tidegate.spark.calls.checks import check_value_type, no_dataframe
from tidegate.spark.calls.column_cache import use_cached_schema
from tidegate.spark.calls.columns import column, json_value, output_changes
from tidegate.spark.calls.records import LocalState
from tidegate.spark.calls.update import BYTES, Ddl, check_function, table_schema
from tidegate.spark.errors import told
from tidegate.spark.session.marked_runs import marked as with_marks
from tidegate.spark.session.releases import repartition_by_id
from tidegate.spark.state.local_state import LocalWork, Redistribute, Step, run_local, table_of
from tidegate.spark.state.output_rows import OUTPUT_DDL
from tidegate.spark.state.redistribution import SPLIT, UNION
from tidegate.wal.record import TableSchema

ITEM_KEY = [
    types.StructField("instance", types.IntegerType()),
    types.StructField("item", types.IntegerType()),
]


def check_local(
    name: str,
    rows: DataFrame,
    fn: Step,
    columns: Sequence[str],
    redistribute: Redistribute,
    parallelism: object = None,
) -> None:
    """Raise ConfigError if the call cannot be run. ``columns`` are those of ``by`` and ``order_by``."""
    table, where = table_of(name), f"local state {name}"
    check_function(table, fn, "local_state", "instance")
    if not _is_redistribution(redistribute):
        raise ConfigError(
            f"{where}: redistribute={brief(redistribute)}; it is 'split', 'union', or two functions"
            " (split, merge), either of which may be None"
        )
    if parallelism is not None and not _is_parallelism(parallelism):
        raise ConfigError(
            f"{where}: parallelism={brief(parallelism)}; it is the number of instances, 1 to"
            f" {KEY_GROUPS_MAX:,},"
            " or None for as many as the batch has tasks"
        )
    for field in rows.schema.fields:
        check_value_type(table, field)
    usable = _comparable(rows)
    for column_name in columns:
        if column_name not in usable:
            why = "is a map: no order, no hash" if column_name in rows.columns else "is missing"
            columns_there = ", ".join(usable) or "none"
            raise ConfigError(f"{where}: column {brief(column_name)} {why}; there are {columns_there}")
    if not usable:
        raise ConfigError(f"{where}: none of the columns has an order; add one that distinguishes the rows")


def check_rows(name: str, rows: object) -> str:
    """Return the state's table. Raises: ConfigError, the name is not allowed, or these are no rows."""
    check_name("local state", name)
    table = check_own_name("local state", name, table_of(name))
    if not isinstance(rows, DataFrame):
        raise no_dataframe(f"local state {name}", rows)
    if rows.isStreaming:
        raise ConfigError(
            f"local state {name}: this is the streaming DataFrame; use the one the function is given"
        )
    use_cached_schema(rows)
    return table


def items_schema(table: str, schema: Ddl | None) -> TableSchema:
    """Return the schema of the items: bytes, or objects of these columns. Raises: ConfigError, not
    possible.
    """
    return table_schema(table, ITEM_KEY, BYTES if schema is None else schema)


def _is_redistribution(value: object) -> bool:
    if isinstance(value, str):
        return value in (SPLIT, UNION)
    return isinstance(value, tuple) and len(value) == 2 and all(fn is None or callable(fn) for fn in value)


def _is_parallelism(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= KEY_GROUPS_MAX


# -- the stage ------------------------------------------------------------------------------------


def local_stage(call: LocalState, work: LocalWork, endpoints: Endpoints, *, marked: bool) -> DataFrame:
    """Return the function's output from its rows: (k, t, c, two order columns, v, g).

    ``marked``: the rows get marks on their way to the function.
    """
    sent = _sent_to_instances(call, work.parallelism, marked=marked)
    output = sent.mapInArrow(told(_instances(call, work, endpoints)), OUTPUT_DDL)
    return output_changes(output, work.call, work.spec)


def _sent_to_instances(call: LocalState, parallelism: int, *, marked: bool) -> DataFrame:
    """Return (i, r): rows in their instance's partition, in order, after one mark per instance.

    The marks have no row. They make every instance run and know its index, whatever the batch
    contains.
    """
    rows, usable = call.rows, _comparable(call.rows)
    hashed = functions.xxhash64(*map(column, call.by or usable))
    ordered = (*call.order_by, *(name for name in usable if name not in call.order_by))
    with_instance = rows.select(
        functions.pmod(hashed, functions.lit(parallelism).cast("bigint")).cast("int").alias("i"),
        json_value(rows.schema.fields, flags=b"").alias("r"),
        functions.struct(*map(column, ordered)).alias("o"),
    )
    if marked:
        readers = {"i": range(parallelism)}
        with_instance = with_marks(with_instance, f"rows of {call.table}", readers, value="r")
    session: SparkSession = rows.sparkSession
    marks = session.range(0, parallelism, 1, 1).select(functions.col("id").cast("int").alias("i"))
    together = with_instance.unionByName(marks, allowMissingColumns=True)
    return (
        repartition_by_id(together, parallelism, functions.col("i"))
        .sortWithinPartitions(functions.col("i"), functions.col("o").asc_nulls_first(), "r")
        .select("i", "r")
    )


def _comparable(rows: DataFrame) -> list[str]:
    """Return the columns that have an order and a hash: all but maps, and types that contain them."""
    return [field.name for field in rows.schema.fields if _has_order(field.dataType)]


def _has_order(kind: types.DataType) -> bool:
    if isinstance(kind, types.StructType):
        return all(_has_order(field.dataType) for field in kind.fields)
    if isinstance(kind, types.ArrayType):
        return _has_order(kind.elementType)
    return not isinstance(kind, types.MapType)


def _instances(
    call: LocalState, work: LocalWork, endpoints: Endpoints
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    fn, migrate = call.fn, call.migrate  # without the call's DataFrame, which stays in the driver

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        named = endpoints.namespace, work.spec.namespace
        store = shared_store(endpoints.store, *named, endpoints.store_options)
        yield from run_local(work, fn, store, batches, migrate)

    return run
