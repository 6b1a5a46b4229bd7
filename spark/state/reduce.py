"""Reducers: state at the base version combined with the batch's own part; all in Arrow columns.

Spark has reduced the batch to one row per key before; its value is the JSON of the batch's own
aggregates. For each Arrow batch the state of its keys is read in bulk, both are parsed by Arrow,
combined column by column, and written as JSON again. Nulls are skipped by every reducer, as SQL
aggregates do.

No pyspark is imported here.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from typing import Any, Literal, Protocol, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tidegate.base.decoders import json_decoder
from tidegate.base.text import brief
from tidegate.errors import BadRecordError, ConfigError, CorruptError
from tidegate.keys.groups import decimal_parts, exact_decimal
from tidegate.values.decode import cause_of
from tidegate.wal.record import UNREADABLE, Column
from tidegate.wal.staging.validate import BadRow, shown_key
from tidegate.wal.value_flags import VALUE_END

Reducer = Literal["sum", "count", "min", "max", "first", "last"]
REDUCERS: tuple[str, ...] = get_args(Reducer)

INTEGERS = {"tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64()}
FLOATS = {"float": pa.float64(), "double": pa.float64()}
SPECIAL = ("NaN", "Infinity", "-Infinity")
TEXTS = {
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
TYPES = {**INTEGERS, **FLOATS, **TEXTS, "boolean": pa.bool_()}
"""Types without parameters that Arrow parses, with their Arrow types."""
ORDERABLE = (*TYPES, "binary", "decimal(p,s)")
"""Types that min, max, first and last support."""
SUM_DIGITS = 38
"""The digits of a sum of decimals, the most that Spark and Arrow have."""
SUM_ADVICE = {
    "bigint": "cast the column to decimal(38,0), which the table's column becomes then",
    "decimal": "sum smaller groups, such as with the day in the key: a decimal has at most 38 digits",
}
"""The advice for a sum that does not fit, by the type of its result. None of it loses digits."""
_BASE64 = b"=ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_BASE64_ORDER = np.zeros(256, np.uint8)
_BASE64_ORDER[np.frombuffer(_BASE64, np.uint8)] = np.arange(len(_BASE64))

FIRST_DAY = pa.scalar("0001-01-01").cast(pa.date32())

OBJECT = json_decoder(dict[str, Any])
RAW_OBJECT = json_decoder(dict[str, msgspec.Raw])
DECIMAL = json_decoder(decimal.Decimal | None)


class ReducedColumn(msgspec.Struct, frozen=True):
    """One field of a reduced value: its name, the type of its result, its reducer.

    ``high``: the batch's own sum has another part, in the field of this name, in units of 10 to this power.
    """

    name: str
    type: str
    reducer: str
    high: tuple[str, int] | None = None


class ReduceStep(msgspec.Struct, frozen=True):
    """A table written by ``reduce`` in this batch: its index, name, start at the base, fields and key."""

    index: int
    name: str
    start: int
    columns: tuple[ReducedColumn, ...]
    key_types: tuple[str, ...]


def reduced_column(table: str, column: Column, reducer: str) -> ReducedColumn:
    """Return the field that a reducer makes of a column. Raises: ConfigError, it does not support
    that type.
    """
    if reducer not in REDUCERS:
        msg = f"table {table}: {brief(reducer)} is not a reducer; there are {', '.join(REDUCERS)}"
        raise ConfigError(msg)
    if reducer == "count":
        return ReducedColumn(column.name, "bigint", reducer)
    if reducer == "sum":
        if column.type in INTEGERS:
            return ReducedColumn(column.name, "bigint", reducer)
        if column.type in FLOATS:
            return ReducedColumn(column.name, "double", reducer)
        if _is_decimal(column.type):
            _, scale = decimal_parts(column.type)
            return ReducedColumn(column.name, f"decimal({SUM_DIGITS},{scale})", reducer)
        what = f"sum of column {column.name} ({column.type})"
        msg = f"table {table}: {what}: cast it to bigint, decimal or double"
        raise ConfigError(msg)
    if column.type not in ORDERABLE and not _is_decimal(column.type):
        msg = (
            f"table {table}: {reducer} of column {column.name} ({column.type}) is not supported; cast it to"
            f" one of {', '.join(ORDERABLE)}"
        )
        raise ConfigError(msg)
    return ReducedColumn(column.name, column.type, reducer)


def _is_decimal(kind: str) -> bool:
    return kind.startswith("decimal(")


def arrow_type(kind: str) -> Any:
    """Return the Arrow type of a field while it is combined. A binary is the base64 of its JSON there."""
    if _is_decimal(kind):
        digits, scale = decimal_parts(kind)
        return (pa.decimal128 if digits <= SUM_DIGITS else pa.decimal256)(digits, scale)
    return pa.binary() if kind == "binary" else TYPES[kind]


def reduced(stored: Any, table: ReduceStep, base_version: int, rows: Any) -> tuple[Any, list[BadRow], Any]:
    """Return stored values, the rows that have none because a sum overflows, and all rows' own values.

    The values are ``stored`` (null: no state) combined with the batch's own part in the rows' values. That
    may be wider than the type of the result: only the end has to fit.
    """
    keys, values = rows["k"], rows["v"]
    part = _parts(table, keys, pc.binary_slice(values, 1, VALUE_END))
    state = parse_state(table, keys, stored, table.columns)
    combined = []
    bad: dict[int, BadRow] = {}
    for column, ours, theirs in zip(table.columns, state, part, strict=True):
        try:
            combined.append(combine(column.reducer, ours, theirs))
        except pa.ArrowInvalid:
            why = (
                f"the {column.reducer} of field {column.name} of this batch and the state at version"
                f" {base_version} does not fit {column.type}"
            )
            advice = SUM_ADVICE[column.type.partition("(")[0]]
            too_large = _too_large(column.reducer, ours, theirs)
            bad |= {row: BadRow(row, why, advice) for row in too_large if row not in bad}
            fits = np.ones(len(keys), dtype=bool)
            fits[too_large] = False
            combined.append(combine(column.reducer, ours, pc.if_else(pa.array(fits), theirs, None)))
    own = format_values(table.columns, part) if bad else values
    return format_values(table.columns, combined), [bad[row] for row in sorted(bad)], own


def _parts(table: ReduceStep, keys: Any, values: Any) -> list[Any]:
    """Return the batch's own part of each field; sums that are wider than their type as wide decimals."""
    if not any(column.high for column in table.columns):
        try:
            return parse(values, table.columns)
        except pa.ArrowInvalid:
            pass  # a sum is wider, or some value is named below
    kinds = [WIDE.format(_scale(c.type)) if _is_exact_sum(c) else c.type for c in table.columns]
    highs = [ReducedColumn(c.high[0], WIDE.format(0), "sum") for c in table.columns if c.high is not None]
    wide = [ReducedColumn(c.name, kind, c.reducer) for c, kind in zip(table.columns, kinds, strict=True)]
    arrays = parse_batch(table, keys, values, [*wide, *highs])
    parts, high_parts = arrays[: len(wide)], iter(arrays[len(wide) :])
    return [
        part if column.high is None else _joined(part, next(high_parts), column.high[1])
        for column, part in zip(table.columns, parts, strict=True)
    ]


WIDE = "decimal(75,{})"
"""The type of sums before they are known to fit: Arrow's sum of two has 76 digits, its most."""


def _is_exact_sum(column: ReducedColumn) -> bool:
    return column.reducer == "sum" and column.type not in FLOATS


def _scale(kind: str) -> int:
    return decimal_parts(kind)[1] if _is_decimal(kind) else 0


def _joined(low: Any, high: Any, power: int) -> Any:
    """Return the sum of both parts, the high one in units of 10 to this power."""
    unit = pa.scalar(decimal.Decimal(10) ** power, pa.decimal256(abs(power) + 1, max(-power, 0)))
    digits = pa.decimal256(30, 0)
    return _added_wide(low, pc.multiply(high.cast(digits), unit).cast(low.type)).cast(low.type)


def _too_large(reducer: str, state: Any, batch: Any) -> list[int]:
    """Return the rows whose combination fails, found row by row."""
    rows = []
    for row in range(len(state)):
        try:
            combine(reducer, state.slice(row, 1), batch.slice(row, 1))
        except pa.ArrowInvalid:
            rows.append(row)
    return rows


def combine(reducer: str, state: Any, batch: Any) -> Any:
    """Combine state and batch, row by row; null where both are. Raises: ArrowInvalid, a sum overflows."""
    match reducer:
        case "sum" | "count":
            is_decimal = pa.types.is_decimal(batch.type)
            zero = decimal.Decimal(0) if is_decimal else 0
            add = _added_wide if is_decimal else pc.add_checked
            ours, theirs = (pc.fill_null(each, pa.scalar(zero, each.type)) for each in (state, batch))
            total = add(ours, theirs).cast(state.type)
            both_null = pc.and_(pc.is_null(state), pc.is_null(batch))
            return pc.if_else(both_null, pa.scalar(None, state.type), total)
        case "min":
            return pc.coalesce(pc.if_else(_above(state, batch), batch, state), state, batch)
        case "max":
            return pc.coalesce(pc.if_else(_above(state, batch), state, batch), state, batch)
        case "first":
            return pc.coalesce(state, batch)
        case _:
            return pc.coalesce(batch, state)


def _added_wide(one: Any, other: Any) -> Any:
    """Add row by row, with digits to spare. Raises: ArrowInvalid, a summand has none."""
    wide = pa.decimal256(75, max(getattr(each.type, "scale", 0) for each in (one, other)))
    return pc.add_checked(one.cast(wide), other.cast(wide))


def _above(one: Any, other: Any) -> Any:
    """Return whether ``one`` is greater; NaN is above every number, as in Spark's order, and 0.0 above
    -0.0.
    """
    if pa.types.is_binary(one.type):
        return pc.greater(_in_order_of_bytes(one), _in_order_of_bytes(other))
    if not pa.types.is_floating(one.type):
        return pc.greater(one, other)
    nan = pc.and_(pc.is_nan(one), pc.invert(pc.is_nan(other)))
    zeros = pc.and_(pc.equal(one, other), pc.and_(_is_minus_zero(other), pc.invert(_is_minus_zero(one))))
    return pc.or_(pc.or_(pc.greater(one, other), nan), zeros)


def _in_order_of_bytes(base64: Any) -> Any:
    """Translate base64 into bytes that are ordered as those that it encodes: 6 bits each, padding first."""
    validity, offsets, data = base64.buffers()
    if data is None:
        return base64
    ordered = pa.py_buffer(_BASE64_ORDER[np.frombuffer(data, np.uint8)])
    return pa.Array.from_buffers(base64.type, len(base64), [validity, offsets, ordered], offset=base64.offset)


def _is_minus_zero(array: Any) -> Any:
    """Return whether a number is -0.0, which equals 0.0."""
    return pc.and_(pc.equal(array, 0.0), pc.less(pc.divide(pa.scalar(1.0), array), 0.0))


# -- JSON in columns ----------------------------------------------------------------------------


def parse(values: Any, columns: Sequence[ReducedColumn]) -> list[Any]:
    """Parse JSON objects (null: no state) into one Arrow array per column; missing fields are null."""
    if values.null_count == len(values):
        return [pa.nulls(len(values), arrow_type(column.type)) for column in columns]
    # Arrow ends the process at a decimal such as 1E-999999999.
    may_end = any(_is_decimal(column.type) for column in columns) and _has_long_exponent(values)
    arrays = None if may_end else _parse_numbers(values, columns)
    if arrays is not None:
        return arrays
    lines = pc.fill_null(values, b"{}")
    if may_end or not _is_framed(lines):
        return _parse_slowly(lines, columns)
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), b"\n")[0].as_buffer()
    as_read = [(column.name, _read_type(column.type)) for column in columns]
    options = pj.ParseOptions(explicit_schema=pa.schema(as_read), unexpected_field_behavior="ignore")
    block = pj.ReadOptions(use_threads=False, block_size=max(joined.size + 1, 1 << 16))
    try:
        table = pj.read_json(pa.BufferReader(joined), read_options=block, parse_options=options)
    except pa.ArrowInvalid:
        return _parse_slowly(lines, columns)
    if table.num_rows != len(lines):
        msg = f"{len(lines)} values of state were parsed as {table.num_rows} rows"
        raise CorruptError(msg)
    return [
        _of_python(table[column.name].combine_chunks().cast(arrow_type(column.type))) for column in columns
    ]


def _has_long_exponent(values: Any) -> bool:
    """Return whether some text has an exponent of more digits than a double or a decimal has."""
    return bool(pc.any(pc.match_substring_regex(values, "[0-9.][eE][+-]?[0-9]{4}")).as_py())


def _of_python(array: Any) -> Any:
    """Return the array itself. Raises: ArrowInvalid, it has values that Python cannot represent.

    These are a time of the year 0, which Arrow has and Python has not, and texts that are not
    UTF-8, for which Arrow's JSON reader does not check.
    """
    if pa.types.is_string(array.type):
        array.validate(full=True)
    if pa.types.is_temporal(array.type) and array.null_count < len(array):
        earliest = pc.min(array)
        if earliest.value < FIRST_DAY.cast(array.type).value:
            raise pa.ArrowInvalid(f"{earliest.cast(pa.string())} is of the year 0")
    return array


class Keyed(Protocol):
    """A table as errors describe it: its name, and its keys as a reader writes them."""

    @property
    def name(self) -> str: ...

    @property
    def key_types(self) -> tuple[str, ...]: ...


def parse_batch(table: Keyed, keys: Any, values: Any, columns: Sequence[ReducedColumn]) -> list[Any]:
    """As ``parse``, for a batch's input. Raises: BadRecordError, a value cannot be compared."""
    return _parse_or_name(table, keys, values, columns, "")


MEND = "delete that row, or write it again"


def parse_state(
    table: Keyed, keys: Any, stored: Any, columns: Sequence[ReducedColumn], mend: str = MEND
) -> list[Any]:
    """As ``parse``, for the store's values, which another call may have written (``upsert``, ``update``).

    Raises: BadRecordError, a value cannot be compared; ``mend`` is what to do then.
    """
    return _parse_or_name(table, keys, stored, columns, "its row is ", f"; {mend}")


def _parse_or_name(
    table: Keyed, keys: Any, values: Any, columns: Sequence[ReducedColumn], what: str, mend: str = ""
) -> list[Any]:
    try:
        return parse(values, columns)
    except pa.ArrowInvalid:
        for place, key in enumerate(keys.to_pylist()):
            try:
                parse(values.slice(place, 1), columns)
            except pa.ArrowInvalid as error:
                shown = shown_key(key, table.key_types)
                msg = (
                    f"table {table.name}, key {shown}: {what}unusable: {cause_of(error)}; nothing was"
                    f" decided; dates and timestamps have to be of the years 1 to 9999{mend}"
                )
                raise BadRecordError(msg) from None  # the cause has the row
        raise


def _is_framed(lines: Any) -> bool:
    """Return whether each line stays a row of its own when all are parsed together.

    With a brace at either end, and no line break, none can end in the next one; then as many rows
    as lines means one row in each.
    """
    braces = pc.and_(pc.starts_with(lines, b"{"), pc.ends_with(lines, b"}"))
    return bool(pc.all(pc.and_(braces, pc.invert(pc.match_substring(lines, b"\n")))).as_py())


def _parse_numbers(values: Any, columns: Sequence[ReducedColumn]) -> list[Any] | None:
    """As ``parse``, several times as fast, if all values are numbers in tidegate's own spelling;
    else None.
    """
    if not all(c.type in INTEGERS or c.type in FLOATS or _is_decimal(c.type) for c in columns):
        return None
    names = [msgspec.json.encode(column.name) for column in columns]
    if any(b"," in name for name in names):
        return None
    empty = b"{" + b",".join(name + b":null" for name in names) + b"}"
    of_each = pc.split_pattern(pc.fill_null(values, empty), b",")
    if not pc.all(pc.equal(pc.list_value_length(of_each), len(columns))).as_py():
        return None
    cells = of_each.flatten()
    arrays, last = [], len(columns) - 1
    for place, (column, name) in enumerate(zip(columns, names, strict=True)):
        mine = cells.take(pa.array(range(place, len(cells), len(columns)))) if last else cells
        lead, end = b"{" * (place == 0) + name + b":", b"}" * (place == last)
        if not pc.all(pc.and_(pc.starts_with(mine, lead), pc.ends_with(mine, end))).as_py():
            return None
        digits = pc.binary_slice(mine, len(lead), -1 if end else VALUE_END)
        is_null = pc.equal(digits, b"null")
        try:
            numbers = pc.if_else(is_null, None, digits).cast(pa.string()).cast(arrow_type(column.type))
        except pa.ArrowInvalid:
            return None
        arrays.append(numbers)
    return arrays


def _read_type(kind: str) -> Any:
    return pa.string() if kind in TEXTS or kind == "binary" else arrow_type(kind)


def _parse_slowly(lines: Any, columns: Sequence[ReducedColumn]) -> list[Any]:
    """Parse row by row, for values that Arrow's reader refuses: "NaN" and "Infinity" among floats.

    Raises: ArrowInvalid, a line is no JSON object, or a cell is not of its type.
    """
    arrays = []
    try:
        rows = [OBJECT.decode(line) for line in lines.to_pylist()]
        for column in columns:
            cells = [row.get(column.name) for row in rows]
            if column.type in FLOATS:
                cells = [None if cell is None else _float_in(cell) for cell in cells]
            if _is_decimal(column.type):
                cells = [_decimal_in(line, column) for line in lines.to_pylist()]
            arrays.append(_of_python(pa.array(cells, _read_type(column.type)).cast(arrow_type(column.type))))
    except (*UNREADABLE, ValueError, TypeError, ArithmeticError) as error:
        if isinstance(error, pa.ArrowInvalid):
            raise
        raise pa.ArrowInvalid(f"{error!s:.200}") from error
    return arrays


def _float_in(cell: Any) -> float:
    if cell in SPECIAL or (isinstance(cell, int | float) and not isinstance(cell, bool)):
        return float(cell)
    raise pa.ArrowInvalid(f"{cell!r:.100} in the place of a number")


def _decimal_in(line: bytes, column: ReducedColumn) -> decimal.Decimal | None:
    number = DECIMAL.decode(RAW_OBJECT.decode(line).get(column.name, b"null"))
    return None if number is None else exact_decimal(number, *decimal_parts(column.type))


def format_values(columns: Sequence[ReducedColumn], arrays: Sequence[Any]) -> Any:
    """Return stored values: ``+`` and a JSON object per row, as the JVM's ``to_json`` writes it."""
    pieces: list[Any] = []
    lead = "+{"
    for column, array in zip(columns, arrays, strict=True):
        name = msgspec.json.encode(column.name).decode()
        pieces += [pa.scalar(f"{lead}{name}:"), pc.fill_null(_json_text(array), "null")]
        lead = ","
    return pc.binary_join_element_wise(*pieces, pa.scalar("}"), "").cast(pa.binary())


def _json_text(array: Any) -> Any:
    if pa.types.is_floating(array.type):
        special = pc.if_else(
            pc.is_nan(array), '"NaN"', pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"')
        )
        text = pc.if_else(_is_minus_zero(array), "-0.0", array.cast(pa.string()))  # Arrow writes -0
        return pc.if_else(pc.is_finite(array), text, special)
    if pa.types.is_timestamp(array.type):
        text = array.cast(pa.timestamp("us")).cast(pa.string())
        zone = "Z" if array.type.tz else ""
        return _quoted(pc.binary_join_element_wise(pc.replace_substring(text, " ", "T"), zone, ""))
    if pa.types.is_date(array.type) or pa.types.is_binary(array.type):
        return _quoted(array.cast(pa.string()))
    if pa.types.is_string(array.type):
        return _quoted(_escaped(array))
    return array.cast(pa.string())


def _quoted(text: Any) -> Any:
    return pc.binary_join_element_wise('"', text, '"', "")


def _escaped(text: Any) -> Any:
    text = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(text, "[\\x00-\\x1f]")).as_py():
        for code in range(0x20):
            text = pc.replace_substring(text, chr(code), f"\\u{code:04x}")
    return text
