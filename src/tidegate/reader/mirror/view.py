"""The content of a mirror at one version, in memory: it is never changed, and read without a lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tidegate.base.names import listed
from tidegate.errors import ConfigError
from tidegate.reader import rules
from tidegate.reader.table import TableView, hashable
from tidegate.values.decode import Value

if TYPE_CHECKING:
    from tidegate.reader.snapshot import Snapshot

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
            return content_of(view, ((key, part[key]) for part in parts for key in part), rows)
        return content


def content_of(view: TableView, pairs: Iterable[tuple[bytes, bytes]], rows: int = 0) -> TableContent:
    """Make the content of these rows; ``rows``: about how many they are."""
    empty = TableContent(view, tuple({} for _ in range(rows // PART_ROWS + 1)), 0, 0)
    for key, value in pairs:
        empty.parts[hash(key) % len(empty.parts)][key] = value
    return empty._replace(
        rows=sum(map(len, empty.parts)),
        size=sum(bytes_of(key, value) for part in empty.parts for key, value in part.items()),
    )


def bytes_of(key: bytes, value: bytes) -> int:
    """Return the memory that one row counts for."""
    return len(key) + len(value) + ROW_BYTES


class Contents(Protocol):
    """The source of a table's rows: a view, or a mirror, whose view changes."""

    def view(self) -> MirrorView:
        """Return the content at one version."""
        ...


class MirroredTable:
    """One table of a mirror, at its version at the call, or of a view, at that one's. No call does I/O."""

    def __init__(self, source: Contents, name: str) -> None:
        self.name = name
        self._source = source

    def _content(self) -> TableContent:
        return self._source.view().content_of(self.name)

    def get(self, key: Any) -> Value | None:
        """Return the key's value, None when it is absent.

        Raises: BadRecordError: the key is not of the table's type. ConfigError: the table was dropped. The
        error that ended the mirror, see ``Mirror``.
        """
        content = self._content()
        encoded = content.view.encode(key)
        value = content.at(encoded)
        return None if value is None else content.view.decode(encoded, value)

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Value]:
        """Return the values of these keys, all at one version, by key, without absent keys.

        Raises: as ``get``; ConfigError also for one key instead of several.
        """
        content, found = self._content(), dict[Any, Value]()
        for key in rules.keys_of(keys):
            encoded = content.view.encode(key)
            if (value := content.at(encoded)) is not None:
                found[hashable(key)] = content.view.decode(encoded, value)
        return found

    def scan(self) -> Iterator[tuple[Any, Value]]:
        """Yield all rows as (key, value), at the version of the call, in no particular order."""
        return _decoded(self._content())

    def __len__(self) -> int:
        return self._content().rows

    def __repr__(self) -> str:
        return f"<MirroredTable {self.name} of {self._source!r}>"


def _decoded(content: TableContent) -> Iterator[tuple[Any, Value]]:
    view = content.view
    for part in content.parts:
        for key, value in part.items():
            yield view.decode_key(key), view.decode(key, value)


class MirrorView:
    """The tables of a mirror at one version, for as long as the view is kept. Thread-safe; needs no closing.

    It is in memory: no lease holds the version in the store.
    """

    def __init__(self, snapshot: Snapshot, contents: Mapping[str, TableContent]) -> None:
        self.version, self.namespace = snapshot.version, snapshot.namespace
        self.decided_at = snapshot.decided_at
        self.contents = contents

    def view(self) -> MirrorView:
        return self

    def tables(self) -> list[str]:
        """List the mirrored tables that the version has."""
        return listed(self.contents)

    def table(self, name: str) -> MirroredTable:
        """Return a table at this version. Raises: ConfigError: it is not mirrored, or not there."""
        self.content_of(name)
        return MirroredTable(self, name)

    @property
    def size(self) -> int:
        """The bytes of memory that the rows count for."""
        return size_of(self.contents)

    def content_of(self, name: str) -> TableContent:
        content = self.contents.get(name)
        if content is None:
            raise ConfigError(
                f"this mirror has no table {name!r} at version {self.version} of namespace {self.namespace};"
                f" it has: {', '.join(self.tables()) or 'none'}"
            )
        return content

    def __repr__(self) -> str:
        return f"<MirrorView of version {self.version} of {self.namespace}>"


def size_of(contents: Mapping[str, TableContent]) -> int:
    """Add up the bytes of memory that the tables' rows count for."""
    return sum(content.size for content in contents.values())
