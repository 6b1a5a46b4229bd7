"""Predicates over all values within a column; keys of maps that are dates or times, as text."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import NamedTuple

from pyspark.sql import Column, functions, types

DAY_US = 86_400_000_000
TIMES = (types.DateType, types.TimestampType, types.TimestampNTZType)


class Leaf(NamedTuple):
    """A predicate on values that contain no others.

    ``is_one``: whether it applies to a type; ``has_it``: the predicate for one value. With ``keys``
    it also applies to the keys of maps.
    """

    is_one: Callable[[types.DataType], bool]
    has_it: Callable[[types.DataType, Column], Column]
    keys: bool


def may_hold(kind: types.DataType, leaf: Leaf) -> bool:
    """Return whether the predicate applies to some value within one of this type."""
    match kind:
        case types.StructType():
            return any(may_hold(field.dataType, leaf) for field in kind.fields)
        case types.ArrayType():
            return may_hold(kind.elementType, leaf)
        case types.MapType():
            return (leaf.keys and may_hold(kind.keyType, leaf)) or may_hold(kind.valueType, leaf)
        case _:
            return leaf.is_one(kind)


def holds(kind: types.DataType, at: Column, leaf: Leaf) -> Column:
    """Return the predicate for a value of this type, which may contain others: true, or false or null."""
    match kind:
        case types.StructType():
            inside = [(field.dataType, at.getField(field.name)) for field in kind.fields]
            return reduce(or_, [holds(*one, leaf) for one in inside if may_hold(one[0], leaf)])
        case types.ArrayType():
            element = kind.elementType
            return functions.exists(at, lambda one: holds(element, one, leaf))
        case types.MapType():
            keys, values = types.ArrayType(kind.keyType), types.ArrayType(kind.valueType)
            parts = [(keys, functions.map_keys(at))] * leaf.keys + [(values, functions.map_values(at))]
            return reduce(or_, [holds(*one, leaf) for one in parts if may_hold(one[0], leaf)])
        case _:
            return leaf.has_it(kind, at)


# -- keys of maps -----------------------------------------------------------------------------------------


def micros(kind: types.DataType, at: Column) -> Column:
    """Return the microseconds of a timestamp or timestamp_ntz since 1970; the session's zone has no part."""
    if isinstance(kind, types.TimestampNTZType):
        # A cast would pass through the session's time zone. An interval has its form from a setting.
        days = functions.datediff(at.cast(types.DateType()), functions.expr("DATE'1970-01-01'"))
        minutes = functions.hour(at) * 60 + functions.minute(at)
        within = functions.extract(functions.lit("SECOND"), at) * 1_000_000
        whole = days.cast(types.LongType()) * DAY_US + minutes * functions.lit(60_000_000).cast(
            types.LongType()
        )
        return whole + within.cast(types.LongType())
    return functions.unix_micros(at)


def has_time_keys(kind: types.DataType) -> bool:
    """Return whether a map within this type has dates or times as keys."""
    match kind:
        case types.StructType():
            return any(has_time_keys(field.dataType) for field in kind.fields)
        case types.ArrayType():
            return has_time_keys(kind.elementType)
        case types.MapType():
            return isinstance(kind.keyType, TIMES) or has_time_keys(kind.valueType)
        case _:
            return False


def repeats_time_key(kind: types.DataType, at: Column) -> Column:
    """Return whether a map within the value has a date or time twice as a key; null counts as false.

    Spark refuses such maps where it makes them, and not where it reads them: from a Parquet file, or from a
    function in Python whose local times are one instant.
    """
    match kind:
        case types.StructType():
            inside = [(field.dataType, at.getField(field.name)) for field in kind.fields]
        case types.ArrayType():
            return functions.exists(at, lambda one: repeats_time_key(kind.elementType, one))
        case types.MapType():
            inside = [(types.ArrayType(kind.valueType), functions.map_values(at))]
    parts = [repeats_time_key(*one) for one in inside if has_time_keys(one[0])]
    if isinstance(kind, types.MapType) and isinstance(kind.keyType, TIMES):
        keys = functions.map_keys(at)
        parts.append(functions.size(functions.array_distinct(keys)) < functions.size(keys))
    return reduce(or_, parts)


def with_text_keys(kind: types.DataType, at: Column) -> Column:
    """Return the value with dates and times that are keys of maps as text, in the form of values in JSON.

    ``to_json`` alone writes them as days or microseconds. Different keys have different texts. It fails on a
    map with a key twice, which ``repeats_time_key`` finds.
    """
    if not has_time_keys(kind):
        return at
    match kind:
        case types.StructType():
            fields = [with_text_keys(f.dataType, at.getField(f.name)).alias(f.name) for f in kind.fields]
            return functions.when(at.isNotNull(), functions.struct(*fields))
        case types.ArrayType():
            return functions.transform(at, lambda one: with_text_keys(kind.elementType, one))
        case types.MapType():
            values = functions.transform_values(at, lambda _, one: with_text_keys(kind.valueType, one))
            return functions.transform_keys(values, lambda key, _: _time_text(kind.keyType, key))
        case _:
            return at


def _time_text(kind: types.DataType, at: Column) -> Column:
    if not isinstance(kind, TIMES):
        return at
    if isinstance(kind, types.DateType):
        return _date_text(at)
    us = micros(kind, at)
    of_day = functions.pmod(us, functions.lit(DAY_US))
    day = functions.call_function("div", us, functions.lit(DAY_US))  # us - of_day may overflow
    day = (day - ((us < 0) & (of_day > 0)).cast("int")).cast("int")
    seconds = functions.call_function("div", of_day, functions.lit(1_000_000))
    parts = [seconds / 3_600, seconds / 60 % 60, seconds % 60, of_day % 1_000_000]
    zone = "Z" if isinstance(kind, types.TimestampType) else ""
    return functions.format_string(
        f"%sT%02d:%02d:%02d.%06d{zone}",
        _date_text(functions.date_from_unix_date(day)),
        *(functions.floor(part) for part in parts),
    )


def _date_text(day: Column) -> Column:
    """Return ``YYYY-MM-DD``. A cast would follow the calendar of ``spark.sql.legacy.timeParserPolicy``."""
    year = functions.year(day)
    sign = (
        functions.when(year > 9_999, "+").when(year < 0, "-").otherwise("")
    )  # staging refuses these years by it
    parts = functions.abs(year), functions.month(day), functions.dayofmonth(day)
    return functions.format_string("%s%04d-%02d-%02d", sign, *parts)
