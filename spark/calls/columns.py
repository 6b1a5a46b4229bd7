"""Keys, key groups and values as Spark columns: the JVM does the work per row.

The bytes are those of ``tidegate.keys.groups`` in Python; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, functions, types

from tidegate.spark.calls.column_cache import cached
from tidegate.spark.calls.nested import (
    Leaf,
    has_time_keys,
    holds,
    may_hold,
    micros,
    repeats_time_key,
    with_text_keys,
)
from tidegate.spark.session.releases import text_of, valid_utf8
from tidegate.wal.record import Column as SchemaColumn
from tidegate.wal.staging.last_per_key import HASH_BITS, TABLE_BITS
from tidegate.wal.staging.spec import StageSpec
from tidegate.wal.value_flags import DELETE, NO_TIME, NOT_TEXT, UNUSABLE, VALUE

JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "dateFormat": "yyyy-MM-dd",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
"""The options of ``to_json``, independent of the session: docs/storage-format.md."""

ONE_ENTRY = "keep one entry of each key where the map is made, or filter such rows out"


def has_collation(kind: types.DataType) -> bool:
    """Whether texts of this type that differ in their bytes may be equal."""
    collation = getattr(kind, "collation", "UTF8_BINARY")
    return isinstance(kind, types.StringType) and collation != "UTF8_BINARY"


def column(name: str) -> Column:
    """Return the column of exactly this name, dots included."""
    return cached(functions.col, "`" + name.replace("`", "``") + "`")


def schema_column(field: types.StructField) -> SchemaColumn:
    """Return a field's name and Spark's simple name of its type."""
    return SchemaColumn(field.name, field.dataType.simpleString())


def key_bytes(fields: Sequence[types.StructField]) -> Column:
    """Return the key's bytes; null when any key column is null (refused while staging)."""
    return cached(_key_bytes, *fields)


def _key_bytes(*fields: types.StructField) -> Column:
    parts = [_part(field) for field in fields]
    if len(parts) == 1:
        return parts[0]
    pieces = []
    for part in parts:
        length = functions.octet_length(part).cast("string").cast("binary")
        pieces += [length, functions.lit(b":"), part, functions.lit(b",")]
    return _joined(*pieces)


def _part(field: types.StructField) -> Column:
    value = column(field.name)
    if isinstance(field.dataType, types.BinaryType):
        return value
    if isinstance(field.dataType, types.TimestampType | types.TimestampNTZType):
        value = micros(field.dataType, value)
    return text_of(value).cast("binary")


def key_group(key: Column, key_groups: int, stride: int | Column = 1) -> Column:
    """Return ``xxh64(key, seed 42) mod key_groups`` over the unsigned hash; Spark's is signed.

    It is rounded down to a multiple of the table's stride.
    """
    signed = functions.xxhash64(key)
    group = functions.pmod(signed, functions.lit(key_groups).cast("bigint"))
    wrapped = 2**64 % key_groups
    if wrapped:
        shifted = functions.pmod(group + functions.lit(wrapped), functions.lit(key_groups).cast("bigint"))
        group = functions.when(signed < 0, shifted).otherwise(group)
    if isinstance(stride, Column) or stride > 1:
        group = group - group % stride
    return group.cast("int")


def place() -> Column:
    """Return key group, table and a part of the key's hash as one bigint, as ``last_per_key.place_of``.

    Rows are sorted by it. Spark sorts by a single number with a radix sort, without comparisons of
    rows.
    """
    group = functions.shiftleft(functions.col("g").cast("bigint"), TABLE_BITS + HASH_BITS)
    table = functions.col("t").cast("bigint").bitwiseAND(_mask(TABLE_BITS))  # a mark's is -1
    low = functions.xxhash64("k").bitwiseAND(_mask(HASH_BITS))
    return group.bitwiseOR(functions.shiftleft(table, HASH_BITS)).bitwiseOR(low)


def _mask(bits: int) -> Column:
    return functions.lit((1 << bits) - 1).cast("bigint")


def group_at(place: str) -> Column:
    """Return the key group of a place."""
    return functions.shiftright(place, TABLE_BITS + HASH_BITS)


def output_changes(output: DataFrame, call: int, spec: StageSpec) -> DataFrame:
    """Convert users' functions' output (``OUTPUT_DDL``) to the rows of one call for staging."""
    stride: int | Column = 1
    if any(each > 1 for each in spec.strides):  # by the index of the table; a mark has its key group
        stride = functions.get(functions.lit(list(spec.strides)), functions.col("t"))
    return output.select(
        "k",
        "t",
        functions.lit(call).alias("c"),
        functions.col("a").alias(f"o{call}_0"),
        functions.col("n").alias(f"o{call}_1"),
        "v",
        functions.coalesce("g", key_group(functions.col("k"), spec.key_groups, stride)).alias("g"),
    )


def task_of(group: Column, parallelism: int, key_groups: int) -> Column:
    """Return the task that owns a key group: ``group * parallelism // key_groups``."""
    owner = functions.floor(group.cast("bigint") * parallelism / functions.lit(key_groups))
    return owner.cast("int")


def json_value(
    fields: Sequence[types.StructField], flags: bytes = VALUE, stored: Mapping[str, str] | None = None
) -> Column:
    """Return a stored value: ``+`` (or other flags) and the JSON object of these columns.

    ``stored`` has the fields of renamed columns, by their names.
    JSON cannot hold text that is not UTF-8: with such a text the flags are ``NOT_TEXT``. Python has
    the years 1 to 9999 only: with a date or time of another year they are ``NO_TIME``. A row with a map that
    has a date or time twice as a key is ``unusable``.
    """
    names = tuple((stored or {}).get(field.name, field.name) for field in fields)
    return cached(_json_value, flags, names, *fields)


def _json_value(flags: bytes, names: tuple[str, ...], *fields: types.StructField) -> Column:
    if not fields:
        return functions.lit(flags + b"{}")
    columns = [with_text_keys(f.dataType, column(f.name)) for f in fields]
    named = [each.alias(name) for each, name in zip(columns, names, strict=True)]
    text = functions.to_json(functions.struct(*named), JSON_OPTIONS)
    lead = functions.lit(flags)
    if any(may_hold(f.dataType, NO_TIMES) for f in fields):
        lead = functions.when(_no_time(fields), functions.lit(NO_TIME)).otherwise(lead)
    if any(may_hold(f.dataType, NO_UTF8) for f in fields):
        lead = functions.when(_no_text(fields), functions.lit(NOT_TEXT)).otherwise(lead)
    stored = _joined(lead, text.cast("binary"))
    timed = [f for f in fields if has_time_keys(f.dataType)]
    if not timed:
        return stored
    as_read = functions.to_json(functions.struct(*(column(f.name) for f in fields)), JSON_OPTIONS)
    bad = _joined(functions.lit(VALUE), as_read.cast("binary"))
    repeats = [
        (repeats_time_key(f.dataType, column(f.name)), f"a map in column {f.name} of its value")
        for f in timed
    ]
    twice = [(condition, f"{what} has a key twice", ONE_ENTRY) for condition, what in repeats]
    return functions.when(
        reduce(or_, [condition for condition, *_ in twice]), unusable_where(twice, bad)
    ).otherwise(stored)


def _no_text(fields: Sequence[types.StructField]) -> Column:
    """Return whether some text in these columns is not UTF-8.

    Separate checks of a hundred texts would take longer to plan than a small batch runs: they are
    checked as one text, with a character in between.
    """
    texts = [field for field in fields if NO_UTF8.is_one(field.dataType)]
    others = [f for f in fields if may_hold(f.dataType, NO_UTF8) and not NO_UTF8.is_one(f.dataType)]
    lost = [holds(f.dataType, column(f.name), NO_UTF8) for f in others]
    if texts:
        together = functions.concat_ws("\n", *(column(f.name).cast("string") for f in texts))
        lost.append(~valid_utf8(together))
    return reduce(or_, lost)


def _no_time(fields: Sequence[types.StructField]) -> Column:
    """Return whether some date or time in these columns is not of the years 1 to 9999.

    Columns of one type are checked as one, as texts are.
    """
    lost = []
    for kind in YEARS:
        same = [column(f.name) for f in fields if type(f.dataType) is kind]
        if len(same) > 1:
            lost.append(_outside(kind, functions.least(*same), functions.greatest(*same)))
        elif same:
            lost.append(_outside(kind, same[0], same[0]))
    nested = [f for f in fields if may_hold(f.dataType, NO_TIMES) and type(f.dataType) not in YEARS]
    return reduce(or_, lost + [holds(f.dataType, column(f.name), NO_TIMES) for f in nested])


YEARS: dict[type[types.DataType], tuple[str, str]] = {
    types.DateType: ("DATE'0001-01-01'", "DATE'+10000-01-01'"),
    types.TimestampType: ("TIMESTAMP_LTZ'0001-01-01T00:00:00Z'", "TIMESTAMP_LTZ'+10000-01-01T00:00:00Z'"),
    types.TimestampNTZType: ("TIMESTAMP_NTZ'0001-01-01T00:00:00'", "TIMESTAMP_NTZ'+10000-01-01T00:00:00'"),
}
"""The first value that Python has of each type, and the first after its last one."""


def _outside(kind: type[types.DataType], first: Column, last: Column) -> Column:
    begin, end = YEARS[kind]
    return (first < functions.expr(begin)) | (last >= functions.expr(end))


NO_TIMES = Leaf(lambda kind: type(kind) in YEARS, lambda kind, col: _outside(type(kind), col, col), keys=True)
"""Dates and times that Python cannot represent."""


NO_UTF8 = Leaf(
    lambda kind: isinstance(kind, types.StringType),
    lambda _, col: ~valid_utf8(col),
    keys=True,
)
"""Texts that are not UTF-8."""


def bytes_value(name: str) -> Column:
    """Return a stored value: ``+`` and the column's bytes."""
    return cached(_bytes_value, name)


def _bytes_value(name: str) -> Column:
    return _joined(functions.lit(VALUE), column(name).cast("binary"))


def _joined(*pieces: Column) -> Column:
    """Concatenate bytes, also where ``spark.sql.function.concatBinaryAsString`` turns them into text."""
    return functions.concat(*pieces).cast("binary")


def delete_marker() -> Column:
    """Return a stored delete marker."""
    return cached(functions.lit, DELETE)


def unusable_where(causes: Sequence[tuple[Column, str, str]], stored: Column) -> Column:
    """Return a stored value, which staging refuses, or sets aside, where one of the conditions is true.

    ``causes`` are conditions, each with its reason and advice; the first one that is true counts. The value
    is used once, so that the plan's size does not double.
    """
    lead: Column | None = None
    for condition, why, advice in causes:
        reason = b"".join(text.replace("\0", " ").encode() + b"\0" for text in (why, advice))
        mark = functions.lit(UNUSABLE + reason)
        lead = functions.when(condition, mark) if lead is None else lead.when(condition, mark)
    return stored if lead is None else _joined(lead.otherwise(functions.lit(b"")), stored)


def unless_deleted(deletes: Column, stored: Column) -> Column:
    """Return a stored value, or a delete marker where ``deletes`` is true."""
    true = functions.coalesce(deletes, functions.lit(False))  # noqa: FBT003
    return functions.when(true, delete_marker()).otherwise(stored)
