"""Spark's simple names of types (``map<date,int>``), parsed, and as a JSON tree. Pure functions only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias


class Array(NamedTuple):
    """The type of an array."""

    element: Type


class Map(NamedTuple):
    """The type of a map."""

    key: Type
    value: Type


class Struct(NamedTuple):
    """The type of a struct: its fields' types by name."""

    fields: Mapping[str, Type]


Type: TypeAlias = str | Array | Map | Struct
"""A parsed type; one without parts is its text."""


def parse(text: str) -> Type:
    """Parse a type that a table's column has (``kind_of`` in values/kinds.py checks it)."""
    kind, rest = _read(text)
    assert not rest, f"{text!r} is not a type"
    return kind


def _read(text: str) -> tuple[Type, str]:
    if text.startswith("array<"):
        element, rest = _read(text[len("array<") :])
        return Array(element), rest[1:]
    if text.startswith("map<"):
        key, rest = _read(text[len("map<") :])
        value, rest = _read(rest[1:].lstrip())
        return Map(key, value), rest[1:]
    if text.startswith("struct<"):
        return _read_struct(text[len("struct<") :])
    end = next((index for index, char in enumerate(text) if char in ",>("), len(text))
    if text[end : end + 1] == "(":
        end = text.index(")", end) + 1
        end += next((index for index, char in enumerate(text[end:]) if char in ",>"), len(text) - end)
    return text[:end].replace(" ", "") if text.startswith("decimal") else text[:end].strip(), text[end:]


def _read_struct(rest: str) -> tuple[Type, str]:
    fields: dict[str, Type] = {}
    while not rest.startswith(">"):
        name, _, rest = rest.partition(":")
        fields[name], rest = _read(rest)
        rest = rest.removeprefix(",")
    return Struct(fields), rest[1:]


def text_of(kind: Type) -> str:
    """Write a type as Spark's simple names do."""
    match kind:
        case Array(element):
            return f"array<{text_of(element)}>"
        case Map(key, value):
            return f"map<{text_of(key)},{text_of(value)}>"
        case Struct(fields):
            return f"struct<{','.join(f'{name}:{text_of(part)}' for name, part in fields.items())}>"
        case _:
            return kind


def is_nested(text: str) -> bool:
    """Return whether a type contains others."""
    return "<" in text


TREE_NAMES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}
"""The names in Spark's JSON of types that differ from simple names."""


def tree_of(kind: Type) -> Any:
    """Return the type as Spark's ``DataType.jsonValue`` gives it; everything inside may be null.

    >>> tree_of(parse("map<date,int>"))
    {'type': 'map', 'keyType': 'date', 'valueType': 'integer', 'valueContainsNull': True}
    """
    match kind:
        case Array(element):
            return {"type": "array", "elementType": tree_of(element), "containsNull": True}
        case Map(key, value):
            both = {"keyType": tree_of(key), "valueType": tree_of(value)}
            return {"type": "map", **both, "valueContainsNull": True}
        case Struct(fields):
            parts = [
                {"name": name, "type": tree_of(part), "nullable": True, "metadata": {}}
                for name, part in fields.items()
            ]
            return {"type": "struct", "fields": parts}
        case _:
            return TREE_NAMES.get(kind, kind)
