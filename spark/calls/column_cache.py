"""Columns and schemas that are the same for every batch, made once: each call into the JVM takes its time.

A column names what it is made of; it belongs to no DataFrame and no session, only to the JVM.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from inspect import getattr_static
from typing import Any, TypeVar

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, types

KEPT_MAX = 1_000
Made = TypeVar("Made")


def kept(make: Callable[..., Made], *arguments: Any) -> Made:
    """``make(*arguments)``, which is called once for the same arguments, in the life of a JVM.

    Columns among the arguments are the same if they are one object: of kept ones that is so.
    """
    same = [_Same(one) if isinstance(one, Column) else one for one in arguments]
    made: Made = _kept(SparkContext._jvm, make, *same)  # noqa: SLF001 - columns are that JVM's objects
    return made


class _Same:
    """Equal to itself alone: columns make an expression when they are compared."""

    def __init__(self, column: Column) -> None:
        self.column = column

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.column is self.column

    def __hash__(self) -> int:
        return id(self.column)


@lru_cache(maxsize=KEPT_MAX)
def _kept(jvm: object, make: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ARG001
    return make(*(one.column if isinstance(one, _Same) else one for one in arguments))


_schemas: OrderedDict[object, tuple[Any, types.StructType]] = OrderedDict()


def know_schema(rows: DataFrame) -> None:
    """Makes ``rows.schema`` known, as the first use of it would, without reading one that was read before.

    Spark gives a schema as JSON, and what a call into the JVM brings waits 40 ms if it is longer than 8 KiB
    (Nagle's algorithm against a delayed ACK): so it was for each batch of more than about 100 columns.
    """
    if "schema" in vars(rows) or not isinstance(getattr_static(type(rows), "schema"), cached_property):
        return
    there = rows._jdf.schema()  # noqa: SLF001 - two objects of the JVM are compared there
    key = SparkContext._jvm, there.hashCode()  # noqa: SLF001
    known = _schemas.get(key)
    if known is not None and there.equals(known[0]):
        vars(rows)["schema"] = types.StructType(list(known[1].fields))  # their own: add() changes it
        return
    _schemas[key] = there, types.StructType(list(rows.schema.fields))
    while len(_schemas) > KEPT_MAX:
        _schemas.popitem(last=False)


_analysed: OrderedDict[object, types.StructType] = OrderedDict()


def analyse(rows: DataFrame, *columns: Column) -> types.StructType:
    """The schema of these columns of the rows. Rows of the same schema need not be asked of Spark again.

    PySparkException: there are no such columns, or their types do not fit.
    """
    return schema_of([(rows, columns)], lambda: rows.select(*columns))  # only analysed, not run


def schema_of(
    of: Sequence[tuple[DataFrame, Sequence[Column]]], make: Callable[[], DataFrame]
) -> types.StructType:
    """The schema of what ``make`` makes ``of`` these columns of these rows, always in the same way."""
    parts = tuple((str(rows.schema), *map(_Same, columns)) for rows, columns in of)
    key = SparkContext._jvm, parts  # noqa: SLF001
    found = _analysed.get(key)
    if found is None:
        found = _analysed[key] = make().schema
        while len(_analysed) > KEPT_MAX:
            _analysed.popitem(last=False)
    return found
