"""Vectors of names and keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tidegate.base.names import escape
from tidegate.errors import TidegateError
from tidegate.keys.groups import encode_key, key_group
from tidegate.testing.conformance.canonical import key_of
from tidegate.wal.record import Column

NAMES = (
    *("flights", "Daily.Top-10", "a_b", "a.b", "A.b", "a-b", "_local", "_local.seen", "_deleted.visits"),
    *("0", "UPPER", "x" * 40, "x" * 41, "X" * 21, "a_" * 20, "Z" * 64),
)
GROUPS = ((128, 1), (128, 8), (100, 1), (8, 1), (1, 1), (32_768, 1), (96, 96))
"""Numbers of key groups with strides."""


TRUTHS = (True, False)


class Key(NamedTuple):
    """A key of canonical values."""

    types: tuple[str, ...]
    values: tuple[Any, ...]


def _of(name: str, *values: Any) -> list[Key]:
    return [Key((name,), (value,)) for value in values]


KEYS = (
    *_of("string", "N14228", "", "h\u00e9 \u65e5\u672c \U0001f6eb", "3:EWR,", "line\nfeed\u0000"),
    *_of("binary", "0001ff", ""),
    *_of("tinyint", "-128", "127"),
    *_of("smallint", "-32768"),
    *_of("int", "-7", "0", "2147483647"),
    *_of("bigint", "9007199254740993", "9223372036854775807", "-9223372036854775808"),
    *_of("boolean", *TRUTHS),
    *_of("date", "2013-01-31", "0001-01-01", "9999-12-31"),
    *_of("timestamp", "2026-11-21T10:00:00.000007Z", "1970-01-01T00:00:00.000000Z"),
    *_of("timestamp", "0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"),
    *_of("timestamp_ntz", "1969-12-31T23:59:59.999999", "2026-11-21T10:00:00.000000"),
    *_of("decimal(10,2)", "1.50", "-0.05", "0.00", "12345678.90"),
    *_of("decimal(20,10)", "-0.0000001000"),
    *_of("decimal(38,0)", "99999999999999999999999999999999999999"),
    *_of("decimal(38,38)", "0.00000000000000000000000000000000000001"),
    Key(("string", "string"), ("EWR", "IAH")),
    Key(("string", "bigint"), ("", "7")),
    Key(("string", "int", "date"), ("h\u00e9", "-1", "2013-01-31")),
    Key(("boolean", "decimal(4,1)"), (True, "-1.0")),
    Key(("timestamp", "binary"), ("2026-11-21T10:00:00.000007Z", "3a2c")),
)
REFUSED = (
    *_of("int", "2147483648", "1.5", "x", None),
    *_of("tinyint", "128"),
    *_of("bigint", "9223372036854775808"),
    *_of("date", "2013-02-30", "2013-01-31T00:00:00.000000Z"),
    *_of("decimal(4,2)", "123.45", "1.234"),
    *_of("string", *TRUTHS),
    *(
        Key((name,), ("x",))
        for name in ("char(1)", "varchar(10)", "string collate UTF8_LCASE", "interval day")
    ),
    *_of("float", "1.5"),
    *_of("double", "1.5"),
    *_of("void", None),
    Key(("string", "int"), ("EWR",)),
    Key(("string",), ("EWR", "7")),
)
"""Keys that a reader refuses, each with ConfigError."""


def encoded(types: Sequence[str], values: Sequence[Any]) -> bytes:
    """Encode a key of canonical values. Raises: ConfigError, BadRecordError: a value is not of its type."""
    columns = [Column(f"k{place}", name) for place, name in enumerate(types)]
    key = key_of("t", columns, list(values))
    return encode_key(key if len(types) > 1 else (key,), types)


def name_vectors() -> list[dict[str, Any]]:
    """Return names with their escaped forms."""
    return [{"name": name, "escaped": escape(name)} for name in NAMES]


def key_vectors() -> list[dict[str, Any]]:
    """Return keys with their bytes and key groups, then keys that are refused."""
    return [*map(_vector, KEYS), *map(_refused, REFUSED)]


def _vector(key: Key) -> dict[str, Any]:
    content = encoded(*key)
    groups = [
        {"key_groups": number, "stride": stride, "key_group": key_group(content, number, stride)}
        for number, stride in GROUPS
    ]
    return {"types": key.types, "values": key.values, "bytes": content.hex(), "groups": groups}


def _refused(key: Key) -> dict[str, Any]:
    try:
        content = encoded(*key)
    except TidegateError:  # a BadRecordError is a writer's name for it
        return {"types": key.types, "values": key.values, "error": "ConfigError"}
    raise AssertionError(f"{key} is refused nowhere: {content!r}")
