"""Keys from the texts that people write, by the types of the key's columns."""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Sequence
from typing import Any

from tidegate.base.text import brief
from tidegate.errors import ConfigError
from tidegate.keys.groups import INTEGER_LIMITS
from tidegate.values.decode import described
from tidegate.wal.record import Column


def parse_key(table: str, texts: Sequence[str], columns: Sequence[Column]) -> Any:
    """Parse a key by the columns' types: a value, or a tuple of them.

    Raises: ConfigError: the number of texts differs, or one is no value of its column.
    """
    if len(texts) != len(columns):
        raise ConfigError(
            f"table {table}: the key is ({described(columns)}): give {len(columns)} KEY, not {len(texts)}"
        )
    values = [_parse(table, text, column) for text, column in zip(texts, columns, strict=True)]
    return values[0] if len(values) == 1 else tuple(values)


_WALL_CLOCK = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?"
WRITTEN = {
    "date": re.compile(r"\d{4}-\d\d-\d\d", re.ASCII),
    "decimal": re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII),
    "whole": re.compile(r"[+-]?\d+", re.ASCII),
    "timestamp": re.compile(rf"{_WALL_CLOCK}(?:Z|[+-]\d\d:\d\d)", re.ASCII),
    "timestamp_ntz": re.compile(_WALL_CLOCK, re.ASCII),
}
"""Python accepts more: 1_0 would be 10, and in newer releases 20261121 a date."""
EXAMPLES = {"timestamp": "2026-11-21T10:00:00Z", "timestamp_ntz": "2026-11-21T10:00:00"}
"""The form of times in messages."""


def _parse(table: str, text: str, column: Column) -> Any:
    kind = column.type.partition("(")[0]
    written = WRITTEN.get("whole" if kind in INTEGER_LIMITS else kind)
    try:
        if written is not None and written.fullmatch(text) is None:
            raise ValueError
        match column.type:
            case "string":
                return text
            case "binary":
                return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
            case "boolean":
                return {"true": True, "false": False}[text.lower()]
            case "date":
                return datetime.date.fromisoformat(text)
            case "timestamp" | "timestamp_ntz":
                return _time(text)
            case "tinyint" | "smallint" | "int" | "bigint":
                return int(text)
            case _:
                return decimal.Decimal(text)
    except (ValueError, KeyError, ArithmeticError):
        shape = f": write it as {EXAMPLES[column.type]}" if column.type in EXAMPLES else ""
        raise ConfigError(
            f"table {table}: KEY {brief(text)} is no {column.type}, the type of key column"
            f" {column.name}{shape}"
        ) from None


def _time(text: str) -> datetime.datetime:
    """Parse a time; Python 3.10 takes neither ``Z`` nor a fraction of 1, 2, 4 or 5 digits."""
    text = text.removesuffix("Z") + "+00:00" * text.endswith("Z")
    head, point, rest = text.partition(".")
    if point:
        digits = rest[: next((index for index, c in enumerate(rest) if not c.isdigit()), len(rest))]
        text = f"{head}.{digits:0<6}{rest[len(digits) :]}"
    return datetime.datetime.fromisoformat(text)
