"""Vectors of schemas: types with their trees, and value formats that are accepted or refused. Pure.

``TREES`` has Spark's ``DataType.jsonValue`` of each short form: ``tests/unit/spark/test_type_trees.py``.
"""

from __future__ import annotations

from typing import Any

from tidegate.errors import TidegateError
from tidegate.testing.conformance.vectors.values import decoded


def _array(of: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": of, "containsNull": True}


def _map(key: Any, of: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": of, "valueContainsNull": True}


def _struct(**fields: Any) -> dict[str, Any]:
    return _fields(fields)


def _fields(fields: dict[str, Any]) -> dict[str, Any]:
    rows = [{"name": name, "type": of, "nullable": True, "metadata": {}} for name, of in fields.items()]
    return {"type": "struct", "fields": rows}


SIMPLE = (
    *("string", "binary", "boolean", "date", "timestamp", "timestamp_ntz", "float", "double", "void"),
    *("decimal(10,2)", "decimal(38,38)", "varchar(10)", "char(3)"),
    *("interval day to second", "interval year to month", "interval hour"),
)
"""Types whose tree is their short form."""
INTEGERS = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}

TREES: dict[str, Any] = {
    **{name: name for name in SIMPLE},
    **INTEGERS,
    "array<int>": _array("integer"),
    "array<array<decimal(38,10)>>": _array(_array("decimal(38,10)")),
    "map<string,bigint>": _map("string", "long"),
    "map<date,array<double>>": _map("date", _array("double")),
    "struct<a:int,b:string>": _struct(a="integer", b="string"),
    "struct<>": _struct(),
    "struct<x y:int,UPPER:string,k\u00e9:smallint>": _fields(
        {"x y": "integer", "UPPER": "string", "k\u00e9": "short"}
    ),
    "array<struct<x:map<string,array<date>>>>": _array(_struct(x=_map("string", _array("date")))),
    "struct<t:timestamp_ntz,in:struct<m:map<decimal(10,2),interval day>>>": _struct(
        t="timestamp_ntz", **{"in": _struct(m=_map("decimal(10,2)", "interval day"))}
    ),
}
NO_TYPES = ("uint", "decimal(39,0)", "decimal", "array<int", "map<binary,int>", "struct<a>", "array<int>>")
"""Short forms that a reader refuses."""

_KEY = [{"name": "id", "type": "string"}]
_VALUE = [{"name": "n", "type": "int"}]
ACCEPTED: tuple[dict[str, Any], ...] = (
    {"key": _KEY, "value": _VALUE, "value_format": "json"},
    {"key": _KEY, "value": _VALUE, "value_format": "grouped_json"},
    {"key": _KEY, "value": [{"name": "b", "type": "binary"}], "value_format": "bytes"},
    {"key": _KEY, "value": [{"name": "b", "type": "binary"}], "value_format": "grouped_bytes"},
    {"key": _KEY, "value": [{"name": "n", "type": "int", "stored": "m"}], "value_format": "json_renamed"},
    {
        "key": _KEY,
        "value": [{"name": "n", "type": "int", "stored": "m"}],
        "value_format": "grouped_json_renamed",
    },
    {
        "key": _KEY,
        "value": [{"name": "n", "type": "int", "stored": "n@2"}],
        "value_format": "json_states",
        "state_version": 2,
        "older": [{"version": 1, "value": _VALUE}],
    },
    {"key": _KEY, "value": [], "value_format": "json"},
    {
        "key": _KEY,
        "value": _VALUE,
        "value_format": "json",
        "comment": "a field that this release does not know",
    },
)
ACCEPTED_TOO: tuple[dict[str, Any], ...] = (
    {"key": _KEY, "value": _VALUE},
    {"key": _KEY, "value": [{"name": "b", "type": "string"}], "value_format": "bytes"},
)
"""Schemas without a format, which is ``json``; and of bytes, whatever the type of the column."""
REFUSED: tuple[dict[str, Any], ...] = (
    {"key": [], "value": _VALUE, "value_format": "json"},
    {"key": _KEY, "value": [], "value_format": "bytes"},
    {"key": _KEY, "value": [{"name": "b", "type": "binary"}, *_VALUE], "value_format": "bytes"},
    {"key": _KEY, "value": _VALUE, "value_format": "json2"},
    {"key": _KEY, "value": _VALUE, "value_format": "grouped_"},
    {"key": _KEY, "value": _VALUE, "value_format": "avro"},
    {"key": _KEY, "value": _VALUE, "value_format": ""},
    *({"key": _KEY, "value": [{"name": "n", "type": name}], "value_format": "json"} for name in NO_TYPES),
)
STORED = {"bytes": b"+\x00\xff"}
"""A stored value of each format, by which a reader shows that it accepts the schema; others have ``{}``."""


def schema_vectors() -> dict[str, list[dict[str, Any]]]:
    """Return types with trees, and schemas that are accepted or refused: each with a stored value."""
    return {
        "types": [{"type": name, "tree": tree} for name, tree in TREES.items()],
        "schemas": [_vector(schema) for schema in (*ACCEPTED, *ACCEPTED_TOO, *REFUSED)],
    }


def _vector(schema: dict[str, Any]) -> dict[str, Any]:
    stored = STORED.get(schema.get("value_format", "json").removeprefix("grouped_"), b"+{}")
    vector = {"schema": schema, "stored": stored.hex(), "decided_at_us": 0}
    try:
        return {**vector, "value": decoded(schema, stored, 0)}
    except TidegateError as error:
        return {**vector, "error": type(error).__name__}
