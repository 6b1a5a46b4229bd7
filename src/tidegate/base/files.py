"""File operations: opens of regular files, whole reads and writes, syncs of files and folders."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import time
from pathlib import Path

from tidegate.errors import ConfigError

WINDOW_BYTES = 1024 * 1024
PASSING = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENXIO, errno.ENODEV, errno.EBUSY, errno.ENOLCK),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR),
    }
)
"""Errors of a disk, a server of files or a process that may be over when it is tried again."""


def used_share(folder: Path) -> float:
    """Return the used share of the folder's disk, for a user without root's reserve."""
    usage = shutil.disk_usage(folder)
    return usage.used / (usage.used + usage.free)


class Window:
    """A buffered reader of a file; with ``sync``, what was read is durable before it is used."""

    def __init__(self, fd: int, *, sync: bool = False) -> None:
        self._fd, self._sync = fd, sync
        self._start, self._bytes = 0, b""

    def read(self, offset: int, count: int) -> bytes:
        skip = offset - self._start
        if skip < 0 or skip + count > len(self._bytes):
            self._start, skip = offset, 0
            self._bytes = read_at(self._fd, offset, max(count, WINDOW_BYTES))
            if self._sync:
                os.fsync(self._fd)
        return self._bytes[skip : skip + count]


def read_at(fd: int, offset: int, count: int) -> bytes:
    """Return ``count`` bytes at ``offset``, fewer only at the end of the file."""
    piece = os.pread(fd, count, offset)
    if len(piece) == count or not piece:
        return piece
    pieces = [piece]
    while piece and (left := count - sum(map(len, pieces))):
        piece = os.pread(fd, left, offset + count - left)
        pieces.append(piece)
    return b"".join(pieces)


def write_all(fd: int, content: bytes, offset: int | None = None) -> None:
    """Write all content, at the descriptor's position or at ``offset``; mostly one call."""
    if offset is not None:
        os.lseek(fd, offset, os.SEEK_SET)
    rest = memoryview(content)
    while rest:
        written = os.write(fd, rest)
        if written == 0:
            raise OSError(errno.EIO, "a write of some bytes wrote none")
        rest = rest[written:]


def close(fd: int) -> None:
    """Close a descriptor. Important writes were synced before, so an error here proves nothing about them."""
    with contextlib.suppress(OSError):
        os.close(fd)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        close(fd)


class NotRegularError(OSError):
    """A pipe, a device or a socket in the place of a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(errno.EINVAL, "it is no regular file", os.fspath(path))


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a file that somebody else may have put there.

    Raises: NotRegularError: the open or a read of it might never end. OSError: as ``os.open``.
    """
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a pipe that nobody reads
            raise NotRegularError(path) from None
        raise
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise NotRegularError(path)


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of a file of at most this number of bytes. Raises: OSError, as ``open_regular``."""
    with os.fdopen(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > most or len(content := file.read(most + 1)) > most:
            raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", os.fspath(path))
    return content


def refuse_special(path: Path) -> None:
    """Refuse what SQLite would open for this file and is no regular file. Raises: NotRegularError."""
    for of_sqlite in ("", "-wal", "-shm", "-journal"):
        name = f"{path}{of_sqlite}"
        try:
            is_regular = stat.S_ISREG(os.stat(name).st_mode)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            is_regular = False
        if not is_regular:
            raise NotRegularError(name)


def create(path: Path, flags: int) -> int:
    """Create a file and open it. In a folder of mode 0700 it has mode 0600, whatever the umask.

    In a folder that is open to a group alone, the group has the same rights in the file, too. In
    any other folder the umask applies. A file that root makes belongs to the owner of the folder: no command
    of root locks the query out. Raises: FileExistsError: it exists.
    """
    of_folder = path.parent.stat()
    mode = stat.S_IMODE(of_folder.st_mode) & 0o666
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    if mode & 0o060 and not mode & 0o006:
        os.fchmod(fd, mode)
    if os.geteuid() == 0 and of_folder.st_uid:
        with contextlib.suppress(PermissionError):  # a root without that power
            os.fchown(fd, of_folder.st_uid, of_folder.st_gid)
    return fd


def open_private(path: Path, flags: int = os.O_RDWR) -> int:
    """Open a file that has rows in it, or will have: this user's own, with mode 0600, whatever the umask.

    It is created if needed. Raises: PermissionError: another user's, writable for others, or with another
    name: somebody else could read the rows, or choose them. NotRegularError. OSError: it cannot be opened,
    or is a symbolic link.
    """
    fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise NotRegularError(path)
        if status.st_uid != os.geteuid() or status.st_nlink > 1:
            raise PermissionError(errno.EPERM, "it is another user's, or has another name too", str(path))
        if status.st_mode & 0o022:
            raise PermissionError(errno.EPERM, "others may write it: remove it", str(path))
        if status.st_mode & 0o077:
            os.fchmod(fd, 0o600)
    except BaseException:
        close(fd)
        raise
    return fd


def open_lock(path: Path, *, make: bool) -> int:
    """Open a lock's file, created if needed. Raises: FileNotFoundError: it does not exist.

    Each call has its own descriptor: flock then excludes threads too, not only processes.
    """
    try:
        return open_regular(path)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):  # another process was first
        return create(path, os.O_RDONLY)
    return open_regular(path)


def lock_within(fd: int, timeout_s: float, pause_s: float = 0.01) -> bool:
    """Lock the file exclusively, by flock; return False if another has the lock for all of the time."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause_s)
        else:
            return True


def others_may_read(folder: Path) -> bool:
    """Return whether every user of this machine may read it, as far as the folder's own mode determines."""
    return bool(stat.S_IMODE(folder.stat().st_mode) & 0o007)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, each durable in its parent and for this user alone.

    Raises: FileExistsError: it is no folder.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():  # else another process was first
            raise
    sync_folder(folder.parent)


def sync_above(folder: Path) -> None:
    """Make the folders above durable in their parents: their creator may have died before its sync.

    Only those that this user may read; it did not create the others.
    """
    for above in folder.absolute().parents:
        with contextlib.suppress(OSError):
            sync_folder(above)


FILES_OF_NAMESPACES = ("decisions.log", "meta.sqlite")
"""The file by which the folder of a namespace is known, of a log and of a SQLite store."""


def refuse_nested(folder: Path, own: str) -> None:
    """Refuse to make a namespace's folder where, or below where, another log or store has its files.

    ``own`` is the name of the file by which the folder is known once it is made. Links are followed. A drop
    of the other one would remove it. Raises: ConfigError.
    """
    place = folder.resolve()
    for above in (place, *place.parents):
        for name in FILES_OF_NAMESPACES:
            with contextlib.suppress(OSError):  # one that this user may not read
                if (above / name).is_file() and (above, name) != (place, own):
                    raise ConfigError(
                        f"{folder}: {above} has the files of another log or store ({name}), so nothing was"
                        " made: give a folder outside of it"
                    )


def refuse_foreign(where: str, entry: str) -> None:
    """Refuse to remove a folder with an entry that is not its own. Raises: ConfigError."""
    if entry:
        raise ConfigError(
            f"{where}: {entry} is none of its files, and a drop would remove it too; nothing was removed:"
            " move it elsewhere, then drop again"
        )


def refuse_unremovable(where: str, *folders: Path) -> None:
    """Refuse to remove folders from which this user may not remove files. Raises: ConfigError."""
    for folder in folders:
        if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(
                f"{where}: this user may not remove files from {folder}; nothing was removed: let the user"
                " write there, then drop again"
            )


def foreign_entry(folder: Path, own: re.Pattern[str]) -> str:
    """Return an entry of a folder whose name is not one of its own, as a path; ``''``: none is seen.

    A folder that was moved to another disk keeps its name there: a link to one of another name is foreign.
    """
    with contextlib.suppress(OSError):
        if folder.is_symlink() and folder.resolve().name != folder.name:
            return str(folder)
        with os.scandir(folder) as entries:
            return next((entry.path for entry in entries if not own.fullmatch(entry.name)), "")
    return ""


def refuse_taken(where: str, entry: str) -> None:
    """Refuse to make a log or a store in a folder with an entry that is not its own. Raises: ConfigError."""
    if entry:
        raise ConfigError(
            f"{where}: {entry} is none of its files, and a drop of it would remove that too; nothing was"
            " made: give another folder, or move that elsewhere"
        )


def remove_folder(folder: Path, *, follows: bool = False) -> bool:
    """Remove a folder with its content; return whether there was anything.

    Of a link the link alone; with ``follows`` also its folder, which the caller knows by ``foreign_entry``.
    """
    is_link = folder.is_symlink()
    try:
        if follows or not is_link:
            shutil.rmtree(folder.resolve() if is_link else folder)
    except FileNotFoundError:
        if not is_link:
            return False
    if is_link:
        folder.unlink()
    return True
