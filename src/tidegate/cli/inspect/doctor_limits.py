"""The part of ``tidegate doctor`` about limits: a process's descriptors and threads, a namespace's tables
and key groups.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tidegate.base.checks import Check
from tidegate.base.urls import scheme_of
from tidegate.keys.groups import imbalance_of
from tidegate.sinks.records import Identity, Pointer
from tidegate.sinks.store import Store
from tidegate.wal.record import Folded
from tidegate.wal.table_room import room_for, strides_of

ANSWERS = "a process that reaches a limit ends or waits in the middle of a version"
EVEN = "none: a task with more key groups than another works longer, and the batch waits for it"
LAST_VERSIONS = 20
"""The versions whose parallelism is compared with the key groups."""
PIDS = Path("/sys/fs/cgroup/pids.max"), Path("/sys/fs/cgroup/pids.current")
"""The limit of threads of a container, and their number."""


class Need(NamedTuple):
    """The need of a process for one namespace: descriptors and threads."""

    descriptors: int
    threads: int


PROCESS = Need(100, 50)
NEEDS = {
    "file": Need(10, 5),
    "kafka": Need(30, 20),
    "sqlite": Need(102, 5),
    "redis": Need(64, 10),
    "cassandra": Need(30, 20),
}
"""By the first word of a URL's scheme; the same numbers are in docs/sizing.md. Idle connections of
SQLite take half of the limit at most, so its 51 descriptors count twice.
"""


def check_limits(urls: Sequence[str | None]) -> Iterator[Check]:
    """Compare the limits of this process with the need of the log and the stores."""
    schemes = [scheme_of(url).partition("+")[0] for url in urls if url is not None]
    parts = [PROCESS, *(NEEDS[scheme] for scheme in schemes if scheme in NEEDS)]
    needed = Need(sum(part.descriptors for part in parts), sum(part.threads for part in parts))
    yield check_descriptors(needed.descriptors)
    yield from check_threads(needed.threads)


def check_descriptors(needed: int) -> Check:
    """Compare RLIMIT_NOFILE with the need of one namespace."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return Check("descriptors", "pass", f"no limit; one namespace needs {needed:,}", ANSWERS)
    message = f"{allowed:,} (ulimit -n); one namespace needs {needed:,}"
    if allowed >= needed:
        return Check("descriptors", "pass", message, ANSWERS)
    if most == resource.RLIM_INFINITY:
        raised = "raise it"
    elif most >= needed:
        raised = f"raise it, this user may set up to {most:,}"
    else:
        raised = f"an administrator has to raise it, this user may set up to {most:,}"
    return Check("descriptors", "warn", f"{message}: {raised}", ANSWERS)


def check_threads(needed: int) -> Iterator[Check]:
    """Compare the limits of threads with the need: RLIMIT_NPROC of the user, and the container's."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if allowed != resource.RLIM_INFINITY:
        yield _threads(f"{allowed:,} of this user (ulimit -u)", allowed, needed)
    of_container = _container_pids()
    if of_container is not None:
        most, used = of_container
        yield _threads(f"{most:,} of this container (pids.max), {used:,} of them used", most - used, needed)


def _threads(limit: str, free: int, needed: int) -> Check:
    message = f"{limit}; one namespace needs {needed:,}, Spark's own excluded"
    return Check("threads", "pass" if free >= needed else "warn", message, ANSWERS)


def _container_pids() -> tuple[int, int] | None:
    """Return the container's limit and number of threads; None without a limit."""
    try:
        most, used = (path.read_text().strip() for path in PIDS)
        return (int(most), int(used))
    except (OSError, ValueError):  # "max": no limit
        return None


def check_tables(state: Folded) -> Check:
    """Compare the number of tables with the room in a decision. A warning from three quarters on."""
    room = room_for(strides_of(state.tables))
    message = f"{room}: a new table above that number is refused" if room.tables else "no table yet"
    return Check("tables", "warn" if room.is_short else "pass", message, "new tables are admitted")


def check_balance(store: Store, identity: Identity, pointer: Pointer) -> Check:
    """Compare the key groups with the tasks of the last versions. A warning above ``IMBALANCE_MAX``."""
    first = max(pointer.horizon, pointer.visible - LAST_VERSIONS + 1, 1)
    entries = store.catalog(first, pointer.visible) if pointer.visible else []
    tasks = sorted({entry.tasks for entry in entries if entry.tasks is not None})
    name, key_groups = f"{identity.key_groups:,} key groups", identity.key_groups
    for each in reversed(tasks):
        if why := imbalance_of(each, key_groups):
            return Check("key groups", "warn", why, EVEN)
    message = f"{name}, and {' or '.join(map(str, tasks))} tasks in the last {len(entries)} versions"
    return Check("key groups", "pass", message if tasks else f"{name}, no version yet", EVEN)
