"""Comparison of answers with the tables that they should be of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tidegate.torture.history import events
from tidegate.torture.history.files import canonical
from tidegate.torture.history.offers import Place
from tidegate.torture.judge.tables import Table, Tables

Answer = events.Read | events.Scanned


@dataclasses.dataclass(frozen=True)
class Wrong:
    """One key that a read answered wrongly; no key: a whole scan, of which only the digest is known."""

    table: str
    key: str | None
    expected: bytes | None
    writer: int
    """The version that wrote or deleted the key last; 0 when none did."""
    seen: bytes | None


@dataclasses.dataclass
class Mismatch:
    """A wrong answer in its place."""

    wrong: Wrong
    version: int
    place: Place
    began: int
    loose: int | None = None
    """Of a read at the newest version: the oldest version that could be meant."""
    other: str = ""
    """A line where the same snapshot answered differently."""


def wrongs(tables: Tables, event: Answer) -> Iterator[Wrong]:
    """Yield what is wrong in an answer, if it is of these tables."""
    table = tables.table(event.table)
    if isinstance(event, events.Read):
        for key, value in event.found.items():
            yield from _compared(event.table, table, key, canonical(value))
        for key in event.absent:
            yield from _compared(event.table, table, key, None)
        return
    right = event.rows == len(table.values) and event.digest == table.digest()
    if right and event.content is None:
        return
    if event.content is not None:
        differs_by_key = False
        for key in table.values.keys() | event.content.keys():
            seen = canonical(event.content[key]) if key in event.content else None
            for wrong in _compared(event.table, table, key, seen):
                differs_by_key = True
                yield wrong
        if differs_by_key or right:
            return
    expected = f"{len(table.values)} rows, digest {table.digest()}".encode()
    yield Wrong(event.table, None, expected, 0, f"{event.rows} rows, digest {event.digest}".encode())


def _compared(name: str, table: Table, key: str, seen: bytes | None) -> Iterator[Wrong]:
    expected = table.values.get(key)
    if expected != seen:
        yield Wrong(name, key, expected, table.writers.get(key, 0), seen)


def differs(event: Answer, wrong: Wrong) -> bool:
    """Return whether the answer contradicts a wrong one of the same snapshot."""
    if event.table != wrong.table:
        return False
    if isinstance(event, events.Scanned):
        if wrong.key is None:
            return f"{event.rows} rows, digest {event.digest}".encode() != wrong.seen
        if event.content is None:
            return False
        seen = canonical(event.content[wrong.key]) if wrong.key in event.content else None
        return seen != wrong.seen
    if wrong.key in event.found:
        return canonical(event.found[wrong.key]) != wrong.seen
    return wrong.key in event.absent and wrong.seen is not None


def writers_of(tables: Tables, event: Answer, mistakes: list[Wrong]) -> Iterator[int]:
    """Yield the versions whose changes, or deletes, the right part of an answer shows.

    A scan that is right as a whole is skipped: it shows all that there is.
    """
    if isinstance(event, events.Read):
        keys = {*event.found, *event.absent}
    elif mistakes and event.content is not None:
        keys = set(event.content)
    else:
        return
    writers = tables.table(event.table).writers
    for key in keys - {wrong.key for wrong in mistakes}:
        if writer := writers.get(key):
            yield writer
