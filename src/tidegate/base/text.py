"""Values, times and sizes as text for people, and as JSON. The output cannot control a terminal."""

from __future__ import annotations

import datetime
import decimal
import html
import math
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

_json = msgspec.json.Encoder(decimal_format="number")
LINE_MAX = 500
DIGITS_MAX = 100
"""A decimal with more digits than this is printed with an exponent: 1E+400000000 has 400 million."""


def json_of(value: Any) -> bytes:
    """Encode as JSON on one line. Binary is base64, times are RFC 3339, NaN is the text NaN."""
    return _json.encode(_plain(value))


def _plain(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {k if isinstance(k, str) else cell(k): _plain(v) for k, v in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value


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


def _digits_of(value: decimal.Decimal) -> str:
    if not value.is_finite():
        return str(value)
    _, digits, exponent = value.as_tuple()
    written = max(len(digits), len(digits) + int(exponent), 1 - int(exponent))
    return f"{value:f}" if written <= DIGITS_MAX else str(value)


def time_of(moment: datetime.datetime, digits: str = "milliseconds") -> str:
    """Format a time for people: UTC with a Z, milliseconds."""
    text = moment.isoformat(sep=" ", timespec=digits)
    return text.removesuffix("+00:00") + ("Z" if moment.tzinfo else "")


def exact_time_of(moment: datetime.datetime) -> str:
    """As ``time_of`` with all digits: for stored values, and for versions, so that ``--at`` finds them."""
    return time_of(moment, "microseconds")


def shown_bytes(count: float) -> str:
    """Format a number of bytes for people.

    >>> shown_bytes(17), shown_bytes(1536), shown_bytes(5 * 1024**4)
    ('17 bytes', '1.5 KiB', '5.0 TiB')
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def html_table(rows: Iterable[tuple[str, object]]) -> str:
    """Build a small table of HTML for a notebook: a row for each name and value, None left out.

    >>> html_table([("version", 1200), ("batch", None), ("tables", "<a>")])
    '<table><tr><th>version</th><td>1,200</td></tr><tr><th>tables</th><td>&lt;a&gt;</td></tr></table>'
    """
    return f"<table>{''.join(_html_row(name, value) for name, value in rows if value is not None)}</table>"


def _html_row(name: str, value: object) -> str:
    text = cell(value) if isinstance(value, bool) or not isinstance(value, int) else f"{value:,}"
    return f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"


def counted(amounts: Mapping[str, int]) -> str:
    """Format numbers by name.

    >>> counted({"aircraft": 1200, "airports": 3}), counted({})
    ('aircraft 1,200, airports 3', 'none')
    """
    return ", ".join(f"{name} {amount:,}" for name, amount in amounts.items()) or "none"


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


def first_line(error: BaseException) -> str:
    """Return the first line of a library's message, which may quote what it was given, as a whole."""
    line = next(filter(None, (line.strip() for line in str(error).splitlines())), type(error).__name__)
    return line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]}..."


# -- a caller's value in a message --------------------------------------------------------------------

LONGEST = 120
"""The most characters of a value in a message, without the note of its whole length."""


class _Short(reprlib.Repr):
    """Like ``repr`` for what is short; containers and numbers are cut before they are formatted."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = LONGEST
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxfrozenset = 10

    def repr_int(self, x: int, level: int) -> str:
        """Python refuses to format more than 4,300 digits, and takes the square of their number in time."""
        bits = x.bit_length()
        return repr(x) if bits <= DIGITS_MAX * 3 else f"<a whole number of {bits:,} bits>"


_short = _Short()


def brief(value: object) -> str:
    """Return ``repr(value)``, cut to some hundred characters. It never raises.

    >>> brief("N14228"), brief(10**5000), brief("x" * 100_000)[-31:]
    ("'N14228'", '<a whole number of 16,610 bits>', "xxxxxx'... (100,000 characters)")
    """
    try:
        if type(value) in (str, bytes) and len(value) > LONGEST:  # type: ignore[arg-type]
            unit = "characters" if type(value) is str else "bytes"
            return f"{_cut(repr(value[:LONGEST]))}... ({len(value):,} {unit})"  # type: ignore[index, arg-type]
        return _cut(_short.repr(value))
    except Exception:  # noqa: BLE001  # a type whose own methods fail
        return f"<a value of type {_cut(type(value).__name__)}>"


def _cut(text: str) -> str:
    return text if len(text) <= 2 * LONGEST else f"{text[: 2 * LONGEST]}..."
