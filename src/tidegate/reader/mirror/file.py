"""A mirror's content in a SQLite file: one transaction a move, and a read transaction a view.

The file has the format of docs/readers.md. SQLite has its own ``-wal`` and ``-shm`` in the same folder, and
the mirror's process locks ``-lock`` there. Rows are as the store has them. They are ordered by key group, as
they are read, so that whole tables are written from front to back.

A view's connection stays within a read transaction, so the ``-wal`` is not reused from its front while a
version behind its end is read. ``_tidy`` copies it into the file, and ends views that are too old for that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import msgspec

from tidegate.base.files import close, lock_within, open_private
from tidegate.base.text import brief
from tidegate.errors import ConfigError, CorruptError, SnapshotExpiredError, StoreUnavailableError
from tidegate.keys.groups import key_group_of_each
from tidegate.reader.mirror.place import Draft
from tidegate.reader.mirror.reading import (
    FileContent,
    Reading,
    checked,
    connected,
    explained,
    file_of,
    remedy,
    used_bytes,
    where,
)
from tidegate.reader.mirror.view import At, Content, MirrorView
from tidegate.reader.table import TableView
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.reads import decode, encode
from tidegate.sinks.sqlite.disk.tables import view_or_trigger
from tidegate.values.decode import values_of
from tidegate.wal.record import Count, KeyGroups, TableSchema

APPLICATION_ID = 0x7467_6D69
"""``PRAGMA application_id`` of a mirror's file: "tgmi"."""
FORMAT = 1
"""``PRAGMA user_version`` of a mirror's file."""
TABLES = (
    """CREATE TABLE mirror (one INTEGER PRIMARY KEY CHECK (one = 1), content TEXT NOT NULL,
    checked_us INTEGER NOT NULL)""",
    """CREATE TABLE rows (tbl INTEGER NOT NULL, kg INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (tbl, kg, key)) WITHOUT ROWID""",
)
MADE = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
PUT = "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)"
DELETE = "DELETE FROM rows WHERE tbl = ? AND kg = ? AND key = ?"

CACHE_KIB = 8_192
"""The page cache of the connection that writes; each view has SQLite's default, 2,000 KiB."""
TIDY_BYTES = 32 << 20
"""The size of the ``-wal`` from which on it is copied into the file and emptied, if no older view is read."""
WAL_BYTES_MAX = 256 << 20
"""The size of the ``-wal`` from which on older views are ended, so that it can be emptied."""
GRACE_S = 5.0
"""The time for which a view is not ended after a newer version followed: reads that have begun end before."""
OLDER_MAX = 32
"""The number of older views of which none is ended for its number. Each has a connection."""
CHECKED_S = 60.0
"""The time after which it is noted again that the content is the newest version's."""
LOCK_S = 1.0
"""The longest wait for the lock of a mirror that is being closed."""


class KeptTable(msgspec.Struct, frozen=True):
    """A table of the content: its number of rows, and what reads of its rows need."""

    rows: Count
    start: Count
    stride: KeyGroups
    schema: TableSchema


class Kept(msgspec.Struct, frozen=True):
    """The content of the file. ``tbl`` of a row is its table's index in ``wanted``.

    ``connected_as``: the namespace or the alias by which the gate was connected.
    """

    connected_as: str
    wanted: tuple[str, ...]
    key_groups: KeyGroups
    at: At
    tables: dict[str, KeptTable]


class FilePlace:
    """The place in a file, locked for this mirror."""

    def __init__(
        self, path: str | os.PathLike[str], connected_as: str, uuid: str, tables: Sequence[str]
    ) -> None:
        self.path, self._process = file_of(path), os.getpid()
        self.connected_as, self.wanted = connected_as, tuple(tables)
        self._uuid = uuid
        self._lock: int | None = None
        self._opened: tuple[int, int] | None = None
        self._connection: sqlite3.Connection | None = None
        self.kept: Kept | None = None
        self._view: MirrorView | None = None
        self._reading: Reading | None = None
        self._readings: weakref.WeakSet[Reading] = weakref.WeakSet()
        self._checked = 0.0

    @property
    def at(self) -> At | None:
        return None if self.kept is None else self.kept.at

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection that writes."""
        assert self._connection is not None, "the file is not open"
        return self._connection

    def open(self) -> float | None:
        with explained(self.path):
            self._opened = self._take_lock()
            self._connection = connected(self.path, "rwc")
            connection = self._connection
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # ``_tidy`` does it
            connection.execute("PRAGMA synchronous = NORMAL")
            self._check_format()
            rows = connection.execute("SELECT content, checked_us FROM mirror LIMIT 1").fetchall()
            if not rows:
                return None
            ((content, checked_us),) = checked(self.path, rows, (str, int))
            self.kept = self._checked_kept(self._decoded(content))
            self._use_wal()
            self._view = self._read()
            return float(max(0.0, time.time() - checked_us / 1e6))

    def _take_lock(self) -> tuple[int, int]:
        """Lock the mirror's files, all this user's own with mode 0600; return the inode with the rows."""
        lock, *beside = (self.path.with_name(f"{self.path.name}-{name}") for name in ("lock", "wal", "shm"))
        try:
            self._lock = open_private(lock, os.O_RDONLY)
            if not lock_within(self._lock, LOCK_S):
                raise ConfigError(
                    f"{where(self.path)} is in use by another mirror: give this one a path of its own, or"
                    " close the other one"
                )
            rows = open_private(self.path)  # its -wal and -shm get the same mode
            status = os.fstat(rows)
            close(rows)
            for path in beside:
                if path.exists() or path.is_symlink():
                    close(open_private(path))
        except OSError as error:
            raise ConfigError(
                f"{where(self.path)}: {error.strerror}; give a path in a folder that only this user may write"
            ) from error
        return status.st_dev, status.st_ino

    def _inode(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _check_file(self) -> None:
        """Refuse a file that was not opened: its -wal would belong to another one."""
        if self._inode() != self._opened:
            raise StoreUnavailableError(
                f"{where(self.path)} was removed or replaced: close this mirror, and make it again"
            )

    def _check_format(self) -> None:
        """Refuse a file that is no mirror's; make the tables in a new one. Raises: ConfigError."""
        connection = self.connection
        (application,), (number,) = (
            connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        )
        if not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() and not application:
            connection.executescript(
                f"BEGIN; {'; '.join(TABLES)}; PRAGMA application_id = {APPLICATION_ID};"
                f" PRAGMA user_version = {FORMAT}; COMMIT;"
            )
        elif application != APPLICATION_ID:
            raise ConfigError(f"{where(self.path)} is another program's database: give another path")
        elif foreign := view_or_trigger(connection):
            raise CorruptError(
                f"{where(self.path)} has {foreign}, which tidegate does not make: {remedy(self.path)}"
            )
        elif number != FORMAT:
            raise ConfigError(
                f"{where(self.path)} has format {number}, this release has {FORMAT}: {remedy(self.path)}"
            )
        elif [sql for (sql,) in connection.execute(MADE).fetchall()] != list(TABLES):
            raise CorruptError(f"{where(self.path)} has other tables than a mirror's: {remedy(self.path)}")

    def _decoded(self, content: str) -> Kept:
        try:
            meta = decode(where(self.path), content, Kept)
            for table in meta.tables.values():
                values_of(table.schema)
        except (CorruptError, ConfigError) as error:  # a schema is refused as a mistake of its writer
            raise CorruptError(f"{where(self.path)} is damaged: {error}; {remedy(self.path)}") from error
        if not (
            meta.at.version
            and meta.at.namespace.isprintable()
            and meta.at.digest.isprintable()
            and meta.tables.keys() <= set(meta.wanted)
            and all(table.stride <= meta.key_groups for table in meta.tables.values())
        ):
            raise CorruptError(f"{where(self.path)} is damaged: its content cannot be; {remedy(self.path)}")
        return meta

    def _checked_kept(self, meta: Kept) -> Kept:
        """Refuse the content of another mirror. Raises: ConfigError."""
        for what, actual, expected in (
            ("the mirror of", meta.connected_as, self.connected_as),
            ("a mirror of namespace", meta.at.uuid, self._uuid or meta.at.uuid),  # '': an alias may name any
            ("a mirror of the tables", ", ".join(meta.wanted), ", ".join(self.wanted)),
        ):
            if actual != expected:
                raise ConfigError(
                    f"{where(self.path)} is {what} {brief(actual)}, and {brief(expected)} was asked for:"
                    f" {remedy(self.path)}"
                )
        return meta

    def _use_wal(self) -> None:
        """Let readers and the writer work at the same time; without effect from the second time on."""
        (mode,) = self.connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise ConfigError(
                f"{where(self.path)}: this file system does not allow SQLite's WAL mode: give a path on a"
                " local disk"
            )

    def _read(self) -> MirrorView:
        """Begin to read the version that is in the file."""
        self._check_file()
        reading = Reading(self.path)
        meta = self._decoded(reading.content)
        if meta != self.kept:
            raise CorruptError(f"{where(self.path)} was changed by another program: {remedy(self.path)}")
        mark, contents = meta.at, dict[str, Content]()
        for name, table in meta.tables.items():
            read_at = ReadAt(name, mark.version, table.start, table.stride, mark.decided_at_us)
            view = TableView(where(self.path), read_at, meta.key_groups, values_of(table.schema))
            contents[name] = FileContent(view, table.rows, self.wanted.index(name), reading)
        if self._reading is not None:
            self._reading.passed_at = time.monotonic()
        self._reading = reading
        self._readings.add(reading)
        return MirrorView(mark, contents, reading.size())

    def view(self) -> MirrorView:
        if self._view is None or self._view.at != self.at:
            with explained(self.path):
                self._use_wal()
                self._view = self._read()
        return self._view

    @contextlib.contextmanager
    def draft(self) -> Iterator[Draft]:
        self._check_file()
        with explained(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield FileDraft(self)
            finally:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")

    def commit(self, meta: Kept) -> None:
        """Make the draft the content. Durable after a crash of the process; a power cut may undo it whole."""
        self.connection.execute(
            "INSERT OR REPLACE INTO mirror VALUES (1, ?, ?)", (encode(meta).decode(), self._now_us())
        )
        self.connection.execute("COMMIT")
        self.kept = meta

    def _now_us(self) -> int:
        self._checked = time.monotonic()
        return time.time_ns() // 1_000

    def checked(self) -> None:
        self._check_file()
        with explained(self.path):
            if time.monotonic() - self._checked > CHECKED_S:
                self.connection.execute("UPDATE mirror SET checked_us = ?", (self._now_us(),))
            self._tidy()

    def _wal_bytes(self) -> int:
        try:
            return self.path.with_name(f"{self.path.name}-wal").stat().st_size
        except FileNotFoundError:
            return 0

    def _tidy(self) -> None:
        """Copy the ``-wal`` into the file and empty it, if it is large and nobody reads an older version."""
        wal, older = self._wal_bytes(), [one for one in self._readings if one is not self._reading]
        older.sort(key=lambda reading: reading.passed_at, reverse=True)
        due = time.monotonic() - GRACE_S if wal > WAL_BYTES_MAX else 0.0
        retained = [one for one in older[:OLDER_MAX] if one.passed_at > due]
        for reading in set(older).difference(retained):
            reading.end(
                SnapshotExpiredError(
                    f"{where(self.path)}: this view of an older version ended, so that the file does not"
                    " grow: take a new view"
                )
            )
            self._readings.discard(reading)
        if retained or wal <= TIDY_BYTES or self._reading is None:
            return
        self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self._reading.renew()  # from the file alone, so that the -wal has no reader
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        if os.getpid() != self._process:  # a forked child: the connections and the lock are its parent's
            return
        for reading in list(self._readings):
            reading.end(ConfigError(f"{where(self.path)}: the mirror of this view was closed"))
        self._readings.clear()
        self._reading = None
        if self._connection is not None:
            self._connection.close()
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a forked child has the descriptor, too
            close(self._lock)
        self._connection = self._lock = None


class FileDraft:
    """The next content, in the transaction that the place has begun."""

    def __init__(self, place: FilePlace) -> None:
        self._place, self._connection = place, place.connection
        self._old = {} if place.kept is None else place.kept.tables
        self._tables: dict[str, KeptTable] = {}
        self._key_groups = 1

    @property
    def size(self) -> int:
        return used_bytes(self._connection)

    def stride_of(self, table: str) -> int | None:
        return self._old[table].stride if table in self._old else None

    def _put(self, view: TableView, rows: int) -> None:
        self._tables[view.name] = KeptTable(rows, view.at.start, view.at.stride, view.values.schema)
        self._key_groups = view.key_groups

    def _number(self, table: str) -> int:
        return self._place.wanted.index(table)

    def keep(self, view: TableView) -> None:
        self._put(view, self._old[view.name].rows)

    def replace(self, view: TableView, pages: Iterable[tuple[int, Any]]) -> None:
        number, rows = self._number(view.name), 0
        self._empty(view.name)
        for group, batch in pages:
            columns = (batch.column(name).to_pylist() for name in ("key", "value"))
            self._connection.executemany(PUT, zip(repeat(number), repeat(group), *columns, strict=False))
            rows += batch.num_rows
        self._put(view, rows)

    def change(self, view: TableView, batches: Iterable[Any]) -> None:
        number, rows = self._number(view.name), self._old[view.name].rows
        for batch in batches:
            keys, after = (batch.column(name).to_pylist() for name in ("key", "after"))
            groups = key_group_of_each(keys, view.key_groups, view.at.stride)
            changes = list(zip(repeat(number), groups, keys, after, strict=False))
            self._connection.executemany(DELETE, (change[:3] for change in changes if change[3] is None))
            self._connection.executemany(PUT, (change for change in changes if change[3] is not None))
            rows += batch.column("before").null_count - batch.column("after").null_count
        self._put(view, rows)

    def _empty(self, table: str) -> None:
        if len(self._place.wanted) == 1:
            self._connection.execute("DELETE FROM rows")  # without a look at each row
        else:
            self._connection.execute("DELETE FROM rows WHERE tbl = ?", (self._number(table),))

    def finish(self, at: At) -> None:
        for name in self._old.keys() - self._tables.keys():
            self._empty(name)
        place = self._place
        place.commit(Kept(place.connected_as, place.wanted, self._key_groups, at, self._tables))
