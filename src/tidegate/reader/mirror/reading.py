"""One version of a mirror's file, as it is read: a read transaction, and the tables in it."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tidegate.base.files import NotRegularError, refuse_special
from tidegate.base.forks import IN_LIBRARY
from tidegate.base.text import brief
from tidegate.base.urls import quoted_path
from tidegate.errors import ConfigError, CorruptError, StoreUnavailableError, TidegateError
from tidegate.keys.groups import key_group_of_each
from tidegate.reader.table import TableView

GET = "SELECT value FROM rows WHERE tbl = ? AND kg = ? AND key = ?"
PAGE = "SELECT kg, key, value FROM rows WHERE tbl = ? AND (kg, key) > (?, ?) ORDER BY kg, key LIMIT ?"
PAGE_ROWS = 1_000
FORKED = "a forked child needs a mirror of its own"
NAME_BYTES_MAX = 240
"""Of the name of a file: 255 are the most, and the names of its `-wal`, `-shm` and `-lock` are longer."""


def where(path: Path) -> str:
    return f"mirror file {path}"


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Translate SQLite's errors. Those of statements that do not fit are bugs, and pass unchanged."""
    try:
        with IN_LIBRARY:
            yield
    except sqlite3.Error as error:
        explanation = explanation_of(path, error)
        if explanation is None:
            raise
        raise explanation from error


def explanation_of(path: Path, error: sqlite3.Error) -> TidegateError | None:
    text = str(error)
    if "UTF-8" in text:
        text = "a text is not UTF-8"  # it quotes the text
    if type(error) is sqlite3.DatabaseError or "no such" in text or "UTF-8" in text:
        return CorruptError(f"{where(path)} is damaged, or no mirror file: {text}; {remedy(path)}")
    if isinstance(error, sqlite3.OperationalError):
        hint = (
            "make room on its disk" if "full" in text else "look at its disk, its rights, and who has it open"
        )
        return StoreUnavailableError(f"{where(path)}: {text}; {hint}")
    return None


def remedy(path: Path) -> str:
    files = f"{path.name}, {path.name}-wal and {path.name}-shm"
    return f"give another path, or remove {files} to read the tables whole"


def file_of(path: str | os.PathLike[str]) -> Path:
    """Return the file that a path means now, without links. Raises: ConfigError: it is no file's."""
    try:
        file = Path(os.fsdecode(os.path.realpath(path)))
        refuse_special(file)
    except NotRegularError as error:
        raise ConfigError(
            f"mirror file {error.filename} is no regular file: give the path of a file"
        ) from None
    except (TypeError, ValueError, OSError) as error:  # of another type, a NUL, too long
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"mirror file {brief(path)}: {why}; give the path of a file") from error
    if len(os.fsencode(file.name)) > NAME_BYTES_MAX:
        raise ConfigError(
            f"mirror file {brief(str(path))}: its name has more than {NAME_BYTES_MAX} bytes; give another"
        )
    return file


def connected(path: Path, mode: str, timeout_s: float = 1.0) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file://{quoted_path(path)}?mode={mode}",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,  # no implicit transactions
        check_same_thread=False,  # one thread at a time: by a lock, or the mirror's own
    )


def checked(path: Path, rows: list[tuple[Any, ...]], kinds: tuple[type, ...]) -> list[tuple[Any, ...]]:
    """Return rows of these types: SQLite stores any type in any column. Raises: CorruptError."""
    for row in rows:
        if tuple(map(type, row)) != kinds:
            types = ", ".join("NULL" if value is None else type(value).__name__ for value in row)
            raise CorruptError(
                f"{where(path)} is damaged: columns have the types {types}, not"
                f" {', '.join(kind.__name__ for kind in kinds)}; {remedy(path)}"
            )
    return rows


def used_bytes(connection: sqlite3.Connection) -> int:
    """Return the bytes of the pages in use, in the transaction of this connection."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


class Reading:
    """One version of the file: a read transaction. It ends with the last view of it, or by ``end``."""

    def __init__(self, path: Path) -> None:
        self._path, self._process = path, os.getpid()
        self._lock = threading.Lock()
        self._ended: TidegateError | None = None
        self.passed_at = math.inf
        """When a newer version followed."""
        self._connection, self.content = self._begun()

    def _begun(self) -> tuple[sqlite3.Connection, str]:
        connection = connected(self._path, "ro")
        try:
            connection.execute("BEGIN")
            rows = connection.execute("SELECT content FROM mirror LIMIT 1").fetchall()
            ((content,),) = checked(self._path, rows or [()], (str,))
        except BaseException:
            connection.close()
            raise
        self._close = weakref.finalize(self, connection.close)
        return connection, content

    def renew(self) -> None:
        """Read the same version by a new transaction. The caller is the one that writes versions."""
        with self._lock:
            close_before = self._close
            self._connection, _ = self._begun()
            close_before()

    def size(self) -> int:
        return used_bytes(self._connection)

    def fetch(self, sql: str, parameters: Sequence[Any], kinds: tuple[type, ...]) -> list[tuple[Any, ...]]:
        """Return the rows of a query, of these types.

        Raises: the error of ``end``. ConfigError: this is a forked child. CorruptError.
        """
        if os.getpid() != self._process:
            raise ConfigError(f"{where(self._path)}: {FORKED}")
        with self._lock:
            if self._ended is not None:
                raise self._ended.with_traceback(None)
            try:
                rows = self._connection.execute(sql, parameters).fetchall()
            except sqlite3.Error as error:
                raise explanation_of(self._path, error) or error from error
        return checked(self._path, rows, kinds)

    def check_count(self, table: str, count: int, expected: int) -> None:
        """Refuse a table of other rows than were kept: SQLite does not find those of a damaged key."""
        if count != expected:
            raise CorruptError(
                f"{where(self._path)} is damaged: it has {count:,} rows of table {table}, not {expected:,};"
                f" {remedy(self._path)}"
            )

    def end(self, error: TidegateError) -> None:
        """End the transaction; later reads raise the error."""
        with self._lock:
            self._ended = error
            self._close()


class FileContent(NamedTuple):
    """A table of the file at one version."""

    view: TableView
    rows: int
    number: int
    reading: Reading

    def at(self, key: bytes) -> bytes | None:
        (group,) = key_group_of_each((key,), self.view.key_groups, self.view.at.stride)
        for (value,) in self.reading.fetch(GET, (self.number, group, key), (bytes,)):
            return value  # type: ignore[no-any-return]
        return None

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        last, count = (-1, b""), 0
        while page := self.reading.fetch(PAGE, (self.number, *last, PAGE_ROWS), (int, bytes, bytes)):
            yield from ((key, value) for _, key, value in page)
            last, count = page[-1][:2], count + len(page)
        self.reading.check_count(self.view.name, count, self.rows)
