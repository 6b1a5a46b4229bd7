"""Changes to the files of a namespace in SQLite that no release makes, by SQL; each returns its undo."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tidegate.base.names import escape
from tidegate.base.urls import path_of
from tidegate.testing.conformance.changes import Undo
from tidegate.testing.conformance.writer import Writer


class SqliteChanges:
    """Changes to SQLite files."""

    def __init__(self, writer: Writer) -> None:
        self._folder = Path(path_of(writer.place.store) or "", escape(writer.namespace))

    def identity(self, **fields: Any) -> Undo:
        (content,) = self._row("meta", "SELECT identity FROM namespace")
        changed = msgspec.json.encode(msgspec.json.decode(content) | fields).decode()
        return self._update("meta", "UPDATE namespace SET identity = ?", (changed,), (content,))

    def not_ready(self) -> Undo:
        return self._update("meta", "UPDATE namespace SET ready = ?", (0,), (1,))

    def pointer(self, **fields: Any) -> Undo:
        before = self._row("meta", f"SELECT {', '.join(fields)} FROM pointer")  # noqa: S608 - its columns
        assignments = ", ".join(f"{name} = ?" for name in fields)
        statement = f"UPDATE pointer SET {assignments}"  # noqa: S608 - its columns
        return self._update("meta", statement, tuple(fields.values()), before)

    def schema(self, schema_id: str, content: bytes) -> Undo:
        (before,) = self._row("meta", "SELECT schema FROM schemas WHERE schema_id = ?", schema_id)
        statement = "UPDATE schemas SET schema = ? WHERE schema_id = ?"
        return self._update("meta", statement, (content.decode(), schema_id), (before, schema_id))

    def value(self, table: str, key: bytes, version: int, stored: bytes) -> Undo:
        where = f"FROM t_{escape(table)} WHERE key = ? AND version = ?"
        (before,) = self._row("shard-00", f"SELECT value {where}", key, version)
        statement = f"UPDATE t_{escape(table)} SET value = ? WHERE key = ? AND version = ?"  # noqa: S608 - likewise
        return self._update("shard-00", statement, (stored, key, version), (before, key, version))

    def shard(self, uuid: str) -> Undo:
        """Give a file the mark of another namespace."""
        before = self._row("shard-00", "SELECT uuid FROM shard")
        return self._update("shard-00", "UPDATE shard SET uuid = ?", (uuid,), before)

    def without_seal(self, version: int) -> Undo:
        """Remove the note that a file has the version, as in a copy without the ``-wal`` of the file."""
        add = "INSERT INTO sealed VALUES (0, ?)"
        self._change("shard-00", "DELETE FROM sealed WHERE version = ?", (version,))
        return lambda: self._change("shard-00", add, (version,))

    @contextlib.contextmanager
    def _opened(self, file: str) -> Iterator[sqlite3.Connection]:
        path = self._folder / f"{file}.sqlite"
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection, connection:
            yield connection

    def _row(self, file: str, statement: str, *values: Any) -> tuple[Any, ...]:
        with self._opened(file) as connection:
            row: tuple[Any, ...] = connection.execute(statement, values).fetchone()
        return row

    def _update(self, file: str, statement: str, values: tuple[Any, ...], before: tuple[Any, ...]) -> Undo:
        self._change(file, statement, values)
        return lambda: self._change(file, statement, before)

    def _change(self, file: str, statement: str, values: tuple[Any, ...]) -> None:
        with self._opened(file) as connection:
            assert connection.execute(statement, values).rowcount == 1
