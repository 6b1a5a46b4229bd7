"""Predicates over all that a column holds, within arrays, maps and structs too, as Spark SQL."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import types

Leaf = Callable[[types.DataType, str], str]
"""The predicate for a value of a type that is none of these three, by its expression; empty: it has none."""


def somewhere(kind: types.DataType, at: str, leaf: Leaf, *, keys: bool, depth: int = 0) -> str:
    """Whether what this expression gives has it somewhere; empty for a type where it cannot be.

    ``keys``: whether those of maps are looked at, too.
    """
    element = f"e{depth}"

    def within(kind: types.DataType) -> str:
        return somewhere(kind, element, leaf, keys=keys, depth=depth + 1)

    match kind:
        case types.StructType():
            fields = ((field.dataType, f"{at}.{quoted(field.name)}") for field in kind.fields)
            found = [somewhere(*field, leaf, keys=keys, depth=depth) for field in fields]
        case types.ArrayType():
            found = [_any(at, element, within(kind.elementType))]
        case types.MapType():
            of_keys = within(kind.keyType) if keys else ""
            found = [
                _any(f"map_keys({at})", element, of_keys),
                _any(f"map_values({at})", element, within(kind.valueType)),
            ]
        case _:
            return leaf(kind, at)
    return " OR ".join(f"({one})" for one in found if one)


def _any(array: str, element: str, inside: str) -> str:
    return inside and f"exists({array}, {element} -> {inside})"


def quoted(name: str) -> str:
    """A column's or a field's name in SQL."""
    return "`" + name.replace("`", "``") + "`"
