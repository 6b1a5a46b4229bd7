"""Predicates over all values in a column, also inside arrays, maps and structs."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import NamedTuple

from pyspark.sql import Column, functions, types


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
