"""How results are printed: a table on a terminal, tab-separated lines elsewhere, or JSON.

rich is imported for a terminal only: no command waits for it elsewhere.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

ROWS_AT_ONCE = 500
"""A terminal shows many rows as tables of so many: memory stays bounded."""

T = TypeVar("T")

_json = msgspec.json.Encoder(decimal_format="number")


def on_terminal() -> bool:
    """Whether a person looks at standard output."""
    return sys.stdout.isatty()


def first_of(rows: Iterable[T], limit: int | None) -> Iterator[T]:
    """So many of them; None: all."""
    return itertools.islice(rows, None if limit is None else min(limit, sys.maxsize))


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


class Rows(NamedTuple):
    """Rows under a heading."""

    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]


class Pairs(NamedTuple):
    """Names and what they are, a line each."""

    pairs: Iterable[tuple[str, Any]]


Part = Rows | Pairs


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows under a heading."""
    print_parts([Rows(columns, rows)])


def print_pairs(pairs: Iterable[tuple[str, Any]]) -> None:
    """Names and what they are, a line each."""
    print_parts([Pairs(pairs)])


def print_parts(parts: Sequence[Part]) -> None:
    """Several of these, with an empty line between two."""
    if on_terminal():
        from rich.console import Console

        Console().print(_rich(parts))
        return
    for number, part in enumerate(parts):
        if number:
            print()
        if isinstance(part, Rows):
            print("\t".join(map(cell, part.columns)))
        for row in part.rows if isinstance(part, Rows) else part.pairs:
            print("\t".join(map(cell, row)))


@contextlib.contextmanager
def showing(*, json: bool) -> Iterator[Callable[[Any], None]]:
    """What shows one state after another: in one place on a terminal, else one below the other.

    With ``json`` a line for each; else it takes parts, as ``print_parts``.
    """
    if json or not on_terminal():

        def show(state: Any) -> None:
            if json:
                print_json(state)
            else:
                print_parts(state)
                print()
            sys.stdout.flush()

        yield show
        return
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        yield lambda parts: live.update(_rich(parts), refresh=True)


def _rich(parts: Sequence[Part]) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown: list[Any] = []
    for part in parts:
        shown += [""] if shown else []
        if isinstance(part, Pairs):
            grid = Table.grid(padding=(0, 2))
            for name, value in part.pairs:
                grid.add_row(Text(cell(name), style="bold"), Text(cell(value)))
            shown.append(grid)
        else:
            table = Table(header_style="bold")
            for column in part.columns:
                table.add_column(Text(cell(column)), overflow="fold")
            for row in part.rows:
                table.add_row(*(Text(cell(one)) for one in row))
            shown.append(table)
    return Group(*shown)


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
            return exact_time_of(value)
        case decimal.Decimal():
            return _digits_of(value)
        case dict() | list() | tuple():
            return _visible(_json.encode(_plain(value)).decode())
        case _:
            return str(value)


DIGITS_MAX = 100
"""A decimal with more digits than this is printed with an exponent: 1E+400000000 has 400 million."""


def _digits_of(value: decimal.Decimal) -> str:
    if not value.is_finite():
        return str(value)
    _, digits, exponent = value.as_tuple()
    written = max(len(digits), len(digits) + int(exponent), 1 - int(exponent))
    return f"{value:f}" if written <= DIGITS_MAX else str(value)


def time_of(moment: datetime.datetime, digits: str = "milliseconds") -> str:
    """A time for people: UTC with a Z, milliseconds."""
    text = moment.isoformat(sep=" ", timespec=digits)
    return text.removesuffix("+00:00") + ("Z" if moment.tzinfo else "")


def exact_time_of(moment: datetime.datetime) -> str:
    """The same with all its digits: of a stored value, and of a version, which ``--at`` finds by it again."""
    return time_of(moment, "microseconds")


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


def message_of(text: str) -> str:
    r"""A message with its line breaks, and nothing else that steers a terminal.

    >>> message_of("no key \x1b[2J\nfound")
    'no key \\x1b[2J\nfound'
    """
    return "\n".join(map(_visible, text.split("\n")))


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
