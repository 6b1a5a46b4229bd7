"""Hints for reads that a gate and a snapshot do not have, because they are a table's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

OF_TABLES = frozenset({"get", "get_many", "scan", "schema", "to_arrow"})
"""The methods of a table that are sought at a gate or a snapshot."""


class TableHints:
    """A class whose tables are found by ``table``. Type checkers see no hints: they have their own."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            own = type(self).__name__
            hint = f": reads are of a table, {own.lower()}.table(NAME).{name}" if name in OF_TABLES else ""
            raise AttributeError(f"a {own} has no attribute {name!r}{hint}", name=name, obj=self)

        def __getitem__(self, name: Any) -> NoReturn:
            own = type(self).__name__
            raise TypeError(f"a {own} has no items: its tables are {own.lower()}.table({name!r})")
