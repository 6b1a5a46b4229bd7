"""Stored keys and values as Arrow columns, by the schema of their table: no Python per row for most types.

Values whose columns are all numbers, strings, booleans, dates or timestamps are parsed by Arrow. Other
types (decimal, binary, nested ones) are decoded together by msgspec; only floats and maps inside them
cost Python for each row. No pyspark is imported here.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tidegate.errors import CorruptError
from tidegate.spark.keyed_state import TYPES, ReducedColumn, parse
from tidegate.values import SIMPLE, Values
from tidegate.wal.record import TableSchema

LENGTH_DIGITS_MAX = 6
"""A part of a key takes at most 32 KiB unless the option says more: a netstring's length has few digits."""


def ddl_of(values: Values) -> str:
    """The columns of ``Values.arrow_schema`` as Spark's DDL: the key's, then the value's. Types are those
    that readers have: text for intervals, collated strings, char and varchar.
    """
    return ", ".join(f"{_quoted(field.name)} {_ddl(field.type)}" for field in values.arrow_schema)


def _ddl(kind: Any) -> str:
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{_quoted(field.name)}: {_ddl(field.type)}' for field in kind)}>"
    if pa.types.is_list(kind):
        return f"array<{_ddl(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_ddl(kind.key_type)}, {_ddl(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return next(name for name, simple in SIMPLE.items() if simple.arrow == kind)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def columns_of(batch: Any, values: Values, where: str) -> dict[str, Any]:
    """The columns of a batch (key, value; a null value gives nulls) by name.

    CorruptError names ``where`` and the key.
    """
    keys, contents = batch.column("key"), batch.column("value")
    try:
        found = dict(_key_columns(keys, values.schema))
        beside = [column for column in values.schema.value if column.name not in found]
        if values.schema.value_format == "bytes":
            found.update({column.name: contents for column in beside})
        elif all(column.type in TYPES for column in beside):
            flat = [ReducedColumn(column.name, column.type, "last") for column in beside]
            found.update(zip([c.name for c in flat], parse(contents, flat) if flat else [], strict=True))
        else:
            rows = values.decode_all(contents)
            kinds = {field.name: field.type for field in values.arrow_schema}
            for column in beside:
                cells = [row[column.name] for row in rows]
                found[column.name] = pa.array(cells, kinds[column.name])
    except (ValueError, ArithmeticError, msgspec.MsgspecError, pa.ArrowException) as error:
        raise _which(keys, contents, values, where, error) from error
    return found


def _which(keys: Any, contents: Any, values: Values, where: str, error: Exception) -> CorruptError:
    """The row that cannot be read, found one by one."""
    for key, content in zip(keys.to_pylist(), contents.to_pylist(), strict=True):
        try:
            values.decode_key(key)
            if content is not None:
                values.decode(content)
        except CorruptError as bad:
            return CorruptError(f"{where}, key {key!r}: {bad}")
    return CorruptError(f"{where}: stored values do not fit the table's columns: {error}")


# -- keys -----------------------------------------------------------------------------------------


def _key_columns(keys: Any, schema: TableSchema) -> list[tuple[str, Any]]:
    parts = [keys] if len(schema.key) == 1 else _netstrings(keys, len(schema.key))
    return [(column.name, _part(part, column.type)) for column, part in zip(schema.key, parts, strict=True)]


def _part(part: Any, kind: str) -> Any:
    if kind == "binary":
        return part
    text = part.cast(pa.string())
    if kind.startswith("decimal("):
        precision, scale = (int(digits) for digits in kind[len("decimal(") : -1].split(","))
        return text.cast(pa.decimal128(precision, scale))
    return text if kind not in TYPES else text.cast(TYPES[kind])


def _netstrings(keys: Any, count: int) -> list[Any]:
    """The parts of composite keys, column by column. ValueError: some key is not so many netstrings."""
    rows = len(keys)
    offsets = np.frombuffer(keys.buffers()[1], np.int32, rows + 1, keys.offset * 4).astype(np.int64)
    data = keys.buffers()[2]
    content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    content = np.append(
        content, np.zeros(1, np.uint8)
    )  # so that a place just behind the end can be looked at
    at, ends = offsets[:-1].copy(), offsets[1:]
    parts = []
    for _ in range(count):
        lengths = np.zeros(rows, np.int64)
        for _ in range(LENGTH_DIGITS_MAX + 1):
            here = content[np.minimum(at, len(content) - 1)]
            digit = (here >= ord("0")) & (here <= ord("9")) & (at < ends)
            if not digit.any():
                break
            lengths = np.where(digit, lengths * 10 + here - ord("0"), lengths)
            at = at + digit
        starts = at + 1
        at = starts + lengths
        if (at >= ends).any() or (content[starts - 1] != ord(":")).any() or (content[at] != ord(",")).any():
            raise ValueError("a key is not made of netstrings")
        parts.append(_slices(content, starts, lengths))
        at = at + 1
    if (at != ends).any():
        raise ValueError("a key has more parts than the table's key has columns")
    return parts


def _slices(content: Any, starts: Any, lengths: Any) -> Any:
    """A binary array of so many bytes of the content from each start on."""
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(content[places].tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def record_batch(columns: dict[str, Any], schema: Any) -> Any:
    """A record batch of exactly this Arrow schema; columns that are missing are null."""
    rows = len(next(iter(columns.values())))
    arrays = []
    for field in schema:
        found = columns.get(field.name)
        found = pa.nulls(rows, field.type) if found is None else found
        arrays.append(found if found.type == field.type else found.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
