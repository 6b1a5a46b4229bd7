"""How results are printed: a table on a terminal, tab-separated lines elsewhere, or JSON.

rich is imported for a terminal only: no command waits for it elsewhere.
"""

from __future__ import annotations

import datetime
import decimal
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

ROWS_AT_ONCE = 500
"""A terminal shows many rows as tables of so many: memory stays bounded."""

_json = msgspec.json.Encoder(decimal_format="number")


def on_terminal() -> bool:
    """Whether a person looks at standard output."""
    return sys.stdout.isatty()


# -- JSON -------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """One JSON value on one line. Binary is base64, times are RFC 3339, NaN is the text NaN."""
    print(json_of(value).decode())


def json_of(value: Any) -> bytes:
    """The same, as bytes."""
    return _json.encode(_plain(value))


def _plain(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {k if isinstance(k, str) else cell(k): _plain(v) for k, v in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case _:
            return value


# -- text -------------------------------------------------------------------------------------


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows under a heading."""
    if not on_terminal():
        print("\t".join(map(cell, columns)))
        for row in rows:
            print("\t".join(map(cell, row)))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold")
    for column in columns:
        table.add_column(Text(cell(column)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(one)) for one in row))
    Console().print(table)


def print_pairs(pairs: Iterable[tuple[str, Any]]) -> None:
    """Names and what they are, a line each."""
    if not on_terminal():
        for name, value in pairs:
            print(f"{cell(name)}\t{cell(value)}")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for name, value in pairs:
        grid.add_row(Text(cell(name), style="bold"), Text(cell(value)))
    Console().print(grid)


def cell(value: Any) -> str:
    r"""A value in one cell: no tab, no line break, nothing that steers a terminal.

    >>> cell(None), cell(True), cell("two\nlines"), cell(b"\xff"), cell([1.5])
    ('null', 'true', 'two\\nlines', '\\xff', '[1.5]')
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return _visible(value)
        case bytes():
            return _text_of(value)
        case datetime.datetime():
            return time_of(value)
        case decimal.Decimal():
            return f"{value:f}"
        case dict() | list() | tuple():
            return _visible(_json.encode(_plain(value)).decode())
        case _:
            return str(value)


def time_of(moment: datetime.datetime) -> str:
    """A time for people: UTC with a Z, milliseconds."""
    text = moment.isoformat(sep=" ", timespec="milliseconds")
    return text.removesuffix("+00:00") + ("Z" if moment.tzinfo else "")


def shown_bytes(count: float) -> str:
    """A number of bytes for people.

    >>> shown_bytes(17), shown_bytes(1536), shown_bytes(5 * 1024**4)
    ('17 bytes', '1.5 KiB', '5.0 TiB')
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def _text_of(content: bytes) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and (text or not content):
        return text
    return repr(content)[2:-1]


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
