"""Canonical values: keys and values as JSON that is the same in every language. Pure.

``conformance/README.md`` has the table of them. A reader under test answers with canonical values, so they
are compared without the types of any language.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import json
import math
import struct
from collections.abc import Sequence
from typing import Any

from tidegate.base.extras import pa
from tidegate.errors import ConfigError
from tidegate.values.decode import OlderState, Value
from tidegate.values.key_text import parse_key
from tidegate.values.kinds import kind_of
from tidegate.wal.record import Column, TableSchema

UNCOMPARED = "not canonical"
"""The start of the form of a value that is not of its type: it equals no value."""


@functools.lru_cache(maxsize=1_000)
def arrow_of(name: str) -> Any:
    """Return the Arrow type of a Spark type. Raises: ConfigError: it is unknown."""
    return kind_of(name).arrow


def canonical_value(schema: TableSchema, value: Value | None) -> Any:
    """Return a decoded value of the table in its canonical form; None: the row is absent.

    >>> canonical_value(TableSchema((Column("id", "int"),), (Column("n", "bigint"),)), {"n": 2**60})
    {'n': '1152921504606846976'}
    """
    if value is None:
        return None
    if schema.value_format == "bytes":
        content: Any = value
        return content.hex()
    return {
        column.name: canonical(arrow_of(column.type), value.get(column.name))
        for column in columns_of(schema, value)
    }


def columns_of(schema: TableSchema, value: Value) -> tuple[Column, ...]:
    """Return the columns of a ``json`` value: those of the state version that wrote it."""
    return schema.states[value.state_version] if isinstance(value, OlderState) else schema.value


def canonical_key(types: Sequence[str], key: Any) -> list[Any]:
    """Return a decoded key in its canonical form: a list of its columns' values.

    >>> canonical_key(["string", "int"], ("EWR", 7))
    ['EWR', '7']
    """
    values = (key,) if len(types) == 1 else key
    return [canonical(arrow_of(name), value) for name, value in zip(types, values, strict=True)]


def key_of(table: str, columns: Sequence[Column], values: Any) -> Any:
    """Return the key of these canonical values. Raises: ConfigError: one is not of its column's type.

    >>> key_of("legs", [Column("origin", "string"), Column("flight", "int")], ["EWR", "7"])
    ('EWR', 7)
    """
    if not isinstance(values, list):
        raise ConfigError(f"table {table}: a key is a list of its columns' values, and {values!r} is given")
    texts = [_text(table, value, column) for value, column in zip(values, columns, strict=False)] + values[
        len(columns) :
    ]
    return parse_key(table, texts, columns)


def _text(table: str, value: Any, column: Column) -> str:
    if column.type == "boolean" and isinstance(value, bool):
        return "true" if value else "false"
    if column.type == "boolean" or not isinstance(value, str):
        raise ConfigError(f"table {table}: {value!r} is no {column.type}, the type of column {column.name}")
    return f"0x{value}" if column.type == "binary" else value


def canonical(kind: Any, value: Any) -> Any:
    """Return a value of this Arrow type in its canonical form."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: canonical(field.type, value.get(field.name)) for field in kind}
    if pa.types.is_map(kind):
        return [
            [canonical(kind.key_type, key), canonical(kind.item_type, item)] for key, item in value.items()
        ]
    if pa.types.is_list(kind):
        return [canonical(kind.value_type, item) for item in value]
    return _leaf(value)


def _leaf(value: Any) -> Any:
    match value:
        case bool() | str():
            return value
        case int():
            return str(value)
        case float():
            return _number(value)
        case decimal.Decimal():
            return f"{value:f}"
        case bytes():
            return value.hex()
        case datetime.datetime():
            text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return text if value.tzinfo is None else f"{text}Z"
        case datetime.date():
            return value.isoformat()
    raise AssertionError(f"{value!r} is of no type that a table has")


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


# -- comparing ----------------------------------------------------------------------------------------


def comparable_value(schema: TableSchema, value: Any) -> Any:
    """Return a canonical value in a form that is equal for equal values; what is none equals no value.

    Floats are compared as numbers of their width, maps in any order.

    >>> one = TableSchema((Column("id", "int"),), (Column("x", "float"),))
    >>> comparable_value(one, {"x": "0.1"}) == comparable_value(one, {"x": "0.10000000149011612"})
    True
    """
    if value is None or schema.value_format == "bytes":
        return value
    if not isinstance(value, dict):
        return [UNCOMPARED, repr(value)]
    of_state = next(
        (columns for columns in schema.states.values() if value.keys() == {c.name for c in columns}), ()
    )
    kinds = {column.name: arrow_of(column.type) for column in of_state}
    return [
        [name, comparable(kinds[name], item) if name in kinds else [UNCOMPARED, repr(item)]]
        for name, item in sorted(value.items())
    ]


def comparable_key(types: Sequence[str], key: Any) -> str:
    """Return a canonical key in a form that is equal for equal keys, as text."""
    if not isinstance(key, list) or len(key) != len(types):
        return f"{UNCOMPARED} {key!r}"
    return json.dumps([comparable(arrow_of(name), value) for name, value in zip(types, key, strict=True)])


def comparable(kind: Any, value: Any) -> Any:
    """Return a canonical value of this Arrow type in a form that is equal for equal values."""
    if value is None:
        return None
    try:
        return _comparable(kind, value)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, struct.error):
        return [UNCOMPARED, repr(value)]


def _comparable(kind: Any, value: Any) -> Any:
    if pa.types.is_struct(kind):
        if value.keys() != {field.name for field in kind}:
            raise ValueError
        return [comparable(field.type, value[field.name]) for field in kind]
    if pa.types.is_map(kind):
        pairs = [[comparable(kind.key_type, key), comparable(kind.item_type, item)] for key, item in value]
        return sorted(pairs, key=repr)
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            raise ValueError
        return [comparable(kind.value_type, item) for item in value]
    if pa.types.is_floating(kind):
        if not isinstance(value, str):
            raise ValueError
        return _of_width(float(value), kind.bit_width)
    fits = isinstance(value, bool if pa.types.is_boolean(kind) else str)
    return value if fits else [UNCOMPARED, repr(value)]


def _of_width(number: float, bits: int) -> str:
    if not math.isfinite(number):
        return _number(number)
    return struct.pack(">f" if bits == 32 else ">d", number + 0.0).hex()  # -0.0 + 0.0 is 0.0
