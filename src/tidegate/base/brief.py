"""A caller's value in an error message: of any type and any size, in bounded length, never an error."""

from __future__ import annotations

import reprlib

LONGEST = 120
"""The most characters of a value in a message, without the note of its whole length."""
DIGITS_MAX = 100


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
