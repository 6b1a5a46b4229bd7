"""Columns of bytes: Arrow's where it is installed, else lists with the few methods that readers use. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tidegate.base.extras import has_arrow, pa


class PlainColumn(list[Any]):
    """A column without Arrow."""

    def to_pylist(self) -> list[Any]:
        return self

    @property
    def null_count(self) -> int:
        return self.count(None)

    def is_valid(self) -> list[bool]:
        return [value is not None for value in self]


class PlainBatch:
    """A record batch (key, value) without Arrow."""

    def __init__(self, keys: PlainColumn, values: PlainColumn) -> None:
        self._columns = {"key": keys, "value": values}

    def column(self, name: str) -> PlainColumn:
        return self._columns[name]

    __getitem__ = column

    @property
    def num_rows(self) -> int:
        return len(self._columns["key"])

    def filter(self, mask: Sequence[bool]) -> PlainBatch:
        return PlainBatch(*(PlainColumn(itertools.compress(of, mask)) for of in self._columns.values()))


def column_of(values: Sequence[bytes | None]) -> Any:
    """Build a binary column: an Arrow array, or a ``PlainColumn``.

    >>> column_of([b"a", None]).null_count
    1
    """
    return pa.array(values, pa.binary()) if has_arrow() else PlainColumn(values)


def batch_from(keys: Any, values: Any) -> Any:
    """Build a batch (key, value) of two such columns."""
    if isinstance(keys, PlainColumn):
        return PlainBatch(keys, values)
    return pa.record_batch([keys, values], names=["key", "value"])
