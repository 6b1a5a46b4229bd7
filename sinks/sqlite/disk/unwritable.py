"""Reads of a SQLite file where nothing can be written: a read-only folder or mount, or a full disk.

A connection in WAL mode writes the file ``-shm``. Where that fails there are two other ways:

1. ``-shm`` exists, or an empty one can be made: SQLite only reads it (``readonly_shm``). It uses the one of a
   live writer, or else reads the ``-wal`` by itself.
2. There is no ``-shm`` and no ``-wal``: all commits are in the file itself. SQLite reads it as
   one that does not change (``immutable``). A writer may open the file meanwhile, for example by another
   mount. It would make a ``-wal`` before it changes the file, so both are compared after the read.

Such a connection is used for one block and is not kept: the next one may write again.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

NO_WRITES = ("unable to open", "readonly", "disk I/O error", "is full")
"""Parts of SQLite's messages where a file or the folder takes no writes."""
SETTLED_S = 0.1
"""The least age of the last change of a file that is read as immutable: a clock tick hides a later change."""


def takes_no_writes(error: Exception) -> bool:
    """Return whether the error may be one of a file that can be read and not written."""
    return isinstance(error, sqlite3.OperationalError) and any(words in str(error) for words in NO_WRITES)


def may_make_files_beside(path: Path) -> bool:
    """Return whether a file's owner could write what SQLite makes for this process, such as ``-shm``.

    They belong to this user, with the mode of the file. A reader whose ``-shm`` the writer cannot write locks
    it out. As root SQLite gives them to the file's owner.
    """
    try:
        file, folder = path.stat(), path.parent.stat()
    except OSError:
        return True  # SQLite names the cause
    if os.geteuid() in (0, file.st_uid) or file.st_mode & stat.S_IWOTH:
        return True
    group = folder.st_gid if folder.st_mode & stat.S_ISGID else os.getegid()
    return bool(file.st_mode & stat.S_IWGRP) and group == file.st_gid


@contextlib.contextmanager
def reading_only(
    path: Path, connect: Callable[[str], sqlite3.Connection], refusal: sqlite3.OperationalError
) -> Iterator[sqlite3.Connection]:
    """Lend a connection that writes nothing. ``connect`` opens one with these parameters of the URI.

    Raises: ``refusal``: the file cannot be read either. sqlite3.OperationalError: a writer opened the file
    during the read.
    """
    before = _settled(path)
    if _has_index(path):
        parameters = "mode=ro&readonly_shm=1"
    elif before is not None and _wal_bytes(path) is None:
        parameters = "mode=ro&immutable=1"
    else:
        raise refusal
    try:
        connection = connect(parameters)
    except sqlite3.OperationalError:
        raise refusal from None
    with contextlib.closing(connection), _unchanged(path, before if "immutable" in parameters else None):
        yield connection


@contextlib.contextmanager
def _unchanged(path: Path, before: tuple[int, ...] | None) -> Iterator[None]:
    """Raise, also in place of the block's own error, if the file is not as before; None: it may change."""
    try:
        yield
    finally:
        if before is not None and (_wal_bytes(path) is not None or _state(path) != before):
            raise sqlite3.OperationalError(
                "a writer opened the file while it was read, where nothing can be written; read again"
            )


def _has_index(path: Path) -> bool:
    """Return whether ``-shm`` exists, or an empty one was made."""
    index = path.with_name(f"{path.name}-shm")
    if not may_make_files_beside(path) or not os.access(path, os.R_OK):
        return index.exists()
    try:
        os.close(os.open(index, os.O_RDONLY | os.O_CREAT, path.stat().st_mode & 0o777))
    except OSError:
        return index.exists()
    return True


def _wal_bytes(path: Path) -> int | None:
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size
    except OSError:
        return None


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _settled(path: Path) -> tuple[int, ...] | None:
    """Return the file's state, not less than ``SETTLED_S`` after its last change."""
    state = _state(path)
    if state is not None:
        age_s = time.time() - state[2] / 1e9
        if 0 <= age_s < SETTLED_S:
            time.sleep(SETTLED_S - age_s)
            state = _state(path)
    return state
