"""The bytes of keys and values, and Spark's order of cells, in plain Python: docs/storage-format.md."""

from __future__ import annotations

import base64
import datetime
import decimal
import math
from collections.abc import Iterable
from typing import Any

import xxhash

SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
SEED = 42
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def key_bytes(cells: Iterable[Any]) -> bytes | None:
    """Return a key's bytes; None: a column is null, so there is no key."""
    cells = list(cells)
    if None in cells:
        return None
    parts = [_key_part(cell) for cell in cells]
    return parts[0] if len(parts) == 1 else b"".join(b"%d:%s," % (len(part), part) for part in parts)


def _key_part(cell: Any) -> bytes:
    match cell:
        case bytes():
            return cell
        case bool():
            return b"true" if cell else b"false"
        case decimal.Decimal():
            return f"{_unsigned_zero(cell):f}".encode()
        case datetime.datetime():
            since = EPOCH if cell.tzinfo is not None else EPOCH.replace(tzinfo=None)
            return str((cell - since) // datetime.timedelta(microseconds=1)).encode()
    return str(cell).encode()


def key_group(key: bytes, key_groups: int) -> int:
    """Return the key group of a key."""
    return xxhash.xxh64_intdigest(key, SEED) % key_groups


def json_text(cell: Any) -> str:
    """Return a cell as Spark's ``to_json`` writes it."""
    match cell:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[cell]
        case float():
            return _float_text(cell)
        case str():
            return _quoted(cell)
        case bytes():
            return f'"{base64.b64encode(cell).decode()}"'
        case decimal.Decimal():
            return str(_unsigned_zero(cell))
        case datetime.datetime():
            at = cell if cell.tzinfo is None else cell.astimezone(datetime.timezone.utc)
            return f'"{at.isoformat(timespec="microseconds").replace("+00:00", "Z")}"'
        case datetime.date():
            return f'"{cell.isoformat()}"'
        case list() | tuple():
            return f"[{','.join(map(json_text, cell))}]"
        case dict():
            return object_text({name: json_text(field) for name, field in cell.items()})
    return str(cell)


def object_text(fields: dict[Any, str]) -> str:
    """Return a JSON object of these texts."""
    return f"{{{','.join(f'{_quoted(str(name))}:{text}' for name, text in fields.items())}}}"


def _quoted(text: str) -> str:
    escaped = (SHORT.get(c) or (f"\\u{ord(c):04X}" if c < " " else c) for c in text)
    return f'"{"".join(escaped)}"'


def _float_text(number: float) -> str:
    """As ``Double.toString``, for the numbers of the cases: of few digits, below ten million or 10**n."""
    if not math.isfinite(number):
        return '"NaN"' if math.isnan(number) else '"Infinity"' if number > 0 else '"-Infinity"'
    digits, _, exponent = repr(number).partition("e+")
    return f"{digits}.0E{exponent}" if exponent else digits


def _unsigned_zero(number: decimal.Decimal) -> decimal.Decimal:
    return number or abs(number)


def rank(cell: Any) -> tuple[Any, ...]:
    """Return the place of a cell in Spark's order: nulls first, NaN last, texts by their bytes."""
    match cell:
        case None:
            return (0,)
        case float() if math.isnan(cell):
            return (2,)
        case str():
            return (1, cell.encode())
        case list():
            return (1, tuple(map(rank, cell)))
        case dict():
            return (1, tuple(map(rank, cell.values())))
    return (1, cell)


def row_hash(cells: Iterable[str | int | None]) -> int:
    """Return Spark's ``xxhash64`` of texts and ints, signed: each column's hash is the next one's seed."""
    seed = SEED
    for cell in cells:
        if cell is not None:
            content = cell.encode() if isinstance(cell, str) else cell.to_bytes(4, "little", signed=True)
            seed = xxhash.xxh64_intdigest(content, seed)
    return seed - 2**64 if seed >= 2**63 else seed
