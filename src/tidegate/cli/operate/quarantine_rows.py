"""Refused rows with the columns of their table, as far as these can be decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from tidegate.base.decoders import json_decoder
from tidegate.cli.core.parquet import read_column
from tidegate.errors import BadRecordError, CorruptError
from tidegate.keys.groups import decode_key
from tidegate.values.decode import Values
from tidegate.values.encode import encoder_of

OWN = ("id", "cause", "key")
"""The names of a file's own columns, after one underscore, or more than the table's columns have."""
CUT = "longer than the quarantine keeps"
UNFIT = "values that do not fit the columns which the table has by now"
OTHER = "no rows of the table: deletes, or parts of captured changes or of a function's"


def schema_of(values: Values) -> Any:
    """Return the file's columns: the row's id, its cause, the key's original bytes; then the table's own.

    ``_id``, ``_cause`` and ``_key``, with more underscores than such columns of the table have.
    """
    like_own = [name for name in values.arrow_schema.names if name.lstrip("_") in OWN]
    prefix = "_" * (1 + max((len(name) - len(name.lstrip("_")) for name in like_own), default=0))
    kinds = pa.string(), pa.string(), pa.binary()
    own = [pa.field(f"{prefix}{name}", kind) for name, kind in zip(OWN, kinds, strict=True)]
    return pa.schema([*own, *values.arrow_schema])


def typed(
    values: Values, rows: Iterable[tuple[str, dict[str, Any]]], left: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Yield the rows by column; ``left`` counts those that are not complete, by reason.

    Columns of a key that is null or cannot be read are null; the file's own column has its bytes.
    """
    own = schema_of(values).names[: len(OWN)]
    fields = {column.field for column in values.schema.value}
    for row_id, row in rows:
        sizes = ((row["key"], row["key_bytes"]), (row["value"], row["value_bytes"]))
        if any(size is not None and len(content or b"") < size for content, size in sizes):
            left[CUT] += 1
            continue
        if not _has_columns(values, row["value"], fields):
            left[OTHER] += 1
            continue
        value = _value(values, row["value"])
        if value is None:
            left[UNFIT] += 1
            continue
        refused = zip(own, (row_id, row["cause"], row["key"]), strict=True)
        yield {**dict(refused), **value, **_key(values, row["key"])}


def _key(values: Values, key: bytes | None) -> dict[str, Any]:
    columns = [column.name for column in values.schema.key]
    try:
        decoded: Any = None if key is None else decode_key(key, values.key_types)
    except (CorruptError, BadRecordError, ValueError):
        decoded = None
    if decoded is None:
        return dict.fromkeys(columns)
    return dict(zip(columns, (decoded,) if len(columns) == 1 else decoded, strict=True))


def _has_columns(values: Values, value: bytes | None, fields: set[str]) -> bool:
    """Return whether the value has fields of the table's columns, and no others."""
    if values.schema.value_format == "bytes":
        return value != b""  # a delete, or no bytes: unknown
    try:
        return json_decoder(dict[str, msgspec.Raw]).decode(value or b"").keys() <= fields
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False


def _value(values: Values, value: bytes | None) -> dict[str, Any] | None:
    """Decode the value's columns; None: the table's columns, which may have been replaced, cannot hold it."""
    if values.schema.value_format == "bytes":
        (column,) = values.schema.value
        return {column.name: value}
    try:
        decoded: dict[str, Any] = values.decode(value or b"")
        encoder_of(values.schema).encode(decoded)
    except (msgspec.MsgspecError, BadRecordError, CorruptError, UnicodeDecodeError):
        return None
    return decoded


def ids_of(file: Path) -> list[bytes]:
    """Return the rows' ids in a file of ``quarantine export``, or of ``scan _quarantine --parquet``."""
    return [one.encode() for one in read_column(file, OWN[0])]
