"""The folder on this host for data that may be lost: caches, and data that did not fit into memory.

::

    <local_dir>/tidegate-<user id>/<namespace uuid>/      mode 0700, this user's alone
        in-use          the namespace's name; locked (shared) by every process that uses the folder
        shared/<name>/  for all processes of this user on this host

Correctness never rests on it: missing data is read from the store or the log. So a full or
read-only disk, or a folder that somebody deleted, causes one warning, and work continues without
it; the folder is tried again later. A process that opens the folder removes stale ones: a folder of
another uuid with the same namespace's name (that namespace was dropped and created again), and any
folder unused for ``STALE_S``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tidegate.base import forks
from tidegate.base.text import brief
from tidegate.errors import ConfigError, CorruptError

logger = logging.getLogger("tidegate")

RETRY_S = 60.0
"""A folder that failed is tried again after this time."""
STALE_S = 7 * 86_400.0
"""A folder of another namespace that no process has opened for this time is removed."""
MEMORY_PATH = "/dev/shm"  # noqa: S108 - a folder of our own is made in it, mode 0700
"""The memory file system. It is treated as any other folder here, except that no user chose it."""
TRIES = 5
"""How often a folder is opened again when another process removes it at the same moment."""

_UUID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_CAUSES = {
    errno.ENOSPC: "the disk is full: free some space there",
    errno.EDQUOT: "the disk quota is used up: raise it",
    errno.EROFS: "it is read-only: mount it writable",
    errno.EACCES: "this user may not write there: give it the right",
    errno.EPERM: "this user may not write there: give it the right",
    errno.ENOENT: "it was deleted: do not delete it while queries run",
}

LocalDirs = str | Sequence[str] | None
"""The option ``local_dir``: a folder, several (on separate disks), or None for the system's."""


def check_local_dir(option: object) -> tuple[str, ...]:
    """Return the option's folders, in order, without any access to them.

    Raises: ConfigError: not an absolute path, or not a list of different ones.
    """
    if option is None:
        return (_temporary_folder(),)
    folders = (option,) if isinstance(option, str) else option
    if isinstance(folders, Sequence) and not isinstance(folders, bytes) and folders:
        texts = tuple(
            folder
            for folder in folders
            if isinstance(folder, str) and Path(folder).is_absolute() and "\0" not in folder
        )
        if len(texts) == len(folders) == len(set(map(Path, texts))):
            return texts
    msg = (
        f"local_dir is {brief(option)}; it must be the absolute path of a folder on the hosts' own disk, or a"
        " list of different ones"
    )
    raise ConfigError(msg)


def _temporary_folder() -> str:
    """Return the system's temporary folder.

    If no candidate is writable it returns one that fails at its first use, as a full folder does: a
    warning, and no error.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return str(Path(os.environ.get("TMPDIR") or "/tmp").absolute())  # noqa: S108 - made in it: mode 0700


class LocalDir:
    """One namespace's folder under one ``local_dir`` of this host. Opened on first use.

    ``shared`` returns a folder to work in, or None while there is none; call ``failed`` when a write
    or read there failed. Safe to use from several threads, and after a fork.

    Raises: CorruptError: the uuid cannot be a folder's name.
    """

    def __init__(
        self, root: str, namespace: str, uuid: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        if _UUID.fullmatch(uuid) is None:
            raise CorruptError(f"namespace {namespace}: {uuid!r} is no uuid of a namespace")
        self.root, self.namespace, self.uuid = Path(root), namespace, uuid
        self.path = self.root / f"tidegate-{os.getuid()}" / uuid
        self._now = now
        self._lock = forks.Lock()
        self._pid = os.getpid()
        self._in_use: int | None = None
        self._retry_at = 0.0
        self._failed_with: int | None = None

    def __repr__(self) -> str:
        return f"LocalDir({str(self.path)!r})"

    def shared(self, name: str) -> Path | None:
        """Return the folder of this name that all processes on this host share, created when missing.

        None: there is none now, and a warning was logged; continue without it. Repeatable: it is
        cheap, and a deleted folder is created again.
        """
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is no name of a folder")
        path = self.path / "shared" / name
        with self._lock:
            if self._now() < self._retry_at:
                return None
            try:
                self._open()
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                self._fail(error)
                return None
            self._failed_with = None
            return path

    def failed(self, error: OSError) -> None:
        """Report a failed write or read in the folder: one warning, and no use of it for ``RETRY_S``."""
        with self._lock:
            self._fail(error)

    def close(self) -> None:
        """Release the folder. It may be used again."""
        with self._lock:
            self._forget_the_parents()
            if self._in_use is not None:
                os.close(self._in_use)
                self._in_use = None

    # -- opening --------------------------------------------------------------------------------

    def _fail(self, error: OSError) -> None:
        self._retry_at = self._now() + RETRY_S
        number = error.errno or 0
        if self._failed_with == number:
            return
        self._failed_with = number
        cause = _CAUSES.get(number, str(error))
        logger.warning(
            "local_dir %s: %s (%s). Work continues without it, from the store and in memory; %s. It is"
            " tried again in %.0f s",
            self.path, cause, error, _way_out(self.root), RETRY_S,
        )  # fmt: skip

    def _open(self) -> None:
        self._forget_the_parents()
        if self._in_use is not None:
            if _still_names(self.path / "in-use", self._in_use):
                return
            os.close(self._in_use)  # the folder was deleted meanwhile
            self._in_use = None
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(TRIES):
            _sandbox(self.path.parent)
            with contextlib.suppress(FileNotFoundError):  # removed by another process meanwhile
                _sandbox(self.path)
                self._in_use = _locked(self.path / "in-use", fcntl.LOCK_SH, create=True)
            if self._in_use is not None:
                break
            time.sleep(0.01)
        else:
            raise OSError(errno.EBUSY, "another process keeps removing it", str(self.path))
        os.pwrite(self._in_use, self.namespace.encode(), 0)
        os.utime(self._in_use)
        self._sweep()

    def _forget_the_parents(self) -> None:
        """Close the inherited descriptor after a fork: the lock stays with the parent."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        if self._in_use is not None:
            os.close(self._in_use)
            self._in_use = None

    # -- cleaning -------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Remove stale data. The next process that opens the folder removes the rest."""
        for other in sorted(self.path.parent.iterdir()):
            if ".swept-" in other.name:
                _remove(other)
            elif other != self.path and _UUID.fullmatch(other.name):
                self._sweep_other(other)

    def _sweep_other(self, other: Path) -> None:
        with _unused(other / "in-use") as unused:
            if not unused:
                return
            name = (other / "in-use").read_bytes()
            idle_s = time.time() - (other / "in-use").stat().st_mtime
            if name == self.namespace.encode() or idle_s > STALE_S:
                away = other.with_name(f"{other.name}.swept-{secrets.token_hex(4)}")
                other.rename(away)  # at once: a process that opens the folder now creates another
                _remove(away)
                logger.info("removed %s, left over from namespace %s", other, name.decode(errors="replace"))


def _way_out(root: Path) -> str:
    if str(root) == MEMORY_PATH:
        return "set state_memory_bytes to 0"
    return "set local_dir to another folder of this host's disk"


def _sandbox(path: Path) -> None:
    """Create the folder for this user alone; refuse one that another user created or may enter."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        why = "it is not a folder of this user alone (mode 0700): remove it"
        raise OSError(0, why, str(path))


def _locked(path: Path, how: int, *, create: bool) -> int | None:
    """Lock the file and return its descriptor; None when another has the lock, or the file was removed."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    fd = os.open(path, flags, 0o600)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        if _still_names(path, fd):
            return fd
    except BlockingIOError:
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _still_names(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return False


@contextlib.contextmanager
def _unused(lock: Path) -> Iterator[bool]:
    """Yield whether this lock was free; if so no process can take it while the block runs."""
    try:
        fd = _locked(lock, fcntl.LOCK_EX, create=False)
    except OSError:
        fd = None  # not there: just removed, or not readable
    try:
        yield fd is not None
    except OSError as error:
        logger.info("local_dir: %s was not cleaned: %s", lock.parent, error)
    finally:
        if fd is not None:
            os.close(fd)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)  # the next process that opens the folder sweeps the rest


# -- one per process ------------------------------------------------------------------------------

_open_dirs: dict[tuple[str, str], LocalDir] = {}
_open_dirs_lock = forks.Lock()


def local_dirs(option: LocalDirs, namespace: str, uuid: str) -> list[LocalDir]:
    """Return this process's handles on a namespace's folders, one for each that the option names.

    The same objects each time. No folder is created before it is requested. Raises: as
    ``check_local_dir`` and ``LocalDir``.
    """
    handles = []
    with _open_dirs_lock:
        for root in check_local_dir(option):
            if (root, uuid) not in _open_dirs:
                _open_dirs[root, uuid] = LocalDir(root, namespace, uuid)
            handles.append(_open_dirs[root, uuid])
    return handles
