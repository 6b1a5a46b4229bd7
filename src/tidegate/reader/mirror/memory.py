"""A mirror's content in memory: parts of tables, which are never changed and are read without a lock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tidegate.reader.mirror.place import Draft
from tidegate.reader.mirror.view import At, MirrorView
from tidegate.reader.table import TableView

ROW_BYTES = 110
"""The memory of a row besides the bytes of its key and value: two objects and its part of a dict."""
PART_ROWS = 512
"""The rows of a part of a table: a move copies the parts that it changes."""


class TableContent(NamedTuple):
    """A table at one version: stored values by key bytes, in parts by the key's hash. Never changed."""

    view: TableView
    parts: tuple[dict[bytes, bytes], ...]
    rows: int
    size: int

    def at(self, key: bytes) -> bytes | None:
        return self.parts[hash(key) % len(self.parts)].get(key)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        for part in self.parts:
            yield from part.items()

    def moved(self, view: TableView, changes: Iterable[tuple[bytes, bytes | None]]) -> TableContent:
        """Make the content after these changes, with a copy of each part that changes. None deletes."""
        parts, copied = list(self.parts), set[int]()
        rows, size = self.rows, self.size
        for key, value in changes:
            number = hash(key) % len(parts)
            if number not in copied:
                copied.add(number)
                parts[number] = parts[number].copy()
            part = parts[number]
            if (old := part.pop(key, None)) is not None:
                rows, size = rows - 1, size - bytes_of(key, old)
            if value is not None:
                part[key] = value
                rows, size = rows + 1, size + bytes_of(key, value)
        content = TableContent(view, tuple(parts), rows, size)
        if rows > 4 * PART_ROWS * len(parts):  # it grew: smaller parts cost less to copy
            return content_of(view, content.pairs(), rows)
        return content


def content_of(view: TableView, pairs: Iterable[tuple[bytes, bytes]], rows: int = 0) -> TableContent:
    """Make the content of these rows; ``rows``: about how many they are."""
    empty = TableContent(view, tuple({} for _ in range(rows // PART_ROWS + 1)), 0, 0)
    for key, value in pairs:
        empty.parts[hash(key) % len(empty.parts)][key] = value
    return empty._replace(
        rows=sum(map(len, empty.parts)), size=sum(bytes_of(key, value) for key, value in empty.pairs())
    )


def bytes_of(key: bytes, value: bytes) -> int:
    """Return the memory that one row counts for."""
    return len(key) + len(value) + ROW_BYTES


class MemoryDraft:
    """The next content in memory; ``size`` counts the rows read so far."""

    def __init__(self, place: MemoryPlace) -> None:
        self._place = place
        self._old = place.contents
        self._contents: dict[str, TableContent] = {}
        self.size = 0

    def stride_of(self, table: str) -> int | None:
        return self._old[table].view.at.stride if table in self._old else None

    def _put(self, content: TableContent) -> None:
        self._contents[content.view.name] = content
        self.size = sum(content.size for content in self._contents.values())

    def keep(self, view: TableView) -> None:
        self._put(self._old[view.name]._replace(view=view))

    def replace(self, view: TableView, pages: Iterable[tuple[int, Any]]) -> None:
        rows = dict[bytes, bytes]()
        for _, batch in pages:
            page = dict(_columns_of(batch, "key", "value"))
            rows |= page
            self.size += sum(bytes_of(key, value) for key, value in page.items())
        self._put(content_of(view, rows.items(), len(rows)))

    def change(self, view: TableView, batches: Iterable[Any]) -> None:
        changes = (pair for batch in batches for pair in _columns_of(batch, "key", "after"))
        self._put(self._old[view.name].moved(view, changes))

    def finish(self, at: At) -> None:
        self._place.switch(MirrorView(at, self._contents, self.size), self._contents)


def _columns_of(batch: Any, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(batch.column(name).to_pylist() for name in names), strict=True)


class MemoryPlace:
    """The place in memory: the view, and the parts of which the next draft is made."""

    def __init__(self) -> None:
        self.contents: dict[str, TableContent] = {}
        self._view: MirrorView | None = None

    @property
    def at(self) -> At | None:
        return None if self._view is None else self._view.at

    def open(self) -> float | None:
        return None

    @contextlib.contextmanager
    def draft(self) -> Iterator[Draft]:
        yield MemoryDraft(self)

    def switch(self, view: MirrorView, contents: dict[str, TableContent]) -> None:
        self._view, self.contents = view, contents

    def view(self) -> MirrorView:
        assert self._view is not None, "nothing was read yet"
        return self._view

    def checked(self) -> None:
        """Note nothing: nobody else reads it."""

    def close(self) -> None:
        """Keep everything: views stay readable."""
