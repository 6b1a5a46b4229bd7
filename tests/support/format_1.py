"""Namespaces of storage format 1, made of those of format 2, which have everything that format 1 had."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from tidegate.sinks.sqlite.files import META_FILE, tables_in


def _older(identity: str) -> str:
    return json.dumps({**json.loads(identity), "format": 1})


def make_sqlite(folder: Path) -> None:
    """Change the files of a namespace in this folder: no number, and no SQL table without rows."""
    for path in sorted(folder.glob("*.sqlite")):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA user_version = 0")
            if path.name == META_FILE:
                (identity,) = connection.execute("SELECT identity FROM namespace").fetchone()
                connection.execute("UPDATE namespace SET identity = ?", (_older(identity),))
            else:
                for table in tables_in(connection):
                    if connection.execute(f"SELECT 1 FROM {table}").fetchone() is None:
                        connection.execute(f"DROP TABLE {table}")


def make_redis(server: Any, namespace: str) -> None:
    """Change the pointer of a namespace on a server of the tests: no ``latest``, and an older library."""
    meta = f"tg:{{{namespace}}}:meta"
    server.ask("HSET", meta, "identity", _older(server.ask("HGET", meta, "identity")))
    server.ask("HDEL", meta, "latest")
    server.ask("HSET", meta, "library", "tidegate1_0123456789abcdef")
