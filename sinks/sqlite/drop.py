"""Dropping a SQLite store: the folder is moved aside in one step, then removed.

The move is what counts: one rename, durable before anything is deleted. A crash before it
leaves all, a crash after it leaves a folder that no name leads to, which the next drop removes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

from tidegate.errors import StoreUnavailableError
from tidegate.sinks.sqlite.files import META_FILE, creation_lock

DROPPED = ".dropped"
"""A dot never stands in an escaped name, so no namespace's folder is called so."""


def drop_folder(folder: Path, where: str, timeout_s: float, refuse: Callable[[], None]) -> bool:
    """Remove the folder and what an earlier try left; whether there was anything. ``refuse`` may raise, just
    before the folder is moved: nobody makes or drops a namespace there meanwhile.
    """
    aside = folder.with_name(folder.name + DROPPED)
    try:
        there = aside.exists()
        _remove(aside, timeout_s)
        with contextlib.suppress(FileNotFoundError), creation_lock(folder, where, timeout_s):
            refuse()
            folder.rename(aside)
            there = True
            _sync(folder.parent)
        _remove(aside, timeout_s)
    except OSError as error:
        raise StoreUnavailableError(
            f"{where}: {error.filename or folder} could not be removed: {error.strerror or error}; what is"
            " left is no namespace any more: drop it again when the cause is gone"
        ) from error
    return there


def _remove(aside: Path, timeout_s: float) -> None:
    if not aside.exists():
        return
    with contextlib.suppress(sqlite3.Error, UnicodeDecodeError):  # damaged files are dropped too
        _tell_who_has_it_open(aside / META_FILE, timeout_s)
    shutil.rmtree(aside)


def _tell_who_has_it_open(meta: Path, timeout_s: float) -> None:
    """Other processes go on with the files they have open: without a pointer they are refused."""
    if not meta.exists():
        return
    with contextlib.closing(sqlite3.connect(meta, timeout=timeout_s, isolation_level=None)) as connection:
        try:
            connection.execute("DELETE FROM pointer")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise OSError(errno.EBUSY, "another process is writing to it", str(meta)) from error


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
