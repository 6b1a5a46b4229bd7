"""The files of one namespace: opened, checked, used by transactions, and the meaning of their errors."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tidegate.base.files import NotRegularError, create, refuse_special
from tidegate.base.forks import IN_LIBRARY
from tidegate.base.urls import quoted_path
from tidegate.errors import ConfigError, CorruptError, StoreUnavailableError, TidegateError
from tidegate.sinks.records import Identity
from tidegate.sinks.rules.reads import checked_format, decode, dropped, lost
from tidegate.sinks.sqlite.disk.idle import Connection, Connections, close_unused
from tidegate.sinks.sqlite.disk.tables import (
    ANY_TABLE,
    DURABLE,
    FORMAT,
    META_FILE,
    has_table,
    view_or_trigger,
)
from tidegate.sinks.sqlite.disk.unwritable import may_make_files_beside, reading_only, takes_no_writes

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
