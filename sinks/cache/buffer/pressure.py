"""Signals of memory pressure from Linux: the container's memory, and the time of waiting for memory.

Files in ``/dev/shm`` count towards the memory of the container (cgroup) whose process wrote them,
as its heaps do. Pages of files on disks do not count here: the kernel takes them back by itself.
Elsewhere than on Linux there are no signals.
"""

from __future__ import annotations

import itertools
import re
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from tidegate.sinks.cache.buffer.policy import ContainerMemory

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
NO_LIMIT = 1 << 60
"""A limit of version 1 from here on is none: it has a whole number of pages below 2^63 then."""
TASK_S_MIN = 1.0
"""A shorter task counts as this long: a moment's wait is no pressure."""

TROUBLE = (OSError, ValueError, KeyError)
"""The errors of files that are missing, switched off, or of another form."""


def container_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> ContainerMemory | None:
    """Return the memory of this process's container, with the limit that is nearest; None: there is none.

    Each of the nested groups may have a limit. Reads both versions of Linux' control groups.
    """
    memories = [
        memory
        for version, folder in _groups(proc, cgroups)
        if (memory := (_memory_2 if version == "2" else _memory_1)(folder)) is not None
    ]
    return max(memories, key=lambda memory: memory.used / max(1, memory.limit), default=None)


def _groups(proc: Path, cgroups: Path) -> Iterator[tuple[str, Path]]:
    """Yield the version and the folder of each group of this process, the innermost first.

    Inside a container the names may be those outside of it: then only its root is found.
    """
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            version, roots = "2", [cgroups, cgroups / "unified"]
        elif "memory" in controllers.split(","):
            version, roots = "1", [cgroups / "memory"]
        else:
            continue
        path = Path(name.lstrip("/"))
        for root in roots:
            for inner in (path, *path.parents):
                if ".." not in inner.parts and (root / inner).is_dir():
                    yield version, root / inner


def _memory_2(folder: Path) -> ContainerMemory | None:
    try:
        limits = [(folder / name).read_text().strip() for name in ("memory.max", "memory.high")]
        limit = min((int(text) for text in limits if text != "max"), default=NO_LIMIT)
        return _counted(folder, int((folder / "memory.current").read_text()), limit, "")
    except TROUBLE:  # the root has no such files
        return None


def _memory_1(folder: Path) -> ContainerMemory | None:
    try:
        limit = int((folder / "memory.limit_in_bytes").read_text())
        return _counted(folder, int((folder / "memory.usage_in_bytes").read_text()), limit, "total_")
    except TROUBLE:
        return None


def _counted(folder: Path, used: int, limit: int, prefix: str) -> ContainerMemory | None:
    """Leave out the pages of files on disks. Raises: as ``TROUBLE``."""
    if limit >= NO_LIMIT:
        return None
    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    files = sum(int(stat[f"{prefix}{which}_file"]) for which in ("active", "inactive"))
    return ContainerMemory(max(0, used - files), limit)


class Signals(NamedTuple):
    """The sources of the two signals: the kernel's, or a test's own."""

    container: Callable[[], ContainerMemory | None]
    meter: Callable[[], Meter]


# -- the wait for memory --------------------------------------------------------------------------


class Meter(Protocol):
    """A wait for memory since a moment."""

    def share(self, fault_s: float, /) -> float: ...


class WaitMeter:
    """The time since it was made that processes of the container spent waiting for memory.

    The kernel's pressure stall information of the container, else of the machine: some process
    waited. Where the kernel has neither: this process's major page faults, by ``fault_s`` each.
    """

    def __init__(
        self, proc: Path = PROC, cgroups: Path = CGROUPS, now: Callable[[], float] = time.monotonic
    ) -> None:
        groups = (folder for version, folder in _groups(proc, cgroups) if version == "2")
        files = (folder / "memory.pressure" for folder in groups)
        self._now, self._began = now, now()
        self._stalls: Path | None = None
        self._stalled_before = 0.0
        for file in itertools.chain(files, [proc / "pressure/memory"]):
            if (stalled := _stalled_s(file)) is not None:
                self._stalls, self._stalled_before = file, stalled
                break
        self._faults_before = _major_faults()

    def share(self, fault_s: float) -> float:
        """Return the share of the time in which a process waited; at most 1."""
        waited = None if self._stalls is None else _stalled_s(self._stalls)
        if waited is None:
            waited = (_major_faults() - self._faults_before) * fault_s
        else:
            waited -= self._stalled_before
        return min(1.0, max(0.0, waited / max(TASK_S_MIN, self._now() - self._began)))


def _stalled_s(file: Path) -> float | None:
    """Return the seconds so far in which some process waited; None: the kernel does not count them."""
    try:
        match = re.search(r"^some .*\btotal=(\d+)", file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if match is None else int(match[1]) / 1e6


def _major_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


class _NoWait:
    def share(self, _fault_s: float, /) -> float:
        return 0.0


KERNEL = Signals(container_memory, WaitMeter)
QUIET = Signals(lambda: None, _NoWait)
"""No signal, whatever else the machine does: for schedules that are repeated by their seed."""
