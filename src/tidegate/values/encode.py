"""Python values as stored values: the inverse of ``values/decode.py``. Pure functions only.

The output of ``Values.decode`` is written again, as Spark's ``to_json`` would with the options
named in docs/storage-format.md: the same escapes, Java's form of floats (where its older releases
take a digit too many, this takes the fewest), decimals with all digits of their scale.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import decimal
import functools
import json.encoder
import math
import numbers
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.base.text import brief
from tidegate.errors import BadRecordError
from tidegate.keys.groups import exact_decimal, is_time
from tidegate.values.decode import Value
from tidegate.values.kinds import kind_of
from tidegate.wal.record import Column, TableSchema

Write = Callable[[Any], str]
"""Encodes a value that is not None as JSON. Raises: ``_Unfit``, it is not of the type."""

SHOWN_MAX = 80
_TRUTHS = (bool, np.bool_)
_DECIMALS = decimal.Context()
"""The form of decimals, whatever the caller's context is."""


class _Unfit(Exception):  # noqa: N818 - becomes a BadRecordError that names the column
    """A value outside its type: its path in the column, the value, the expectation."""

    def __init__(self, value: object, expected: str, path: str = "") -> None:
        super().__init__(expected)
        self.value, self.expected, self.path = value, expected, path

    def below(self, step: str) -> _Unfit:
        return _Unfit(self.value, self.expected, step + self.path)


class Encoder:
    """An encoder of the values of one table. Created and cached by ``encoder_of``."""

    def __init__(self, schema: TableSchema) -> None:
        self._is_bytes = schema.value_format == "bytes"
        self._columns = {} if self._is_bytes else {column.name: column for column in schema.value}
        self._fields = [
            (name, f"{quoted(column.field)}:", _writer(kind_of(column.type).arrow))
            for name, column in self._columns.items()
        ]

    def encode(self, value: Value) -> bytes:
        """Encode a value, without a flags byte.

        In a ``json`` table the value is a dict; columns that it leaves out are null. Raises:
        BadRecordError that names the cause: it is no dict (in a ``bytes`` table: no bytes), has a
        column that the table does not have, or a column's value is not of its type.
        """
        if self._is_bytes:
            if not isinstance(value, bytes | bytearray | memoryview):
                raise BadRecordError(f"{kind_shown(value)} is not bytes, which the table's values are")
            return bytes(value)
        if type(value) is not dict and not isinstance(value, Mapping):
            raise BadRecordError(f"{kind_shown(value)} is not a dict by column name")
        pieces, unknown_names = [], len(value)
        for name, lead, write in self._fields:
            field = value.get(name)
            if field is not None or name in value:
                unknown_names -= 1
            try:
                pieces.append(f"{lead}null" if field is None else lead + write(field))
            except _Unfit as unfit:
                raise BadRecordError(_described(self._columns[name], unfit)) from None
        if unknown_names:
            unknown = next(name for name in value if name not in self._columns)
            known = ", ".join(self._columns) or "none"
            raise BadRecordError(f"column {brief(unknown)} is not one of the table's columns, {known}")
        return ("{" + ",".join(pieces) + "}").encode()


@functools.lru_cache(maxsize=256)
def encoder_of(schema: TableSchema) -> Encoder:
    """Return the encoder of a schema. Raises: ConfigError: a column's type is not known."""
    return Encoder(schema)


def kind_shown(value: object) -> str:
    """Format a value for messages by its type alone: errors go into logs.

    >>> kind_shown("a secret")
    'a value of type str'
    """
    return f"a value of type {type(value).__name__}"


def shown(key: object) -> str:
    """Format a key and its type, for messages."""
    text = repr(key)
    return f"{text[:SHOWN_MAX]}{'...' * (len(text) > SHOWN_MAX)} ({type(key).__name__})"


def _described(column: Column, unfit: _Unfit) -> str:
    return (
        f"column {column.name}{unfit.path} ({column.type}): {kind_shown(unfit.value)} is not {unfit.expected}"
    )


# -- types ------------------------------------------------------------------------------------


def _writer(kind: Any) -> Write:
    """Return the writer of values of this Arrow type (every column has one from ``kinds.py``)."""
    if pa.types.is_struct(kind):
        return _struct({field.name: _writer(field.type) for field in kind})
    if pa.types.is_map(kind):
        return _map(_map_key(kind.key_type), _writer(kind.item_type))
    if pa.types.is_list(kind):
        return _array(_writer(kind.value_type))
    text = _as_text(kind)
    if pa.types.is_floating(kind):
        return lambda value: digits if (digits := text(value))[-1].isdigit() else f'"{digits}"'
    if pa.types.is_date(kind):
        return lambda value: f'"{_date(value).isoformat()}"'
    if pa.types.is_timestamp(kind):
        return _aware_json if kind.tz else _naive_json
    if pa.types.is_binary(kind):
        return _binary
    return _string if pa.types.is_string(kind) else text


def _map_key(kind: Any) -> Write:
    """Return the writer of a map's keys: the text of a value within quotes."""
    write = _writer(kind)
    return write if pa.types.is_string(kind) or pa.types.is_temporal(kind) else _quoted_by(_as_text(kind))


def _quoted_by(text: Write) -> Write:
    return lambda key: f'"{text(key)}"'


def _as_text(kind: Any) -> Write:
    """Return the writer of numbers and booleans, the same for a value and for a map's key."""
    if pa.types.is_decimal(kind):
        return functools.partial(_decimal, kind.precision, kind.scale)
    if pa.types.is_integer(kind):
        return functools.partial(_integer, kind.bit_width)
    if pa.types.is_floating(kind):
        return _float if kind.bit_width == 32 else _double
    return _boolean if pa.types.is_boolean(kind) else _nothing


def _struct(fields: dict[str, Write]) -> Write:
    named = [(name, f"{quoted(name)}:", write) for name, write in fields.items()]

    def write_struct(value: Any) -> str:
        if not isinstance(value, Mapping):
            raise _Unfit(value, "a dict by field name")
        if unknown := [name for name in value if name not in fields]:
            raise _Unfit(value, f"made of the fields {', '.join(fields)} alone, it has {brief(unknown[0])}")
        return "{" + ",".join(lead + _nested(write, value.get(n), f".{n}") for n, lead, write in named) + "}"

    return write_struct


def _map(write_key: Write, write: Write) -> Write:
    def write_map(value: Any) -> str:
        if not isinstance(value, Mapping):
            raise _Unfit(value, "a dict")
        entries = [
            f"{write_key(key)}:{_nested(write, item, f'[entry {place}]')}"
            for place, (key, item) in enumerate(value.items(), 1)
        ]
        return "{" + ",".join(entries) + "}"

    return write_map


def _array(write: Write) -> Write:
    def write_array(value: Any) -> str:
        if not isinstance(value, list | tuple):
            raise _Unfit(value, "a list")
        return "[" + ",".join(_nested(write, item, f"[{place}]") for place, item in enumerate(value)) + "]"

    return write_array


def _nested(write: Write, value: Any, step: str) -> str:
    try:
        return "null" if value is None else write(value)
    except _Unfit as unfit:
        raise unfit.below(step) from None


# -- leaves -----------------------------------------------------------------------------------


_PLAIN = (1e-3, 1e7)
"""From the first to below the second, Java writes floats without an exponent."""
_LOWER_HEX = re.compile(r"\\\\|\\u00[0-9a-f]{2}")


def quoted(text: str) -> str:
    """Write a JSON string as Jackson does: control characters in capital hex, the rest unchanged."""
    escaped = json.encoder.encode_basestring(text)
    if "\\u00" in escaped:  # an escaped backslash is skipped, so that the text after it is unchanged
        escaped = _LOWER_HEX.sub(lambda m: m[0] if m[0] == "\\\\" else "\\u" + m[0][2:].upper(), escaped)
    return escaped


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise _Unfit(value, "a string")
    try:
        value.isascii() or value.encode()
    except UnicodeEncodeError:
        raise _Unfit(value, "text that UTF-8 can encode") from None
    return quoted(value)


def _binary(value: Any) -> str:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _Unfit(value, "bytes")
    return f'"{base64.b64encode(value).decode()}"'


def _boolean(value: Any) -> str:
    if not isinstance(value, _TRUTHS):
        raise _Unfit(value, "True or False")
    return "true" if value else "false"


def _nothing(value: Any) -> str:
    raise _Unfit(value, "None, the only value of void")


def _integer(bits: int, value: Any) -> str:
    try:
        if isinstance(value, _TRUTHS):
            raise TypeError
        whole = operator.index(value)
    except TypeError:
        raise _Unfit(value, "a whole number") from None
    if not -(1 << bits - 1) <= whole < 1 << bits - 1:
        raise _Unfit(value, f"within the {bits} bits of its type")
    return str(whole)


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    if not isinstance(value, numbers.Real) or isinstance(value, _TRUTHS):
        raise _Unfit(value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise _Unfit(value, "within the range of double") from None
    except TypeError:  # numpy's durations call themselves numbers
        raise _Unfit(value, "a number") from None


def _double(value: Any) -> str:
    number = _number(value)
    return _java(number, repr(number))


def _float(value: Any) -> str:
    number = _number(value)
    with np.errstate(over="ignore"):
        narrow = np.float32(number)
    if np.isinf(narrow) and math.isfinite(number):
        raise _Unfit(value, "within the range of float")
    if _PLAIN[0] <= abs(narrow) < _PLAIN[1]:
        return np.format_float_positional(narrow, unique=True, trim="0")
    return _java(float(narrow), str(narrow))


def _java(number: float, shortest: str) -> str:
    """Write as ``Double.toString``: digits as in ``shortest``, an exponent outside of 0.001 to 10 million."""
    if _PLAIN[0] <= abs(number) < _PLAIN[1] or number == 0:
        return shortest
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    mantissa, exponent = _scientific(shortest)
    if len(mantissa) == 1:  # Java has two digits at least, the nearest ones
        mantissa, exponent = _scientific(f"{number:.1e}")
    return f"{'-' * (number < 0)}{mantissa[0]}.{mantissa[1:] or '0'}E{exponent}"


def _scientific(text: str) -> tuple[str, int]:
    """Return the digits of a number, without trailing zeros, and the exponent of the first one."""
    _, digits, exponent = decimal.Decimal(text).as_tuple()
    return "".join(map(str, digits)).rstrip("0"), int(exponent) + len(digits) - 1


def _decimal(precision: int, scale: int, value: Any) -> str:
    if not isinstance(value, int | decimal.Decimal) or isinstance(value, bool):
        raise _Unfit(value, "a Decimal")
    try:
        exact = exact_decimal(decimal.Decimal(value), precision, scale)
    except decimal.DecimalException:
        raise _Unfit(value, f"exactly one of decimal({precision},{scale})") from None
    return _DECIMALS.to_sci_string(exact.copy_abs() if exact.is_zero() else exact)  # Java has no -0


def _date(value: Any) -> datetime.date:
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        raise _Unfit(value, "a date")
    return value


def _instant(value: Any) -> datetime.datetime:
    """Convert to UTC."""
    if not is_time(value) or value.utcoffset() is None:
        raise _Unfit(value, "a datetime with a time zone")
    with contextlib.suppress(OverflowError):
        moment = value.astimezone(datetime.timezone.utc)
        if is_time(moment):
            return moment
    raise _Unfit(value, "within the years 1 to 9999 in UTC")


def _naive(value: Any) -> datetime.datetime:
    if not is_time(value) or value.tzinfo is not None:
        raise _Unfit(value, "a datetime without a time zone")
    return value


def _aware_json(value: Any) -> str:
    return f'"{_instant(value).replace(tzinfo=None).isoformat(timespec="microseconds")}Z"'


def _naive_json(value: Any) -> str:
    return f'"{_naive(value).isoformat(timespec="microseconds")}"'
