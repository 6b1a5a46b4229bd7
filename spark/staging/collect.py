"""A small batch's rows in the driver: collected by one Spark job without a shuffle, sorted by Arrow.

The columns are those of a staging task, built by the same expressions in the JVM. Key groups are
computed here, since they need the key alone. The order is Spark's, by key group, table, key, call,
the call's own order, and value: nulls first, NaN last, bytes as unsigned numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, functions, types

from tidegate.keys.groups import HASH_SEED, key_group_of_each
from tidegate.spark.calls.column_cache import cached, schema_of
from tidegate.spark.calls.columns import column
from tidegate.spark.calls.records import FUNCTION_CALLS, Call, KeyedCall
from tidegate.spark.session.jvm import ArrowBatches, NoArrowBatchesError, column_seq, filtered
from tidegate.spark.session.releases import arrow_schema_of
from tidegate.spark.session.runs import Runs
from tidegate.spark.staging.small_batches import SmallBatchPredictor
from tidegate.wal.staging.last_per_key import sorted_by_all
from tidegate.wal.staging.spec import CHANGES, StageSpec

_TEXTS = (types.StringType, types.BinaryType)
_FLOATS = (types.FloatType, types.DoubleType)
ORDERED = (
    *(types.ByteType, types.ShortType, types.IntegerType, types.LongType, types.BooleanType),
    *(types.DecimalType, types.DateType, types.TimestampType, types.TimestampNTZType),
    *(*_TEXTS, *_FLOATS),
)
"""Types whose order in Arrow is Spark's."""

BATCH_ROWS = 10_000
_INDEX_BITS = 33
"""``monotonically_increasing_id`` has the row's index in its partition below this bit, the
partition above.
"""


def collect(calls: Sequence[Call], small: SmallBatchPredictor, runs: Runs) -> Any | None:
    """Collect the rows of these calls as a whole Arrow table; None: the job must stage them.

    The plan runs once. If its result was cut, ``small`` is notified, and none of it is used. ``runs`` is
    notified of the rows.
    """
    keyed = [call for call in calls if not isinstance(call, FUNCTION_CALLS)]
    if len(keyed) < len(calls) or runs.marked:
        return None  # such functions run where Spark runs Python; Spark Connect does not count partitions
    rows, kind = _rows(keyed, small)
    if not all(map(is_ordered, kind.fields)):
        return None
    try:
        batches = ArrowBatches(rows, BATCH_ROWS)
    except NoArrowBatchesError:
        small.overflowed()  # so it is rarely tried again
        return None
    if not small.fits(batches.partitions):
        rows, kind = _rows(keyed, small)
        batches = ArrowBatches(rows, BATCH_ROWS)
        small.fits(batches.partitions)
    schema = arrow_schema_of(_as_collected(kind))
    collected = [pa.ipc.read_record_batch(pa.py_buffer(encoded), schema) for encoded in batches.collect()]
    runs.read(batches.rdd)
    table = pa.Table.from_batches(collected, schema)
    if _is_cut(table, small):
        small.overflowed()
        return None
    return table


def _rows(calls: Sequence[KeyedCall], small: SmallBatchPredictor) -> tuple[DataFrame, types.StructType]:
    """Return the rows of all calls, and their schema."""
    columns = [_columns(number, call, small.cell_bytes) for number, call in enumerate(calls)]
    parts = [
        filtered(call.rows, cached(_within, small.quota()), cached(column_seq, *of_call))
        for call, of_call in zip(calls, columns, strict=True)
    ]
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
    made_of = [(call.rows, of_call) for call, of_call in zip(calls, columns, strict=True)]
    kind = schema_of(made_of, lambda: rows)
    return _texts_cut(rows, kind, small.cell_bytes), kind


def _columns(number: int, call: KeyedCall, longest: int) -> list[Column]:
    """Return one call's columns: its number, each row's position, key, value and its order columns."""
    return [
        cached(_number, number),
        cached(_place),
        cached(_cut, call.key, "k", longest),
        cached(_cut, call.value, "v", longest),
        *(cached(Column.alias, order, f"o{number}_{place}") for place, order in enumerate(call.order)),
    ]


def _within(quota: int) -> Column:
    place = functions.monotonically_increasing_id().bitwiseAND(functions.lit((1 << _INDEX_BITS) - 1))
    return place <= quota  # one more, which shows that there were more


def _number(call: int) -> Column:
    return functions.lit(call).alias("c")


def _place() -> Column:
    return functions.monotonically_increasing_id().alias("m")


def _cut(text: Column, name: str, longest: int) -> Column:
    return functions.substring(text, 1, longest + 1).alias(name)


def is_ordered(field: types.StructField) -> bool:
    """Return whether Arrow sorts a column as Spark does."""
    kind = field.dataType
    if isinstance(kind, types.StringType) and getattr(kind, "collation", "UTF8_BINARY") != "UTF8_BINARY":
        return False
    return isinstance(kind, ORDERED)


def _texts_cut(rows: DataFrame, kind: types.StructType, longest: int) -> DataFrame:
    """Cut long texts in order columns, too, as bytes, which have the same order."""
    texts = {f.name: cached(_bytes_cut, f.name, longest) for f in kind.fields if _is_text_order(f)}
    return rows.withColumns(texts) if texts else rows


def _bytes_cut(name: str, longest: int) -> Column:
    return _cut(column(name).cast(types.BinaryType()), name, longest)


def _is_text_order(field: types.StructField) -> bool:
    return field.name.startswith("o") and isinstance(field.dataType, _TEXTS)


def _as_collected(kind: types.StructType) -> types.StructType:
    """Return the collected form of the columns: see ``_texts_cut``."""
    binary = types.BinaryType()
    return types.StructType(
        [types.StructField(f.name, binary) if _is_text_order(f) else f for f in kind.fields]
    )


def _is_cut(table: Any, small: SmallBatchPredictor) -> bool:
    places = pc.bit_wise_and(table["m"], (1 << _INDEX_BITS) - 1)
    if (pc.max(places).as_py() or 0) >= small.quota():
        return True
    for cells in table.columns:
        if (
            pa.types.is_binary(cells.type)
            and (pc.max(pc.binary_length(cells)).as_py() or 0) > small.cell_bytes
        ):
            return True
    return False


# -- sorting ----------------------------------------------------------------------------------------


def changes_of(table: Any, tables: Sequence[int], spec: StageSpec) -> Any:
    """Return the collected rows as one batch of ``CHANGES`` and the call ``c``, in order for ``stage_task``.

    ``tables`` has the index of each call's table.
    """
    keys = table["k"].combine_chunks()
    of_null = HASH_SEED % spec.key_groups  # Spark's hash of null is the seed
    groups = np.array(key_group_of_each(keys.fill_null(b"").to_pylist(), spec.key_groups), np.int32)
    groups[pc.is_null(keys).to_numpy(zero_copy_only=False)] = of_null
    indexes = np.array(tables, np.int32)[table["c"].to_numpy()]
    if spec.strides:
        groups -= groups % np.array(spec.strides, np.int32)[indexes]
    by: dict[str, Any] = {"g": pa.array(groups, pa.int32()), "t": pa.array(indexes, pa.int32()), "k": keys}
    by |= {name: table[name] for name in ("c", *_orders(table.column_names), "v")}
    rows = pa.table(by)
    of_call = pa.schema([*CHANGES, pa.field("c", pa.int32())])
    changes = rows.select(of_call.names).take(sorted_by_all(rows)).cast(of_call).combine_chunks()
    if not changes.num_rows:
        return None
    (batch,) = changes.to_batches()
    return batch


def _orders(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.startswith("o")]
