"""The content of a mirror at one version, as it is read: it never changes, wherever it is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from tidegate.base.names import listed
from tidegate.base.text import brief
from tidegate.errors import ConfigError
from tidegate.reader import rules
from tidegate.reader.rules import check_table
from tidegate.reader.table import OfProcess, TableView
from tidegate.sinks.rules import visible
from tidegate.sinks.rules.version_ref import VersionRef
from tidegate.values.decode import Value
from tidegate.wal.record import Count


class At(msgspec.Struct, frozen=True):
    """The version that a content is of, in one history of one namespace."""

    namespace: str
    uuid: str
    version: Count
    digest: str
    decided_at_us: Count

    @property
    def ref(self) -> VersionRef:
        """The version with its history, without names and times."""
        return VersionRef(self.version, self.uuid, self.digest)


class Content(Protocol):
    """A table at one version: stored values by key bytes."""

    @property
    def view(self) -> TableView:
        """The encoding of keys and rows."""
        ...

    @property
    def rows(self) -> int:
        """The number of rows."""
        ...

    def at(self, key: bytes) -> bytes | None:
        """Return a key's stored value, None when it is absent."""
        ...

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows."""
        ...


class Contents(Protocol):
    """The source of a table's rows: a view, or a mirror, whose view changes."""

    def view(self) -> MirrorView:
        """Return the content at one version."""
        ...


class MirroredTable:
    """One table of a mirror, at its version at the call, or of a view, at that one's. Thread-safe.

    In memory no call does I/O or takes a lock. In a file each read takes the lock of its view, and may read
    the disk.
    """

    def __init__(self, source: Contents, name: str) -> None:
        self.name = name
        self._source = source

    def _content(self) -> Content:
        return self._source.view().content_of(self.name)

    def get(self, key: Any) -> Value | None:
        """Return the key's value, None when it is absent.

        Raises: BadRecordError: the key is not of the table's type. ConfigError: the table was dropped. The
        error that ended the mirror, see ``Mirror``. SnapshotExpiredError: a view in a file ended.
        """
        content = self._content()
        encoded = content.view.encode(key)
        value = content.at(encoded)
        return None if value is None else content.view.decode(encoded, value)

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Value]:
        """Return the values of these keys, all at one version, by key, without absent keys.

        Raises: as ``get``; ConfigError also for one key instead of several, and for two keys that no dict can
        tell apart.
        """
        content, values = self._content(), dict[Any, Value]()
        for encoded, key in content.view.encode_all(rules.keys_of(keys)).items():
            if (value := content.at(encoded)) is not None:
                values[key] = content.view.decode(encoded, value)
        return values

    def scan(self) -> Iterator[tuple[Any, Value]]:
        """Yield all rows as (key, value), at the version of the call, in no particular order."""
        return _decoded(self._content())

    def __len__(self) -> int:
        return self._content().rows

    def __repr__(self) -> str:
        return f"<MirroredTable {self.name} of {self._source!r}>"


def _decoded(content: Content) -> Iterator[tuple[Any, Value]]:
    view = content.view
    for key, value in content.pairs():
        yield view.decode_key(key), view.decode(key, value)


class MirrorView(OfProcess):
    """The tables of a mirror at one version. Thread-safe; needs no closing. No lease holds it in the store.

    In memory it is readable for as long as it is kept. In a file it is a read transaction: it ends when its
    mirror is closed, or with SnapshotExpiredError when it is too old (``Gate.mirror``).
    """

    def __init__(self, at: At, contents: Mapping[str, Content], size: int) -> None:
        self.at, self.contents, self.size = at, contents, size
        self.version, self.namespace = at.version, at.namespace
        self.decided_at = visible.moment(at.decided_at_us)

    @property
    def ref(self) -> VersionRef:
        """The version with its history, to be kept outside the process."""
        return self.at.ref

    def view(self) -> MirrorView:
        return self

    def tables(self) -> list[str]:
        """List the mirrored tables that the version has."""
        return listed(self.contents)

    def table(self, name: str) -> MirroredTable:
        """Return a table at this version. Raises: ConfigError: it is not mirrored, or not there."""
        self.content_of(name)
        return MirroredTable(self, name)

    def content_of(self, name: str) -> Content:
        check_table(name)
        content = self.contents.get(name)
        if content is None:
            raise ConfigError(
                f"this mirror has no table {brief(name)} at version {self.version} of namespace"
                f" {self.namespace};"
                f" it has: {', '.join(self.tables()) or 'none'}"
            )
        return content

    def __repr__(self) -> str:
        return f"<MirrorView of version {self.version} of {self.namespace}>"


class MirrorReads(OfProcess):
    """The reads that mirrors of threads and of event loops share."""

    def view(self) -> MirrorView:
        """Return the present content, for several reads at one version.

        Raises: the error that ended the mirror.
        """
        raise NotImplementedError

    def table(self, name: str) -> MirroredTable:
        """Return a table, which is read at the mirror's version at each call. Raises: as ``MirrorView``."""
        self.view().content_of(name)
        return MirroredTable(self, name)

    def tables(self) -> list[str]:
        """List the mirrored tables that the version has."""
        return self.view().tables()

    @property
    def version(self) -> int:
        """The version of the content."""
        return self.view().version

    @property
    def size(self) -> int:
        """The bytes that the rows take, in memory or in the file, to compare with ``bytes_max``."""
        return self.view().size
