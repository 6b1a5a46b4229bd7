"""The values of a derived group in order, from which min, max, first, last, top and distinct are taken.

A row of the base table gives an **entry**, the JSON of one or two of its columns. A group has each entry
once, in ascending order, with the number of rows that gave it. So a row can be taken out again, whichever
rows came after it. Numbers have one text in all types (``1``, not ``1.0`` and ``1.00``), so that a column may
widen. Nulls are before all values, NaN is after all numbers. Pure functions only.
"""

from __future__ import annotations

import bisect
import datetime
import decimal
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from tidegate.base.decoders import json_decoder

Entry: TypeAlias = bytes
"""The JSON of the values of a row, with a comma between two."""
Entries: TypeAlias = list[msgspec.Raw]
"""The entries of a group as they are stored: JSON arrays of the values and the number of rows."""

FLOATS = ("float", "double")
_NUMBERS = decimal.Context(prec=100)
_WHOLE = 2.0**53
"""All whole numbers below it are doubles, so that their digits alone say which one is meant."""
_texts = json_decoder(list[msgspec.Raw])
_values = msgspec.json.Decoder(list, float_hook=decimal.Decimal)
_SPECIAL = {"inf": '"Infinity"', "-inf": '"-Infinity"', "nan": '"NaN"'}


def entry_of(values: Sequence[object]) -> Entry:
    """Return the entry of a row's values.

    >>> entry_of([None, 1, 1.0, decimal.Decimal("-0.0"), decimal.Decimal("1.50"), datetime.date(2026, 1, 2)])
    b'null,1,1,0,1.5,"2026-01-02"'
    """
    return ",".join([_text(value) for value in values]).encode()


def _text(value: Any) -> str:
    match value:
        case bool() | None | str():
            return msgspec.json.encode(value).decode()
        case int():
            return str(value)
        case float() if not (abs(value) < _WHOLE and value.is_integer()):
            return _SPECIAL.get(digits := repr(value), digits)
        case float():
            return str(int(value))
        case decimal.Decimal():
            return f"{value.normalize(_NUMBERS):f}" if value else "0"
        case datetime.datetime():
            moment = value if value.tzinfo is None else value.astimezone(datetime.timezone.utc)
            zone = "" if value.tzinfo is None else "Z"
            return f'"{moment.replace(tzinfo=None).isoformat(timespec="microseconds")}{zone}"'
    return f'"{value.isoformat()}"'  # a date


def cell_of(text: str, kind: str) -> str:
    """Return the JSON of a column of this type with the value of this text. Raises: ValueError: it is none.

    >>> cell_of("1", "double"), cell_of("1.5", "decimal(9,2)"), cell_of("1", "bigint"), cell_of("null", "int")
    ('1.0', '1.50', '1', 'null')
    """
    if text == "null":
        return text
    if kind.startswith("decimal("):
        scale = int(kind.removesuffix(")").rpartition(",")[2])
        if "e" in text.lower():  # of a damaged row: it may have any number of digits
            raise ValueError
        return f"{decimal.Decimal(text):.{scale}f}"
    return f"{text}.0" if kind in FLOATS and text.removeprefix("-").isdigit() else text


class Order(NamedTuple):
    """The order of a group's rows by these columns. Rows with a null in the first one have no entry."""

    columns: tuple[str, ...]
    types: tuple[str, ...]

    def changed(self, entries: Entries, changes: Mapping[Entry, int]) -> Entries:
        """Return the entries after changes of their numbers.

        Raises: ValueError: more is taken than is there; also errors of entries that cannot be read.
        """
        if len(changes) * len(entries).bit_length() >= len(entries):
            counts = dict(map(_counted, entries))
            for entry, change in changes.items():
                counts[entry] = counts.get(entry, 0) + change
            return sorted([_stored(*each) for each in counts.items() if each[1]], key=self._rank)
        made = [*entries]  # it is long: few of its entries are read
        for entry, change in changes.items():
            place = bisect.bisect_left(made, self._rank(_stored(entry, 0)), key=self._rank)
            stored_entry, count = _counted(made[place]) if place < len(made) else (b"", 0)
            is_there = stored_entry == entry
            count = change + count * is_there
            made[place : place + is_there] = [_stored(entry, count)] if count else []
        return made

    def _rank(self, stored: msgspec.Raw) -> list[tuple[Any, ...]]:
        """Return what orders the entries."""
        *values, _ = _values.decode(stored)
        return [
            (0,) if value is None else _rank(value) if kind in FLOATS else (1, value)
            for value, kind in zip(values, self.types, strict=True)
        ]


def _rank(number: int | decimal.Decimal | str) -> tuple[Any, ...]:
    """Return what orders the values of a float or a double: infinity and NaN are texts."""
    return (2,) if number == "NaN" else (1, decimal.Decimal(number))


def _stored(entry: Entry, count: int) -> msgspec.Raw:
    """Return an entry of this many rows as JSON. Raises: ValueError: it would have less than none."""
    if count < 0:
        raise ValueError
    return msgspec.Raw(b"[%b,%d]" % (entry, count))


def _counted(stored: msgspec.Raw) -> tuple[Entry, int]:
    """Return an entry, and the number of its rows. Raises: ValueError: there is none."""
    entry, _, count = bytes(stored)[1:-1].rpartition(b",")
    return entry, int(count)


def last_of(stored: msgspec.Raw) -> str:
    """Return the text of an entry's last value. Raises: MsgspecError, ValueError: there is none."""
    *_, text, _ = _texts.decode(stored)
    return bytes(text).decode()


def greatest(entries: Entries, number: int) -> Iterator[str]:
    """Yield the last values of this many rows, or of all, from the end; an entry of several rows as often."""
    for stored in reversed(entries):
        _, count = _counted(stored)
        yield from itertools.repeat(last_of(stored), min(count, number))
        if (number := number - count) <= 0:
            return
