"""Columns and schemas that are the same for every batch, built once, since each call into the JVM is slow.

A column refers to other columns by name. It belongs to no DataFrame and no session, only to the
JVM.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from inspect import getattr_static
from typing import Any, TypeVar

from pyspark.sql import Column, DataFrame, types

from tidegate.spark.session.releases import SparkContext

CACHED_MAX = 20_000
"""Columns: several for each column of wide rows. With fewer, none of those would be found again."""
SCHEMAS_MAX = 1_000
Made = TypeVar("Made")


def cached(make: Callable[..., Made], *arguments: Any) -> Made:
    """Return ``make(*arguments)``, which is called once per JVM for the same arguments.

    Column arguments are the same if they are one object, as cached ones are.
    """
    same = [_Same(one) if isinstance(one, Column) else one for one in arguments]
    result: Made = _cached(SparkContext._jvm, make, *same)  # noqa: SLF001 - columns are that JVM's objects
    return result


class _Same:
    """A wrapper that compares columns by identity: their own comparison builds an expression."""

    def __init__(self, column: Column) -> None:
        self.column = column

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.column is self.column

    def __hash__(self) -> int:
        return id(self.column)


@lru_cache(maxsize=CACHED_MAX)
def _cached(jvm: object, make: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ARG001
    return make(*(one.column if isinstance(one, _Same) else one for one in arguments))


_schemas: OrderedDict[object, tuple[Any, types.StructType]] = OrderedDict()


def use_cached_schema(rows: DataFrame) -> None:
    """Set ``rows.schema`` as its first use would, but from a cache where the schema was read before.

    Spark returns a schema as JSON, and a reply of the JVM longer than 8 KiB waits 40 ms (Nagle's
    algorithm against a delayed ACK): each batch of more than about 100 columns had that wait.
    """
    is_cached = isinstance(getattr_static(type(rows), "schema"), cached_property)
    place = "schema" if is_cached else "_schema"  # that of 3.5
    if vars(rows).get(place) is not None or not (is_cached or place in vars(rows)):
        return
    jvm_schema = rows._jdf.schema()  # noqa: SLF001 - two objects of the JVM are compared there
    key = SparkContext._jvm, jvm_schema.hashCode()  # noqa: SLF001
    known = _schemas.get(key)
    if known is not None and jvm_schema.equals(known[0]):
        vars(rows)[place] = types.StructType(list(known[1].fields))  # a copy, since add() changes it
        return
    _schemas[key] = jvm_schema, types.StructType(list(rows.schema.fields))
    while len(_schemas) > SCHEMAS_MAX:
        _schemas.popitem(last=False)


_analysed: OrderedDict[object, types.StructType] = OrderedDict()


def analyse(rows: DataFrame, *columns: Column) -> types.StructType:
    """Return the schema of these columns of the rows, cached by the schema of the rows.

    Raises: PySparkException, there are no such columns, or their types do not fit.
    """
    return schema_of([(rows, columns)], lambda: rows.select(*columns))  # only analysed, not run


def schema_of(
    of: Sequence[tuple[DataFrame, Sequence[Column]]], make: Callable[[], DataFrame]
) -> types.StructType:
    """Return the schema of ``make``'s result, which must depend only on these columns of these rows."""
    parts = tuple((str(rows.schema), *map(_Same, columns)) for rows, columns in of)
    key = SparkContext._jvm, parts  # noqa: SLF001
    schema = _analysed.get(key)
    if schema is None:
        schema = _analysed[key] = make().schema
        while len(_analysed) > SCHEMAS_MAX:
            _analysed.popitem(last=False)
    return schema
