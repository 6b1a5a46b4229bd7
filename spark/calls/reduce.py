"""The JVM's part of a reduce before the rows are staged: one row per key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, functions, types

from tidegate.spark.calls.columns import column, json_value, unusable
from tidegate.spark.state.reduce import FLOATS, WIDER, ReducedColumn, reduced_column
from tidegate.values.evolve import evolved
from tidegate.wal.record import Column as SchemaColumn
from tidegate.wal.record import TableSchema

_KEY, _ORDER = "tidegate key", "tidegate order"
"""Columns beside a user's own while rows are grouped."""


def reduced_rows(
    rows: DataFrame,
    key: Column,
    order: Sequence[Column],
    reduced: Sequence[ReducedColumn],
    stored_names: Mapping[str, str],
) -> tuple[DataFrame, Column, Column]:
    """Group the rows by key; return them, the key's column, and the stored value: the batch's own
    aggregates. ``stored_names`` has the fields of renamed columns, by their names.
    """
    ordering = functions.struct(*order)
    ordered = rows.select(
        key.alias(_KEY), ordering.alias(_ORDER), *(column(c.name).alias(c.name) for c in reduced)
    )
    overflows = [_overflows(c).alias(f"{_KEY}{n}") for n, c in enumerate(reduced) if c.reducer == "sum"]
    grouped = ordered.groupBy(_KEY).agg(*(_aggregate(c) for c in reduced), *overflows)
    stored = json_value([_field(c) for c in reduced], stored=stored_names)
    for place, reduced_by in enumerate(reduced):
        if reduced_by.reducer == "sum":
            field = f"field {reduced_by.name} does not fit {reduced_by.type}"
            why = f"the batch's own sum of {field}: it is null here"
            overflown = functions.col(f"{_KEY}{place}")
            stored = functions.when(overflown, unusable(why, WIDER, stored)).otherwise(stored)
    return grouped, functions.col(_KEY), stored


def state_columns(
    table: str, reduced: Sequence[ReducedColumn], known: TableSchema, given: TableSchema
) -> tuple[ReducedColumn, ...]:
    """Return the fields of the state: with the table's types, which may be wider, and their stored names.

    Raises: ConfigError: a type cannot become the other, or the reducer does not support the wider one.
    """
    after = {column.name: column for column in evolved(table, known, given).schema.value}
    columns = [after[c.name] for c in reduced]
    return tuple(
        reduced_column(table, SchemaColumn(column.field, column.type), c.reducer)
        for column, c in zip(columns, reduced, strict=True)
    )


def _field(reduced: ReducedColumn) -> types.StructField:
    """Return the aggregate's column with the type that its JSON needs: only texts and times matter."""
    looked_at = {
        "string": types.StringType(),
        "date": types.DateType(),
        "timestamp": types.TimestampType(),
        "timestamp_ntz": types.TimestampNTZType(),
    }
    return types.StructField(reduced.name, looked_at.get(reduced.type, types.LongType()))


def _aggregate(reduced: ReducedColumn) -> Column:
    """Return the batch's own aggregate of a column, nulls skipped, named as the column."""
    source = column(reduced.name)
    # ties in the order are broken by the value, so that any replay agrees (T44)
    by = [functions.col(_ORDER), source, *([_sign(source)] if reduced.type in FLOATS else [])]
    ordered = functions.when(source.isNotNull(), functions.struct(*by))
    # No cast: a type's name would have the session's meaning (``spark.sql.timestampType``).
    match reduced.reducer:
        case "sum":  # a bigint, a double, or a decimal of at most 38 digits
            result = functions.try_sum(source)
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


def _overflows(reduced: ReducedColumn) -> Column:
    """Return whether the batch's own sum of this column overflows: with ANSI mode or without, never
    a wrong sum.
    """
    source = column(reduced.name)
    return (functions.count(source) > 0) & functions.try_sum(source).isNull()
