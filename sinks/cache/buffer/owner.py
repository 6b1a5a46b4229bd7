"""The owners of a buffer's content, and the detection of their death.

Python workers start and end between the tasks of one application, so content outlives the process
that wrote it. It has an **owner**: the JVM above a Python worker, or the process itself where there
is none. Every process that opens a buffer leaves a mark of its owner: an empty file whose name
contains boot, process namespace, pid and start time, so that another process with the same pid is
not taken for the owner. The content of dead owners is taken over by the next process that opens the
buffer of the same namespace, and removed by one that opens another namespace's.

A buffer belongs to one **host**: the processes that share its ``local_dir``. Several hosts may see
one memory file system (the workers of one machine, containers that share its memory). Each has a
folder there, named after its ``local_dir``, and leaves the others' alone. It removes another host's
content only if no process can return to it: its ``local_dir`` is gone, or its owners are dead and
left no mark for a day.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import secrets
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.sinks.cache.buffer.usage import locked

DEAD = "dead-"
HOST = "host"
"""A file in a buffer's folder in memory that names the host."""
MARK = re.compile(r"([0-9a-f-]{1,40})\.(\d{1,20})\.(\d{1,10})\.(\d{1,20})", re.ASCII)
FOREIGN_S = 86_400.0
"""An owner in another process namespace (a container) cannot be checked: it counts as alive for
this long after its last mark.
"""
OTHERS_S = 86_400.0
"""The content of another host's dead owners in memory may be removed this long after their last mark."""
GENERATIONS_MAX = 32
"""The most parents searched for the JVM."""


class Owner(NamedTuple):
    """One process, permanently: no other ever has the same four values."""

    boot: str
    namespace: int
    pid: int
    started: int

    @property
    def mark(self) -> str:
        return f"{self.boot}.{self.namespace}.{self.pid}.{self.started}"

    @classmethod
    def of_mark(cls, name: str) -> Owner | None:
        parts = MARK.fullmatch(name)
        return parts and cls(parts[1], int(parts[2]), int(parts[3]), int(parts[4]))


def _stat(pid: int, proc: Path) -> tuple[str, int, int]:
    """Return a process's name, parent, and start time in ticks since boot. Raises: OSError: it is gone."""
    text = (proc / str(pid) / "stat").read_text(errors="replace")
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    if fields[0] in "ZX":
        raise ProcessLookupError(pid)
    return name, int(fields[1]), int(fields[19])


def _here(proc: Path) -> tuple[str, int]:
    """Return this boot and this process namespace."""
    boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
    return boot, int(re.sub(r"\D", "", (proc / "self/ns/pid").readlink().name))


def owner_of_this_process(proc: Path = Path("/proc")) -> Owner:
    """Return the nearest JVM above this process, or else the process itself."""
    own = os.getpid()
    try:
        boot, namespace = _here(proc)
        pid, owner = own, own
        for _ in range(GENERATIONS_MAX):
            name, parent, _ = _stat(pid, proc)
            if name == "java":
                owner = pid
                break
            if parent <= 0:
                break
            pid = parent
        return Owner(boot, namespace, owner, _stat(owner, proc)[2])
    except (OSError, ValueError, IndexError):
        return Owner("0", 0, own, 0)  # no usable /proc


def is_alive(owner: Owner, marked_at: float, proc: Path = Path("/proc")) -> bool:
    """Return whether the owner lives. Where that is unknown: whether it left a mark recently."""
    try:
        boot, namespace = _here(proc)
    except (OSError, ValueError):
        boot, namespace = "0", 0
    if owner.boot != boot:
        return False
    if owner.namespace != namespace or boot == "0":
        return time.time() - marked_at < FOREIGN_S
    try:
        return _stat(owner.pid, proc)[2] == owner.started
    except (OSError, ValueError, IndexError):
        return False


@dataclasses.dataclass(frozen=True)
class Host:
    """The processes that share this folder of a disk, identified by its inode: the path may be reused."""

    folder: Path
    device: int
    inode: int

    @property
    def id(self) -> str:
        """A name for the host, the same in all its processes."""
        return hashlib.blake2b(f"{self.device}:{self.inode}".encode(), digest_size=8).hexdigest()

    def is_there(self) -> bool:
        """Return whether the folder still exists at its path; True where that cannot be checked."""
        try:
            status = self.folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return (status.st_dev, status.st_ino) == (self.device, self.inode)


def host_at(folder: Path) -> Host | None:
    """Return the host of this folder, created when missing; None: it cannot be created now."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return None
    return Host(folder, status.st_dev, status.st_ino)


def enter(folder: Path, owner: Owner, host: Host | None = None) -> bool:
    """Leave the owner's mark in a buffer's folder; return whether all earlier owners are dead.

    Removes the content of dead owners in the buffers of other namespaces of this ``host``. Of another
    host it removes only content to which no process can return. Raises: OSError: the folder
    cannot be used.
    """
    with locked(folder / "lock"):
        marks = _marks(folder)
        _forget_the_dead(marks)
        (folder / "owners").mkdir(mode=0o700, exist_ok=True)
        (folder / "owners" / owner.mark).touch(mode=0o600)
        if host is not None:
            (folder / HOST).write_bytes(msgspec.json.encode([str(host.folder), host.device, host.inode]))
    folder_name = folder.name.partition("-")[0]
    for other in folder.parents[2].glob(f"*/{folder.parent.name}/{folder_name}*"):
        if other != folder and (other.name == folder.name or _is_deserted(other)):
            with contextlib.suppress(OSError), locked(other / "lock", wait_s=0):
                _remove_if_dead(other)
            _sweep(other)
    return _all_dead(marks)


def _is_deserted(other: Path) -> bool:
    """Return whether another host cannot return to its buffer, if its owners are dead."""
    try:
        path, device, inode = json_decoder(tuple[str, int, int]).decode((other / HOST).read_bytes())
        if not Host(Path(path), device, inode).is_there():
            return True
        marked = [mark.stat().st_mtime for mark in (other / "owners").iterdir()]
    except (OSError, ValueError, msgspec.MsgspecError):  # it is being created, or removed by another process
        return False
    return bool(marked) and time.time() - max(marked) > OTHERS_S


Marks = list[tuple[Path, bool]]
"""The mark of each owner of a buffer, and whether it is alive."""


def _marks(folder: Path) -> Marks:
    return [
        (path, is_alive(owner, path.stat().st_mtime))
        for path in (folder / "owners").glob("*.*")
        if (owner := Owner.of_mark(path.name)) is not None
    ]


def _all_dead(marks: Marks) -> bool:
    """Return whether all owners are dead. Without any mark the owner is unknown: then the content stays."""
    return bool(marks) and not any(alive for _, alive in marks)


def _forget_the_dead(marks: Marks) -> None:
    for path, alive in marks:
        if not alive:
            path.unlink(missing_ok=True)


def _remove_if_dead(folder: Path) -> None:
    marks = _marks(folder)
    if _all_dead(marks):
        # At once: a process that opens that buffer now finds it empty. _sweep deletes the bytes,
        # outside the lock.
        if (folder / "units").exists():
            (folder / "units").rename(folder / f"{DEAD}{secrets.token_hex(4)}")
        _forget_the_dead(marks)


def _sweep(folder: Path) -> None:
    for dead in folder.glob(f"{DEAD}*"):
        shutil.rmtree(dead, ignore_errors=True)  # the next process that opens it removes the rest
