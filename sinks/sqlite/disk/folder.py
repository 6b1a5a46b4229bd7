"""The folders of a SQLite store: made durably, marked, and locked while a namespace is created."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from tidegate.base.files import PASSING, close, create, lock_within, sync_above, sync_folder
from tidegate.base.files import make_folder as make_durably
from tidegate.errors import ConfigError, StoreUnavailableError

MARK = ".tidegate"
"""An empty file in the folder of all namespaces. A disk that is not mounted looks like a store that was lost:
the folder is missing, or empty. A query makes a lost store again only in a folder with the mark, which stays
there after a drop.
"""


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
