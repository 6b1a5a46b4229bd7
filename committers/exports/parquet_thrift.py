"""Structs in Thrift's compact protocol, the encoding of Parquet's metadata."""

from __future__ import annotations

STOP, TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 11, 12
INTEGERS = (4, 5, 6)
DEPTH_MAX = 8


class Reader:
    """A reader of a struct that can skip any field. Raises: IndexError: the bytes end, or are invalid."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def integers(self, within: tuple[int, ...] = ()) -> dict[tuple[int, ...], int]:
        """Read the integers of the struct and of nested ones, by the path of field numbers to each."""
        if len(within) > DEPTH_MAX:
            raise IndexError
        values: dict[tuple[int, ...], int] = {}
        number = 0
        while (head := self._byte()) != STOP:
            kind, step = head & 15, head >> 4
            number = number + step if step else self._signed()
            place = (*within, number)
            if kind in INTEGERS:
                values[place] = self._signed()
            elif kind == STRUCT:
                values |= self.integers(place)
            else:
                self._skip(kind)
        return values

    def _byte(self) -> int:
        self.at += 1
        return self.content[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise IndexError

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _over(self, count: int) -> None:
        self.at += count
        if self.at > len(self.content):
            raise IndexError

    def _skip(self, kind: int) -> None:
        if kind in (BYTE, DOUBLE):
            self._over(1 if kind == BYTE else 8)
        elif kind == BINARY:
            self._over(self._varint())
        elif kind not in (TRUE, FALSE):  # lists, sets, maps: no header of a page has any
            raise IndexError
