"""Refused rows with the columns of the table that they were for, as far as these can be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from tidegate.cli.parquet import read_column
from tidegate.decoders import json_decoder
from tidegate.errors import BadRecordError, ConfigError, CorruptError
from tidegate.key_groups import decode_key
from tidegate.value_encoding import encoder_of
from tidegate.values import Values

ID, CAUSE, KEY = "_id", "_cause", "_key"
CUT = "longer than the quarantine keeps"
UNFIT = "values that do not fit the columns which the table has by now"
OTHER = "no rows of the table: deletes, or parts of captured changes or of a function's"


def schema_of(values: Values) -> Any:
    """The columns of the file: which row, why, the key's bytes as they came; then the table's own."""
    own = [pa.field(ID, pa.string()), pa.field(CAUSE, pa.string()), pa.field(KEY, pa.binary())]
    clash = {ID, CAUSE, KEY} & set(values.arrow_schema.names)
    if clash:
        raise ConfigError(f"the table has columns called {', '.join(sorted(clash))} of its own")
    return pa.schema([*own, *values.arrow_schema])


def typed(
    values: Values, rows: Iterable[tuple[str, dict[str, Any]]], left: Counter[str]
) -> Iterator[dict[str, Any]]:
    """The rows by column; ``left`` counts those that cannot be given whole, by reason.

    Columns of a key that is null or cannot be read are null; ``KEY`` has its bytes.
    """
    names = {column.name for column in values.schema.value}
    for row_id, row in rows:
        sizes = ((row["key"], row["key_bytes"]), (row["value"], row["value_bytes"]))
        if any(size is not None and len(content or b"") < size for content, size in sizes):
            left[CUT] += 1
            continue
        value = _value(values, row["value"], names)
        if value is None:
            left[OTHER] += 1
            continue
        if values.schema.value_format == "json" and not _fits(values, value):
            left[UNFIT] += 1
            continue
        yield {ID: row_id, CAUSE: row["cause"], KEY: row["key"], **value, **_key(values, row["key"])}


def _fits(values: Values, value: dict[str, Any]) -> bool:
    """Whether the columns can hold it: a replacement may have given the table others since."""
    try:
        encoder_of(values.schema).encode(value)
    except BadRecordError:
        return False
    return True


def _key(values: Values, key: bytes | None) -> dict[str, Any]:
    columns = [column.name for column in values.schema.key]
    try:
        found: Any = None if key is None else decode_key(key, values.key_types)
    except (CorruptError, BadRecordError, ValueError):
        found = None
    if found is None:
        return dict.fromkeys(columns)
    return dict(zip(columns, (found,) if len(columns) == 1 else found, strict=True))


def _value(values: Values, value: bytes | None, names: set[str]) -> dict[str, Any] | None:
    """The value's columns; None: it is no value of the table."""
    if values.schema.value_format == "bytes":
        (name,) = names
        return {name: value} if value != b"" else None  # a delete, or no bytes: it cannot be told
    try:
        if not value or not json_decoder(dict[str, msgspec.Raw]).decode(value).keys() <= names:
            return None
        found: dict[str, Any] = values.decode(value)
    except (msgspec.MsgspecError, CorruptError, UnicodeDecodeError):
        return None
    return found


def ids_of(file: Path) -> list[bytes]:
    """The rows' ids in a file of ``quarantine export``, or of ``scan _quarantine --parquet``."""
    return [one.encode() for one in read_column(file, (ID, "id"))]
