"""The JVM's part of a reduce before the rows are staged: one row per key."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, functions, types

from tidegate.spark.calls.columns import column, json_value
from tidegate.spark.state.reduce import ReducedColumn
from tidegate.wal.value_flags import UNUSABLE

_KEY, _ORDER = "tidegate key", "tidegate order"
"""Columns beside a user's own while rows are grouped."""


def reduced_rows(
    rows: DataFrame, key: Column, order: Sequence[Column], reduced: Sequence[ReducedColumn]
) -> tuple[DataFrame, Column, Column]:
    """Group the rows by key; return them, the key's column, and the stored value: the batch's own
    aggregates.
    """
    ordering = functions.struct(*order)
    ordered = rows.select(
        key.alias(_KEY), ordering.alias(_ORDER), *(column(c.name).alias(c.name) for c in reduced)
    )
    overflows = [_overflows(c).alias(f"{_KEY}{n}") for n, c in enumerate(reduced) if c.reducer == "sum"]
    grouped = ordered.groupBy(_KEY).agg(*(_aggregate(c) for c in reduced), *overflows)
    stored = json_value([_field(c) for c in reduced])
    for place, reduced_by in enumerate(reduced):
        if reduced_by.reducer == "sum":
            mark = functions.lit(UNUSABLE + reduced_by.name.encode())
            stored = functions.when(functions.col(f"{_KEY}{place}"), mark).otherwise(stored)
    return grouped, functions.col(_KEY), stored


def _field(reduced: ReducedColumn) -> types.StructField:
    """Return the aggregate's column with the type that its JSON needs: only texts and times matter."""
    looked_at = {"string": types.StringType(), "date": types.DateType(), "timestamp": types.TimestampType()}
    return types.StructField(reduced.name, looked_at.get(reduced.type, types.LongType()))


def _aggregate(reduced: ReducedColumn) -> Column:
    """Return the batch's own aggregate of a column, nulls skipped, named as the column."""
    source = column(reduced.name)
    # ties in the order are broken by the value, so that any replay agrees (T44)
    ordered = functions.when(source.isNotNull(), functions.struct(functions.col(_ORDER), source))
    match reduced.reducer:
        case "sum":
            result = functions.try_sum(source)
        case "count":
            result = functions.count(source)
        case "min":
            result = functions.min(source)
        case "max":
            result = functions.max(source)
        case "first":
            result = functions.min_by(source, ordered)
        case _:
            result = functions.max_by(source, ordered)
    return result.cast(reduced.type).alias(reduced.name)


def _overflows(reduced: ReducedColumn) -> Column:
    """Return whether the batch's own sum of this column overflows: with ANSI mode or without, never
    a wrong sum.
    """
    source = column(reduced.name)
    return (functions.count(source) > 0) & functions.try_sum(source).isNull()
