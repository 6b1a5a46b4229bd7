"""Stored keys as Arrow columns, checked to be exactly what ``encode_key`` writes.

No Python runs per row. Pure functions only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.keys.groups import TIME_LIMITS, decimal_parts, decimal_pattern

LENGTH_DIGITS_MAX = 6
"""A part of a key takes at most 32 KiB: a netstring's length has few digits."""
CASTS = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
}
TIME_TYPES = {"timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}


class KeyColumn(Protocol):
    """A column of a key: its name and its type."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...


def key_columns(keys: Any, columns: Sequence[KeyColumn]) -> list[tuple[str, Any]]:
    """Return the key columns of an Arrow binary array of keys, by name.

    Raises: ValueError (which includes some of Arrow's errors), a key is not one that ``encode_key``
    makes of values of these types.
    """
    parts = parts_of(keys, len(columns))
    named_values = [
        (column.name, _values(part, column.type)) for column, part in zip(columns, parts, strict=True)
    ]
    if len(columns) > 1 and not pc.all(pc.equal(_joined(parts), keys), min_count=0).as_py():
        raise ValueError("the length of a part is not written as a number is")
    return named_values


def _values(part: Any, kind: str) -> Any:
    """Parse the column's values from their texts."""
    if kind == "binary":
        return part
    text = part.cast(pa.string())
    if kind == "string":
        return text
    if kind in TIME_TYPES:
        microseconds = _values(part, "bigint")
        if not pc.all(is_python_time(microseconds), min_count=0).as_py():
            raise ValueError("it is not of the years 1 to 9999")
        return microseconds.cast(TIME_TYPES[kind])
    values = text if kind not in CASTS else text.cast(CASTS[kind])
    if kind in CASTS:
        same = pc.equal(values.cast(pa.string()), text)
        if kind == "date":  # Arrow has a year 0, Python has not
            same = pc.and_(same, pc.greater_equal(text, "0001"))
        if not pc.all(same, min_count=0).as_py():
            raise ValueError(f"it is not written as a key of type {kind} is")
        return values
    looks_like = decimal_pattern(kind).fullmatch
    if not all(map(looks_like, text.to_pylist())):  # Arrow ends the process at some other texts
        raise ValueError(f"it is not written as a key of type {kind} is")
    return text.cast(pa.decimal128(*decimal_parts(kind)))


def is_python_time(microseconds: Any) -> Any:
    """Return whether each of these microseconds since 1970 is of the years 1 to 9999."""
    first, end = TIME_LIMITS
    return pc.and_(pc.greater_equal(microseconds, first), pc.less(microseconds, end))


# -- keys of several columns --------------------------------------------------------------------------


def parts_of(keys: Any, count: int) -> list[Any]:
    """Return the text of each key column. Raises: ValueError: some key does not have ``count`` parts."""
    return [keys] if count == 1 else _netstrings(keys, count)


def _netstrings(keys: Any, count: int) -> list[Any]:
    """Split composite keys column by column. Raises: ValueError: some key is not ``count`` netstrings."""
    rows = len(keys)
    offsets = np.frombuffer(keys.buffers()[1], np.int32, rows + 1, keys.offset * 4).astype(np.int64)
    data = keys.buffers()[2]
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    content = np.append(content, np.zeros(1, np.uint8))  # so that one position after the end can be read
    pos, ends = offsets[:-1].copy(), offsets[1:]
    parts = []
    for _ in range(count):
        lengths = np.zeros(rows, np.int64)
        for _ in range(LENGTH_DIGITS_MAX + 1):
            chars = content[np.minimum(pos, len(content) - 1)]
            digit = (chars >= ord("0")) & (chars <= ord("9")) & (pos < ends)
            if not digit.any():
                break
            lengths = np.where(digit, lengths * 10 + chars - ord("0"), lengths)
            pos = pos + digit
        starts = pos + 1
        pos = starts + lengths
        if (pos >= ends).any() or (content[starts - 1] != ord(":")).any() or (content[pos] != ord(",")).any():
            raise ValueError("a key is not made of netstrings")
        parts.append(_slices(content, starts, lengths))
        pos = pos + 1
    if (pos != ends).any():
        raise ValueError("a key has more parts than the table's key has columns")
    return parts


def _slices(content: Any, starts: Any, lengths: Any) -> Any:
    """Return a binary array of the content's slices, by start and length."""
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(content[places].tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def _joined(parts: Sequence[Any]) -> Any:
    """Return the concatenated netstrings of the parts."""
    pieces = []
    for part in parts:
        pieces += [pc.binary_length(part).cast(pa.string()).cast(pa.binary()), b":", part, b","]
    return pc.binary_join_element_wise(*pieces, b"")
