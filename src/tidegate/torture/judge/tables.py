"""The expected content of tables, folded from changes, with the writer of each key and a digest per table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from tidegate.errors import CorruptError
from tidegate.torture.history.events import Change
from tidegate.torture.history.files import HASHES, canonical, digest_text, row_hash

REDUCERS: dict[str, Callable[[Any, Any], Any]] = {"sum": lambda a, b: a + b, "min": min, "max": max}


class Table:
    """The live rows of one table and their writers, and the number and digest that a scan must find."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.writers: dict[str, int] = {}
        """The version that wrote or deleted each key last."""
        self.sum = 0

    def copy(self) -> Table:
        other = Table()
        other.values, other.writers, other.sum = dict(self.values), dict(self.writers), self.sum
        return other

    def set(self, key: str, value: bytes | None, version: int) -> None:
        """Write or, with None, delete one key."""
        before = self.values.pop(key, None)
        if before is not None:
            self.sum = (self.sum - row_hash(key, before)) % HASHES
        if value is not None:
            self.sum = (self.sum + row_hash(key, value)) % HASHES
            self.values[key] = value
        self.writers[key] = version

    def digest(self) -> str:
        return digest_text(self.sum)


class Tables:
    """All tables of a namespace at one version."""

    def __init__(self) -> None:
        self.by_name: dict[str, Table] = {}

    def copy(self) -> Tables:
        other = Tables()
        other.by_name = {name: table.copy() for name, table in self.by_name.items()}
        return other

    def table(self, name: str) -> Table:
        """Return the table; an empty one when nothing was ever written to it."""
        return self.by_name.get(name) or Table()

    def fingerprint(self) -> tuple[tuple[str, int, int], ...]:
        """Return a fingerprint, equal for equal content."""
        filled = [(name, len(table.values), table.sum) for name, table in self.by_name.items()]
        return tuple(sorted(entry for entry in filled if entry[1]))

    def apply(self, changes: Iterable[Change], version: int) -> None:
        """Make the changes of one version, in their order, those with ``counts`` last.

        CorruptError: an append to a value that is no list, or an unknown reducer: no such batch can be
        committed.
        """
        for change in sorted(changes, key=lambda change: bool(change.counts)):
            self._apply(change, version)

    def _apply(self, change: Change, version: int) -> None:
        table = self.by_name.setdefault(change.table, Table())
        if change.replace:
            for key in list(table.values):
                table.set(key, None, version)
        for key, value in change.rows.items():
            table.set(key, None if value is None else canonical(value), version)
        for key, items in change.append.items():
            before = _decoded(table.values.get(key), [])
            if not isinstance(before, list):
                raise CorruptError(f"the history appends to {change.table} {key!r}, which is {before!r}")
            table.set(key, canonical(before + items), version)
        for key, numbers in change.reduce.items():
            before = _decoded(table.values.get(key), {})
            table.set(key, canonical(_reduced(change, before, numbers)), version)
        if change.counts:
            self._count(table, self.table(change.counts), version)

    def _count(self, table: Table, base: Table, version: int) -> None:
        """Set the numbers of the base's rows by value: from scratch, so without the steps of the product."""
        counts = Counter(value.decode() for value in base.values.values())
        for key in table.values.keys() | counts.keys():
            value = canonical({"n": counts[key]}) if key in counts else None
            if value != table.values.get(key):
                table.set(key, value, version)


def _decoded(value: bytes | None, empty: Any) -> Any:
    return empty if value is None else msgspec.json.decode(value)


def _reduced(change: Change, before: dict[str, Any], numbers: dict[str, Any]) -> dict[str, Any]:
    result = dict(before)
    for column, number in numbers.items():
        reducer = REDUCERS.get(change.reducers.get(column, ""))
        if reducer is None:
            raise CorruptError(f"the history reduces column {column!r} of {change.table} by no known reducer")
        result[column] = reducer(before[column], number) if column in before else number
    return result
