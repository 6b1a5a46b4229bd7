"""The footer of a Parquet file, checked before pyarrow makes objects of its columns.

pyarrow ends the process when the metadata of a column is encrypted, or has histograms of levels of a wrong
length: its accessor of a column lets no exception pass. After a list with other elements than Parquet has
there, or a repeated field, pyarrow reads the bytes otherwise than this module, so such a footer is refused.
"""

from __future__ import annotations

from typing import Any, BinaryIO, NamedTuple

from tidegate.committers.exports.parquet_thrift import (
    BINARY,
    BYTE,
    DEPTH_MAX,
    DOUBLE,
    INTEGERS,
    LIST,
    MAP,
    SET,
    STOP,
    STRUCT,
    TRUE,
    Reader,
)

TAIL_BYTES = 8
"""At the end of a file: the footer's length, and the magic."""
FOOTER_BYTES_MAX = 8 * 1024 * 1024
I32, I64 = 5, 6

Fields = dict[int, Any]


class Listed(NamedTuple):
    """The kind and the elements of a list."""

    kind: int
    found: list[Any]


LISTS_OF_FILE = dict.fromkeys((2, 4, 5, 7), STRUCT)
LISTS_OF_GROUP = dict.fromkeys((1, 4), STRUCT)
LISTS_OF_COLUMN = {2: I32, 3: BINARY, 8: STRUCT, 13: STRUCT}
LISTS_OF_SIZES = {2: I64, 3: I64}
ROW_GROUPS, COLUMNS, METADATA, CRYPTO = 4, 1, 3, (8, 9)
TYPE, BYTE_ARRAY, SIZES, GEOSPATIAL = 1, 6, 16, 17
BYTES_OF_TEXTS, HISTOGRAMS = 1, {2: 1, 3: 2}
"""A column that is not nested and may be null has one level of repetition and two of definition."""


def misfit(source: BinaryIO) -> str | None:
    """Describe why pyarrow must not get the footer; None: nothing is wrong with it. For flat files only."""
    end = source.seek(0, 2) - TAIL_BYTES
    source.seek(max(0, end))
    length = int.from_bytes(source.read(4), "little")
    if not 0 < length <= min(end, FOOTER_BYTES_MAX):
        return f"its footer takes {length} bytes, {FOOTER_BYTES_MAX} are allowed"
    source.seek(end - length)
    try:
        return _misfit(Footer(source.read(length)).fields())
    except (IndexError, RecursionError):
        return "its footer cannot be read"


def _misfit(file: Fields) -> str | None:
    _check_lists(file, LISTS_OF_FILE)
    for group in _structs(file, ROW_GROUPS):
        _check_lists(group, LISTS_OF_GROUP)
        for chunk in _structs(group, COLUMNS):
            if any(field in chunk for field in CRYPTO):
                return "it is encrypted, which no export is"
            column = chunk.get(METADATA)
            if isinstance(column, dict) and (why := _misfit_of_column(column)) is not None:
                return why
    return None


def _misfit_of_column(column: Fields) -> str | None:
    _check_lists(column, LISTS_OF_COLUMN)
    sizes = column.get(SIZES)
    if GEOSPATIAL in column:
        return "a column has places on Earth, which no export has"
    if not isinstance(sizes, dict):
        return None
    _check_lists(sizes, LISTS_OF_SIZES)
    for field, levels in HISTOGRAMS.items():
        histogram = sizes.get(field)
        if isinstance(histogram, Listed) and len(histogram.found) not in (0, levels):
            return "a column has a histogram of levels that it does not have"
    if BYTES_OF_TEXTS in sizes and column.get(TYPE) != BYTE_ARRAY:
        return "a column of numbers has a size of texts"
    return None


def _structs(fields: Fields, number: int) -> list[Fields]:
    value = fields.get(number)
    return value.found if isinstance(value, Listed) else []


def _check_lists(fields: Fields, kinds: dict[int, int]) -> None:
    """Check the kinds of lists. Raises: IndexError: one has elements of another kind."""
    for number, kind in kinds.items():
        value = fields.get(number)
        if isinstance(value, Listed) and value.kind != kind and value.found:
            raise IndexError


class Footer(Reader):
    """A reader of a struct and its contents, which skips texts and numbers with a fraction."""

    def fields(self, depth: int = 0) -> Fields:
        """Read the values by field number.

        Raises: IndexError: the bytes end, are invalid, or repeat a number.
        """
        if depth > 2 * DEPTH_MAX:
            raise IndexError
        values: Fields = {}
        number = 0
        while (head := self._byte()) != STOP:
            step = head >> 4
            number = number + step if step else self._signed()
            if number in values:
                raise IndexError
            values[number] = self._value(head & 15, depth)
        return values

    def _value(self, kind: int, depth: int) -> Any:
        if kind in INTEGERS:
            return self._signed()
        if kind == STRUCT:
            return self.fields(depth + 1)
        if kind in (LIST, SET):
            return self._list(depth + 1)
        if kind == MAP:
            raise IndexError  # Parquet has none
        self._skip(kind)
        return None

    def _list(self, depth: int) -> Listed:
        head = self._byte()
        kind, count = head & 15, head >> 4
        if count == 15:
            count = self._varint()
        if kind in (TRUE, TRUE + 1, BYTE, DOUBLE):
            self._over(count * (8 if kind == DOUBLE else 1))
            return Listed(kind, [None])
        if depth > 2 * DEPTH_MAX or count > len(self.content):
            raise IndexError
        return Listed(kind, [self._value(kind, depth) for _ in range(count)])
