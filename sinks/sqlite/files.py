"""The files of a SQLite store: their tables, their connections, and the meaning of their errors.

Published in docs/storage-format.md::

    <path>/.tidegate                       the mark of a folder that holds stores
    <path>/<escape(namespace)>/meta.sqlite        identity, pointer, leases, catalog, schemas
    <path>/<escape(namespace)>/shard-NN.sqlite    rows; min(16, key_groups) files, key group g in
                                                  file g * files // key_groups

All files are in WAL mode (SQLite's own write-ahead log, beside each file as ``-wal``).

Durability. A commit with ``synchronous=FULL`` fsyncs the ``-wal`` file before any other connection
can see the commit; one with NORMAL does not fsync. There is one ``-wal`` per file, for all
processes, filled from front to back, and an fsync covers all earlier writes of any process. So a
FULL commit makes every earlier commit on that file durable, whichever process made it. A checkpoint
does not weaken this: in either mode it fsyncs the ``-wal`` before it copies a page into the main
file, and the main file before the ``-wal`` is reused from the front; at any time a commit is whole
in one of the two. After a power cut recovery ends at the first frame that does not fit its
checksum: the lost commits are always the last ones. Applied rows and their count are one commit, so
they are both there or both lost.

One trap remains: a process killed between writing a FULL commit's frames and their fsync. The next
process to open the file sees that commit, though nothing made it durable. So code that reports data
as already durable must not rely on a read: see ``DURABLE``.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tidegate.base.files import (
    PASSING,
    NotRegularError,
    close,
    create,
    lock_within,
    refuse_special,
    sync_above,
    sync_folder,
)
from tidegate.base.files import make_folder as make_durably
from tidegate.base.forks import IN_LIBRARY
from tidegate.base.urls import quoted_path
from tidegate.errors import ConfigError, CorruptError, StoreUnavailableError, TidegateError
from tidegate.sinks.records import Identity
from tidegate.sinks.rules.reads import checked_format, decode, dropped, lost
from tidegate.sinks.sqlite.idle import Connection, Connections, close_unused
from tidegate.sinks.sqlite.unwritable import may_make_files_beside, reading_only, takes_no_writes

META_FILE = "meta.sqlite"
MARK = ".tidegate"
"""An empty file in the folder of all namespaces. A disk that is not mounted looks like a store that was lost:
the folder is missing, or empty. A query makes a lost store again only in a folder with the mark, which stays
there after a drop.
"""
SHARDS_MAX = 16
FORMAT = 2
"""The format of the files, in the identity and as ``user_version`` of each of them. Format 1 has 0 there."""

META = """
CREATE TABLE IF NOT EXISTS namespace (one INTEGER PRIMARY KEY CHECK (one = 1), identity TEXT NOT NULL,
    ready INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS pointer (one INTEGER PRIMARY KEY CHECK (one = 1), visible INTEGER NOT NULL,
    digest TEXT NOT NULL, epoch INTEGER NOT NULL, writer TEXT NOT NULL, horizon INTEGER NOT NULL,
    heartbeat_us INTEGER);
INSERT OR IGNORE INTO pointer VALUES (1, 0, '', 0, '', 0, NULL);
CREATE TABLE IF NOT EXISTS leases (lease_id TEXT PRIMARY KEY, version INTEGER NOT NULL,
    taken_us INTEGER NOT NULL, expires_us INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS catalog (version INTEGER PRIMARY KEY, entry TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS schemas (schema_id TEXT PRIMARY KEY, schema TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS durable (one INTEGER PRIMARY KEY CHECK (one = 1), times INTEGER NOT NULL);
INSERT OR IGNORE INTO durable VALUES (1, 0);
"""

SHARD = """
CREATE TABLE IF NOT EXISTS shard (one INTEGER PRIMARY KEY CHECK (one = 1), uuid TEXT NOT NULL,
    number INTEGER NOT NULL, shards INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS floors (kg INTEGER PRIMARY KEY, floor INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS applied (kg INTEGER NOT NULL, version INTEGER NOT NULL, tbl TEXT NOT NULL,
    chunk INTEGER NOT NULL, rows INTEGER NOT NULL, PRIMARY KEY (kg, version, tbl, chunk)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sealed (kg INTEGER NOT NULL, version INTEGER NOT NULL,
    PRIMARY KEY (kg, version)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sealed_by_version ON sealed (version);
CREATE TABLE IF NOT EXISTS durable (one INTEGER PRIMARY KEY CHECK (one = 1), times INTEGER NOT NULL);
INSERT OR IGNORE INTO durable VALUES (1, 0);
"""

TABLE = """
CREATE TABLE IF NOT EXISTS {name} (kg INTEGER NOT NULL, key BLOB NOT NULL, version INTEGER NOT NULL,
    value BLOB NOT NULL, PRIMARY KEY (kg, key, version)) WITHOUT ROWID
"""

VIEW_OR_TRIGGER = "SELECT type, name FROM sqlite_master WHERE type NOT IN ('table', 'index') LIMIT 1"
ANY_TABLE = "SELECT 1 FROM sqlite_master LIMIT 1"

DURABLE = "UPDATE durable SET times = times + 1"
"""Part of every transaction that promises durability. SQLite does not write an unchanged page, and
a commit that writes no page does not fsync: this row always changes.
"""

CACHE_KIB = 2_048
"""Page cache of one connection. In benchmarks/bench_sqlite_apply.py 2, 8 and 32 MB had the same result."""
AUTOCHECKPOINT_PAGES = 1_000
"""4 MB of ``-wal`` per file before a commit also copies pages into the main file. 4, 16 and 64 MB
had the same throughput; with 16 files the larger ones take hundreds of MB of disk for a small
namespace.
"""

LOCKS_OUT = (
    "attempt to write a readonly database: it belongs to another user, who could not write the side files"
    " that SQLite makes for this one"
)
HINTS = {
    "is full": "; make room on this disk",
    "I/O error": "; check its disk: it is full, limited for this user, or failing",
    "is locked": "; another process holds its lock: look for a stopped one that writes this namespace",
    "unable to open": "; check whether this user may use its folder, and how many files it may open",
}
"""Remedies, by a part of SQLite's message."""
NO_TEXT = "not decode to UTF-8"
OTHER_COLUMNS = re.compile(r"has \d+ columns but|has no column|integer overflow|no such")


class Files:
    """The connections of one process to one namespace's files; for any number of threads.

    A connection is used by one thread at a time, and only in the process that opened it: after a
    fork the child abandons its parent's connections and opens its own (T13). A file is opened at its
    first use, and again if ``idle.py`` closed its connection. ``compare`` looks at each shard that is
    opened: somebody may have put another file there.
    """

    def __init__(
        self,
        folder: Path,
        where: str,
        timeout_s: float,
        compare: Callable[[Files, str, sqlite3.Connection], None],
    ) -> None:
        self.folder = folder
        self._meta_path = folder / META_FILE
        self.where = where
        self.uuid: str | None = None  # the namespace's, once it was read
        self._compare = compare
        self.creates = False  # this process is creating the namespace
        self.expected: dict[str, tuple[str, int, int]] = {}  # per shard file: uuid, number, files
        self._timeout_s = timeout_s
        self._connections = Connections(folder)
        self._commits: collections.Counter[str] = collections.Counter()
        """The number of this instance's commits per file that were not durable by themselves."""
        self._on_disk: dict[str, int] = {}
        """Their number at the latest durable commit of this instance; other processes are not counted."""
        self._closed = False

    def exists(self, name: str) -> bool:
        """Return whether the file exists. Raises: ConfigError: its path leads through a file, or is
        not readable.
        """
        with self._looking():
            try:
                (self.folder / name).stat()
            except FileNotFoundError:
                return False
        return True

    def size(self, pattern: str = "*") -> int:
        """Return the bytes of files in the folder, by default with SQLite's own. Raises: as ``exists``."""
        sizes = []
        with self._looking():
            for path in self.folder.glob(pattern):
                with contextlib.suppress(FileNotFoundError):  # SQLite's own files appear and vanish
                    sizes.append(path.stat().st_size)
        return sum(sizes)

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # a path through a file, one that this user may not read, a loop of links
            raise ConfigError(
                f"{self.where}: {self.folder}: {error.strerror}; give a folder that this user can read"
            ) from None

    def make(self, name: str, script: str) -> None:
        """Create a file with these tables, or finish its creation. Raises: ConfigError: SQLite fails here."""
        with contextlib.suppress(OSError):  # it exists; or cannot be created, which SQLite reports
            os.close(create(self.folder / name, os.O_RDWR))  # its -wal and -shm get the same mode
        with self._explaining(name):
            connection = self._connect(name, "mode=rwc")
            try:
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
                if mode != "wal":
                    raise ConfigError(f"{self.where}: this file system does not allow SQLite's WAL mode")
                connection.execute("PRAGMA synchronous = FULL")
                is_new = connection.execute(ANY_TABLE).fetchone() is None
                version = f"PRAGMA user_version = {FORMAT};" * is_new
                connection.executescript(f"BEGIN IMMEDIATE; {script} {version} {DURABLE}; COMMIT;")
            finally:
                connection.close()

    @contextlib.contextmanager
    def connection(self, name: str, *, writes: bool = False) -> Iterator[sqlite3.Connection]:
        """Lend a connection to one file for the block.

        Errors of SQLite inside the block leave it as tidegate's errors that name the file, and an
        unfinished transaction is rolled back. Unless the block ``writes``, a file that cannot be written is
        read by other ways (``unwritable.py``).
        """
        if self._closed:
            raise ConfigError(f"{self.where}: this store was closed; open it again")
        connections = self._connections
        with self._explaining(name):
            permitted = connections.enter(name)
            try:
                connection = connections.take(name)
                if connection is None:
                    close_unused()
                    try:
                        connection = self._connect_checked(name)
                    except sqlite3.OperationalError as error:
                        if writes or not takes_no_writes(error):
                            raise
                        connect = partial(self._connect_checked, name)
                        with reading_only(self.folder / name, connect, error) as read_only:
                            yield read_only
                        return
                try:
                    yield connection
                except sqlite3.Error:
                    connection.close()  # whatever its state; rolls back
                    raise
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    self._give_back(name, connection)
                    raise
                self._give_back(name, connection)
            finally:
                connections.leave(name, permitted=permitted)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[sqlite3.Connection]:
        """Give one consistent view of one file, for the length of the block."""
        with self.connection(name) as connection:
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")

    @contextlib.contextmanager
    def writing(self, name: str, *, durable: bool) -> Iterator[sqlite3.Connection]:
        """Run one transaction on one file; with ``durable`` it and all earlier ones there are on disk.

        BEGIN IMMEDIATE: the write lock is taken before any read, so that no other commit
        invalidates what is read, and the wait for the lock happens only here.
        """
        with self.connection(name, writes=True) as connection:
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            # Counted while the write lock is held, so that there is no other commit in between.
            if durable:
                connection.execute(DURABLE)
            else:
                self._commits[name] += 1
            commits = self._commits[name]
            connection.execute("COMMIT")
            if durable:
                self._on_disk[name] = commits

    def put_on_disk(self, name: str) -> None:
        """Make all commits on one file durable, unless this instance knows that they are."""
        if self._on_disk.get(name) != self._commits[name]:
            with self.writing(name, durable=True):
                pass

    def check(self, name: str) -> None:
        """Raise, as a first use does, unless the file is this namespace's. No connection is kept."""
        with self._explaining(name):
            self._connect_checked(name).close()

    def close(self) -> None:
        """Close the connections; the last one to a file also empties its ``-wal``."""
        self._closed = True
        self.forget()

    def forget(self) -> None:
        """Close the idle connections: their files may have been removed meanwhile."""
        self._connections.close()

    # -- one connection ------------------------------------------------------------------------

    def _give_back(self, name: str, connection: Connection) -> None:
        if self._closed:
            connection.close()
        else:
            self._connections.give_back(name, connection)

    def _connect_checked(self, name: str, parameters: str = "mode=rw") -> Connection:
        """Open a file that must exist and must be this namespace's (I10).

        A file that SQLite cannot open is an error here, and not at the first use.
        """
        path = self.folder / name
        if not self.exists(name):
            self._refuse_dropped()
            if name == META_FILE and self.uuid is not None:  # the folder is there: it is being created again
                raise lost(self.where)
            raise CorruptError(
                f"{self.where}: {path} is missing; put it back from a copy of the whole folder"
            )
        connection = self._connect(name, parameters)
        try:
            self._check_format(path, connection)
            if name in self.expected:
                identity = connection.execute("SELECT uuid, number, shards FROM shard").fetchone()
                if identity != self.expected[name]:
                    self._refuse_dropped()
                    raise CorruptError(
                        f"{self.where}: {path} is (namespace, number, shards) {identity}, not"
                        f" {self.expected[name]}; put it back from a copy of the whole folder"
                    )
                self._compare(self, name, connection)
            elif name == META_FILE and self.uuid is not None and not self.creates:
                uuid = self._uuid_in(connection)
                if uuid != self.uuid:
                    raise lost(self.where) if uuid is None else dropped(self.where)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_format(self, path: Path, connection: sqlite3.Connection) -> None:
        """Refuse a file of another format, unless it is being created."""
        is_empty = connection.execute(ANY_TABLE).fetchone() is None
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == FORMAT or is_empty:
            return
        identity = Identity("", "", 1, version or 1)
        checked_format(f"{self.where}: {path}", identity, FORMAT)

    def _refuse_dropped(self) -> None:
        """Raise an error if the folder no longer has the namespace of these files.

        It was dropped or removed, and another process may have created another one since. A missing file is
        no loss of a part then.
        """
        if self.uuid is None:
            return
        if not self.exists(""):
            raise lost(self.where)
        if self.exists(META_FILE):
            with contextlib.closing(self._connect(META_FILE, self._looking_mode())) as connection:
                uuid = self._uuid_in(connection)
            if uuid != self.uuid:
                raise dropped(self.where)

    def refuse_another(self) -> None:
        """Raise ConfigError if another namespace is there than the one that was read. Damage is ignored."""
        if self.uuid is None or not self.exists(META_FILE):
            return
        uuid = None
        with (
            contextlib.suppress(sqlite3.Error, CorruptError),
            contextlib.closing(self._connect(META_FILE, self._looking_mode())) as connection,
        ):
            uuid = self._uuid_in(connection)
        if uuid not in (None, self.uuid):
            raise dropped(self.where)

    def _uuid_in(self, connection: sqlite3.Connection) -> str | None:
        """Return the uuid in ``meta.sqlite``; None: it is being created."""
        if not has_table(connection, "namespace"):
            return None
        row = connection.execute("SELECT identity FROM namespace").fetchone()
        where = f"{self.where}: {self.folder / META_FILE}"
        return None if row is None else decode(where, row[0], Identity).uuid

    def _looking_mode(self) -> str:
        return "mode=rw" if may_make_files_beside(self._meta_path) else "mode=ro&immutable=1"

    def _connect(self, name: str, parameters: str) -> Connection:
        if parameters == "mode=rw" and not may_make_files_beside(self.folder / name):
            raise sqlite3.OperationalError(LOCKS_OUT)
        try:
            refuse_special(self.folder / name)
        except NotRegularError as error:
            raise CorruptError(
                f"{self.where}: {error.filename} is no regular file; put it back from a copy"
            ) from None
        inode = self._connections.inode_of(name)
        connection = sqlite3.connect(
            f"file:{quoted_path(self.folder / name)}?{parameters}",
            uri=True,
            timeout=self._timeout_s,
            isolation_level=None,  # no implicit transactions
            check_same_thread=False,  # one thread at a time: see the class
            cached_statements=256,
            factory=Connection,
        )
        try:
            connection.inode = (
                inode  # of before: another file that was put there since is taken for a new one
            )
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {AUTOCHECKPOINT_PAGES}")
            connection.execute("PRAGMA fullfsync = 1")  # macOS; elsewhere no effect
            connection.execute("PRAGMA secure_delete = OFF")  # some builds overwrite deleted data
            self._refuse_views(name, connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _refuse_views(self, name: str, connection: sqlite3.Connection) -> None:
        """Refuse a file with a view or a trigger: a read of it might never end. Raises: CorruptError."""
        if foreign := view_or_trigger(connection):
            raise CorruptError(
                f"{self.where}: {self.folder / name} has {foreign}, which tidegate does not make: put it back"
                " from a copy"
            )

    @contextlib.contextmanager
    def _explaining(self, name: str) -> Iterator[None]:
        """Translate SQLite's errors. Errors not listed are bugs in the statements and pass unchanged."""
        try:
            with IN_LIBRARY:
                yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            explained = self._explained(self.folder / name, error)
            if explained is None:
                raise
            explained.writes_refused = takes_no_writes(error)
            raise explained from None if NO_TEXT in str(error) else error

    def _explained(self, path: Path, error: Exception) -> TidegateError | None:
        if isinstance(error, UnicodeDecodeError):  # SQLite quotes a damaged schema, whose bytes are no text
            return CorruptError(
                f"{self.where}: {path} is damaged: its schema is not readable ({error}); put it back from a"
                " copy"
            )
        if NO_TEXT in str(error):  # it quotes the row
            return CorruptError(
                f"{self.where}: {path} is damaged: a text is not UTF-8; put it back from a copy"
            )
        if isinstance(error, sqlite3.OperationalError):
            if OTHER_COLUMNS.search(str(error)):
                return CorruptError(f"{self.where}: {path} is not whole: {error}; put it back from a copy")
            if "readonly" in str(error):
                return ConfigError(f"{self.where}: {path} cannot be written here: {error}")
            hint = next((hint for said, hint in HINTS.items() if said in str(error)), "")
            return StoreUnavailableError(f"{self.where}: {path}: {error}{hint}")
        if type(error) is sqlite3.DatabaseError:
            return CorruptError(f"{self.where}: {path} is damaged: {error}; put it back from a copy")
        return None


def make_folder(folder: Path, where: str) -> None:
    """Create the folder and those above it, durably.

    Raises: ConfigError: not possible or not writable. StoreUnavailableError: it may be possible later.
    """
    try:
        make_durably(folder)
        sync_above(folder)
    except OSError as error:
        if error.errno in PASSING:
            raise _not_now(where, folder, error) from error
        raise ConfigError(
            f"{where}: the folder {folder} cannot be created: {error.strerror or error}; give one that can"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        if not folder.exists():
            raise _not_now(where, folder, FileNotFoundError(errno.ENOENT, "it was removed meanwhile"))
        raise ConfigError(f"{where}: the folder {folder} cannot be written by this user: give another one")


def _not_now(where: str, folder: Path, error: OSError) -> StoreUnavailableError:
    return StoreUnavailableError(f"{where}: the folder {folder} does not answer: {error.strerror or error}")


def mark(folder: Path) -> None:
    """Mark the folder, durably. A folder that takes no writes is left as it is."""
    if is_marked(folder):
        return
    with contextlib.suppress(OSError):
        close(create(folder / MARK, os.O_RDWR))
        sync_folder(folder)


def is_marked(folder: Path) -> bool:
    return os.path.exists(folder / MARK)  # noqa: PTH110 - a folder that may not be read has no mark


@contextlib.contextmanager
def creation_lock(folder: Path, where: str, timeout_s: float) -> Iterator[None]:
    """Lock the creation of a namespace: SQLite does not wait for a lock when it changes to WAL mode.

    Raises: FileNotFoundError: the folder is gone, or replaced by another one in which a process may
    be at work. ConfigError: this user may not read it. StoreUnavailableError: the disk does not answer, or
    another process creates it.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError as error:
        raise ConfigError(
            f"{where}: the folder {folder} cannot be read by this user: give another one"
        ) from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _not_now(where, folder, error) from error
    try:
        if not lock_within(handle, timeout_s):
            raise StoreUnavailableError(
                f"{where}: another process has been creating {folder} for {timeout_s} s"
            )
        if not os.path.samestat(os.fstat(handle), folder.stat()):
            raise FileNotFoundError(errno.ENOENT, "it was dropped", str(folder))
        yield
    finally:
        os.close(handle)  # releases the lock


NOTES = ("applied", "sealed")
"""The SQL tables of a shard file with notes of versions."""


def tables_in(connection: sqlite3.Connection) -> list[str]:
    """Return the SQL tables of a shard file with users' rows."""
    sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, 2) = 't_' ORDER BY name"
    return [name for (name,) in connection.execute(sql)]


def view_or_trigger(connection: sqlite3.Connection) -> str:
    """Return a view or a trigger of a file, in words; ``''``: it has none. No SQL of the file runs."""
    row = connection.execute(VIEW_OR_TRIGGER).fetchone()
    return "" if row is None else f"a {row[0]} {row[1]!r}"


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Return whether the file has this SQL table."""
    row: Any = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    return row is not None
