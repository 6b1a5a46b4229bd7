"""Removal of a SQLite store: the folder is renamed in one step, then deleted.

The rename decides: it is durable before anything is deleted. A crash before it leaves everything. A
crash after it leaves a folder that no namespace's name leads to, which the next drop deletes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

from tidegate.base.files import (
    NotRegularError,
    foreign_entry,
    refuse_foreign,
    refuse_special,
    remove_folder,
    sync_folder,
)
from tidegate.errors import StoreUnavailableError
from tidegate.sinks.sqlite.disk.folder import creation_lock
from tidegate.sinks.sqlite.disk.tables import META_FILE, view_or_trigger

OWN = re.compile(r"(?:meta|shard-\d\d)\.sqlite(?:-wal|-shm|-journal)?")
"""The names of a store's own files, and of the files that SQLite makes for them."""
DROPPED = ".dropped"
"""An escaped name contains no dot, so no namespace's folder has such a name."""


def drop_folder(folder: Path, where: str, timeout_s: float, refuse: Callable[[], None]) -> bool:
    """Remove the folder and the remains of an earlier try; return whether there was anything.

    ``refuse`` may raise, just before the rename: no process creates or drops a namespace there
    meanwhile.
    """
    aside, existed = folder.with_name(folder.name + DROPPED), False
    try:
        existed = os.path.lexists(aside)
        refuse_foreign(where, foreign_entry(aside, OWN))
        _remove(aside, timeout_s)
        with contextlib.suppress(FileNotFoundError), creation_lock(folder, where, timeout_s):
            refuse()
            refuse_foreign(where, foreign_entry(folder, OWN))
            folder.rename(aside)
            existed = True
            sync_folder(folder.parent)
        _remove(aside, timeout_s)
    except OSError as error:
        left = "the rest is no namespace any more" if existed else "nothing was removed"
        raise StoreUnavailableError(
            f"{where}: {error.filename or folder} could not be removed: {error.strerror or error}; {left}:"
            " remove the cause, then drop it again"
        ) from error
    return existed


def _remove(aside: Path, timeout_s: float) -> None:
    if not os.path.lexists(aside):
        return
    with contextlib.suppress(sqlite3.Error, UnicodeDecodeError, NotRegularError):  # damaged files, too
        _refuse_open_instances(aside / META_FILE, timeout_s)
    remove_folder(aside, follows=True)


def _refuse_open_instances(meta: Path, timeout_s: float) -> None:
    """Delete the pointer, so that other processes with these files open are refused."""
    refuse_special(meta)
    if not meta.exists():
        return
    with contextlib.closing(sqlite3.connect(meta, timeout=timeout_s, isolation_level=None)) as connection:
        if view_or_trigger(connection):  # its SQL might never end
            return
        try:
            connection.execute("DELETE FROM pointer")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise OSError(errno.EBUSY, "another process is writing to it", str(meta)) from error
