"""The JVM's part of a reduce before the rows are staged: one row per key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame, functions, types

from tidegate.spark.calls.column_cache import cached
from tidegate.spark.calls.columns import column, json_value, unusable_where
from tidegate.spark.state.reduce import FLOATS, ReducedColumn, reduced_column
from tidegate.values.evolve import evolved
from tidegate.wal.record import Column as SchemaColumn
from tidegate.wal.record import TableSchema

_KEY, _GROUP, _ORDER, _ROWS = "tidegate key", "tidegate group", "tidegate order", "tidegate rows"
"""Columns beside a user's own while rows are grouped."""
SUM_ROWS_MAX = 2**31 - 1
"""The most rows of one key in a batch with a sum: the parts of fewer rows' sums cannot overflow."""
_HALF_BITS = 32
_DIGITS_MAX = 28
"""Spark's sum of decimals has ten digits more than they have, up to 38."""
_LOW_DIGITS = 20


def reduced_rows(
    rows: DataFrame,
    key: Column,
    order: Sequence[Column],
    reduced: Sequence[ReducedColumn],
    stored_names: Mapping[str, str],
) -> tuple[DataFrame, Column, Column]:
    """Group the rows by key; return them, the key's column, and the stored value: the batch's own
    aggregates. ``stored_names`` has the fields of renamed columns, by their names.

    Sums are exact, whatever the order of the rows; they may be wider than their result's type.
    """
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    ordering = functions.struct(*order)
    ordered = rows.select(
        key.alias(_KEY), ordering.alias(_ORDER), *(column(c.name).alias(c.name) for c in reduced)
    )
    parts = [cached(_aggregates, c, kinds[c.name]) for c in reduced]
    sums = any(c.reducer == "sum" for c in reduced)
    count = [cached(_row_count)] if sums else []
    of_key = functions.col(_KEY).alias(_GROUP)  # spark.sql.retainGroupColumns may leave the key itself out
    grouped = ordered.groupBy(_KEY).agg(of_key, *(each for of_one in parts for each in of_one.parts), *count)
    results = [each for of_one in parts for each in of_one.results]
    grouped = grouped.select(functions.col(_GROUP).alias(_KEY), *results, *([_ROWS] if sums else []))
    fields = [*map(_field, reduced), *(_number(c.high[0]) for c in reduced if c.high is not None)]
    stored = json_value(fields, stored=stored_names)
    return grouped, cached(functions.col, _KEY), cached(_checked, stored) if sums else stored


class _Aggregates(NamedTuple):
    """The aggregates of one column, and the columns that are made of them afterwards."""

    parts: tuple[Column, ...]
    results: tuple[Column, ...]


def with_high_parts(
    reduced: Sequence[ReducedColumn], kinds: Mapping[str, types.DataType]
) -> tuple[ReducedColumn, ...]:
    """Return the fields, those of sums that Spark makes in two parts with the name of the other one.

    A sum of decimals of more than 28 digits has 20 digits in the low part, and the number of 10**k in the
    high one.
    """
    names, fields = {c.name for c in reduced}, []
    for each in reduced:
        kind = kinds[each.name]
        if each.reducer == "sum" and isinstance(kind, types.DecimalType) and kind.precision > _DIGITS_MAX:
            power = _LOW_DIGITS - kind.scale
            name = f"{each.name}*1E{power}"
            while name in names:
                name += "*"
            names.add(name)
            each = msgspec.structs.replace(each, high=(name, power))  # noqa: PLW2901
        fields.append(each)
    return tuple(fields)


def _row_count() -> Column:
    return functions.count(functions.lit(1)).alias(_ROWS)


def _checked(stored: Column) -> Column:
    """Return the stored value, unusable where a sum may have overflown."""
    why = f"a batch with a sum has at most {SUM_ROWS_MAX} rows of one key"
    return unusable_where([(functions.col(_ROWS) > SUM_ROWS_MAX, why, "read fewer rows in a batch")], stored)


def state_columns(
    table: str, reduced: Sequence[ReducedColumn], known: TableSchema, given: TableSchema
) -> tuple[ReducedColumn, ...]:
    """Return the fields of the state: with the table's types, which may be wider, and their stored names.

    Raises: ConfigError: a type cannot become the other, or the reducer does not support the wider one.
    """
    after = {column.name: column for column in evolved(table, known, given).schema.value}
    columns = [after[c.name] for c in reduced]
    fields = (
        reduced_column(table, SchemaColumn(column.field, column.type), c.reducer)
        for column, c in zip(columns, reduced, strict=True)
    )
    return tuple(msgspec.structs.replace(each, high=c.high) for each, c in zip(fields, reduced, strict=True))


def _field(reduced: ReducedColumn) -> types.StructField:
    """Return the aggregate's column with the type that its JSON needs: only texts and times matter."""
    looked_at = {
        "string": types.StringType(),
        "date": types.DateType(),
        "timestamp": types.TimestampType(),
        "timestamp_ntz": types.TimestampNTZType(),
    }
    return types.StructField(reduced.name, looked_at.get(reduced.type, types.LongType()))


def _number(name: str) -> types.StructField:
    return types.StructField(name, types.LongType())


def _aggregates(reduced: ReducedColumn, kind: types.DataType) -> _Aggregates:
    """Return the batch's own aggregates of a column of this type, nulls skipped."""
    if reduced.reducer == "sum":
        return _sum(reduced, kind)
    return _Aggregates((_aggregate(reduced),), (column(reduced.name),))


def _sum(reduced: ReducedColumn, kind: types.DataType) -> _Aggregates:
    """Return the exact sum: no part of it overflows with ``SUM_ROWS_MAX`` rows.

    A bigint is summed in two halves, since Spark's sum of a decimal takes several times as long.
    """
    source, name = column(reduced.name), reduced.name
    low = functions.try_sum(source).alias(name)
    if reduced.high is not None:
        high_name, power = reduced.high
        unit = functions.expr("1" + "0" * power + "BD" if power >= 0 else f"1E{power}BD")
        quotient = functions.call_function("div", source, unit).cast(types.DecimalType(18, 0))
        parts = functions.try_sum(source % unit).alias(name), functions.try_sum(quotient).alias(high_name)
        return _Aggregates(parts, (column(name), column(high_name)))
    if not isinstance(kind, types.LongType):
        return _Aggregates((low,), (column(name),))
    high_name = f"{_KEY} {name}"
    mask = functions.lit((1 << _HALF_BITS) - 1).cast(types.LongType())
    low = functions.try_sum(source.bitwiseAND(mask)).alias(name)
    high = functions.try_sum(functions.shiftright(source, _HALF_BITS)).alias(high_name)
    half = types.DecimalType(20, 0)
    total = column(high_name).cast(half) * functions.expr(f"{1 << _HALF_BITS}BD") + column(name).cast(half)
    return _Aggregates((low, high), (total.alias(name),))


def _aggregate(reduced: ReducedColumn) -> Column:
    """Return the batch's own aggregate of a column, nulls skipped, named as the column."""
    source = column(reduced.name)
    # ties in the order are broken by the value, so that any replay agrees (T44)
    by = [functions.col(_ORDER), source, *([_sign(source)] if reduced.type in FLOATS else [])]
    ordered = functions.when(source.isNotNull(), functions.struct(*by))
    # No cast: a type's name would have the session's meaning (``spark.sql.timestampType``).
    match reduced.reducer:
        case "count":
            result = functions.count(source)
        case "min" | "max" as reducer:
            result = (functions.min if reducer == "min" else functions.max)(source)
            if reduced.type in FLOATS:
                result = _with_sign(reduced, result, source)
        case "first":
            result = functions.min_by(source, ordered)
        case _:
            result = functions.max_by(source, ordered)
    return result.alias(reduced.name)


def _sign(source: Column) -> Column:
    """Return 0 and -0.0 as texts, null for other numbers. Spark's comparisons count the two as equal."""
    return functions.when(source == 0, source.cast(types.StringType()))


def _with_sign(reduced: ReducedColumn, extreme: Column, source: Column) -> Column:
    """Return the extreme, where it is a zero the one that any replay finds: -0.0 is below 0.0."""
    negative = _sign(source) == functions.lit("-0.0")
    is_negative = functions.bool_or(negative) if reduced.reducer == "min" else functions.bool_and(negative)
    # No literals: Spark's optimizer takes -0.0 and 0.0 for one, and leaves the condition out.
    zero = functions.abs(extreme)
    zero = functions.when(is_negative, functions.negative(zero)).otherwise(zero)
    return functions.when(extreme == 0, zero).otherwise(extreme)
