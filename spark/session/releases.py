"""The differences between the releases of Spark that a sink runs on: 3.5 to 4.3."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

from tidegate.spark.errors import Py4JError

try:
    from pyspark import SparkContext
except ImportError:  # the client of Spark Connect alone

    class SparkContext:  # type: ignore[no-redef]
        _jvm = None


try:
    from pyspark.util import _load_from_socket as load_from_socket
except ImportError:  # 3.5
    from pyspark.rdd import _load_from_socket as load_from_socket  # type: ignore[import-not-found, no-redef]

__all__ = [
    "SparkContext",
    "arrow_schema_of",
    "load_from_socket",
    "repartition_by_id",
    "text_of",
    "type_of_ddl",
    "valid_utf8",
    "with_option",
]

NOT_TAKEN = (PySparkException, Py4JError, RecursionError)
"""The errors of a text that Spark does not take as SQL; where it is no Unicode, 3.5 raises the last one."""
SEED = np.uint32(42)


# -- rows to the partition of a number: Spark 4.1 has `repartitionById` -------------------------------


def repartition_by_id(rows: DataFrame, partitions: int, number: Column) -> DataFrame:
    """Send each row to the partition whose number it names.

    Before 4.1 Spark only sends rows by a hash. So each number is replaced by a value that is hashed to it.
    """
    if hasattr(DataFrame, "repartitionById"):
        return rows.repartitionById(partitions, number)
    values = ", ".join(map(str, values_for(partitions)))
    return rows.repartition(partitions, functions.get(functions.expr(f"array({values})"), number))


@lru_cache(maxsize=64)
def values_for(partitions: int) -> tuple[int, ...]:
    """Return for each partition the smallest int that ``repartition`` sends there."""
    values = np.full(partitions, -1, np.int64)
    begin = 0
    while (values < 0).any():
        ints = np.arange(begin, begin + 16 * partitions, dtype=np.uint32)
        place, first = np.unique(hash_of_ints(ints).astype(np.int64) % partitions, return_index=True)
        new = values[place] < 0
        values[place[new]] = ints[first[new]]
        begin += 16 * partitions
    return tuple(values.tolist())


def hash_of_ints(ints: Any) -> Any:
    """Return Spark's hash of ints (``uint32``), as ``int32``: MurmurHash3_x86_32 of 4 bytes, with seed 42."""

    def rotated(value: Any, by: int) -> Any:
        return (value << np.uint32(by)) | (value >> np.uint32(32 - by))

    mixed = rotated(ints * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    mixed = rotated(SEED ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    mixed = mixed ^ np.uint32(4)
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return (mixed ^ (mixed >> np.uint32(16))).astype(np.int32)


# -- columns and types: functions since Spark 4.0 -----------------------------------------------------


def text_of(value: Column) -> Column:
    """Return ``try_cast(value AS STRING)``: decimals in plain digits, with ANSI mode or without.

    A cast without ANSI mode writes a small decimal as ``1.00E-7``, and keys would have other bytes.
    """
    any_release: Any = value
    if hasattr(Column, "try_cast"):
        return any_release.try_cast("string")  # type: ignore[no-any-return]
    jvm: Any = SparkContext._jvm  # noqa: SLF001
    catalyst, kinds = jvm.org.apache.spark.sql.catalyst.expressions, jvm.org.apache.spark.sql.types
    cast = catalyst.Cast(
        any_release._jc.expr(),  # noqa: SLF001
        kinds.DataType.fromDDL("string"),
        jvm.scala.Option.empty(),
        catalyst.EvalMode.TRY(),
    )
    made: Any = Column  # a class that calls make, from 4.0 on one that they do not
    return made(jvm.org.apache.spark.sql.Column(cast))  # type: ignore[no-any-return]


def valid_utf8(text: Column) -> Column:
    """Return whether a text is UTF-8. Before 4.0: whether Java's decoder replaces none of its bytes."""
    if hasattr(functions, "is_valid_utf8"):
        return functions.is_valid_utf8(text)
    return text.cast("binary") == functions.encode(text, "UTF-8")


def type_of_ddl(ddl: str) -> DataType:
    """Parse a DDL text. Raises: PySparkException: it names no type."""
    if hasattr(DataType, "fromDDL"):
        return DataType.fromDDL(ddl)
    from pyspark.sql.types import _parse_datatype_string

    return _parse_datatype_string(ddl)


# -- columns that need not be asked for --------------------------------------------------------------------


def with_columns_known(rows: DataFrame, columns: StructType) -> DataFrame:
    """Tell a client of Spark Connect the columns, so that it asks no server: a flow of a pipeline may not."""
    known: Any = rows
    if hasattr(known, "_cached_schema"):
        known._cached_schema = columns  # noqa: SLF001
    return rows


# -- the Arrow schema of Spark rows, times in UTC, with any PySpark ----------------------------------------

# PySpark 4.1 has no choice of time zone: times are UTC.
UTC = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_schema_of(schema: StructType) -> Any:
    """Return the schema in Arrow."""
    return to_arrow_schema(schema, **UTC)  # type: ignore[arg-type]


# -- an option for some jobs: before 4.3 a client of Spark Connect has no second session ------------------


@contextlib.contextmanager
def with_option(spark: SparkSession, name: str, value: str) -> Iterator[SparkSession]:
    """Give a session in which an option has a value: a new one, or this one, which gets its value back."""
    try:
        session = spark.newSession()
    except AttributeError:
        session, before = spark, spark.conf.get(name, None)
        session.conf.set(name, value)
        try:
            yield session
        finally:
            if before is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, before)
    else:
        session.conf.set(name, value)
        yield session
