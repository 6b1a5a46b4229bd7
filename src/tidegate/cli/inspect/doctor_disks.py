"""The part of ``tidegate doctor`` about capacity: disks, sizes, the oldest lease, how long a disk lasts."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from tidegate.base.checks import Check, Outcome
from tidegate.base.files import others_may_read
from tidegate.base.text import shown_bytes
from tidegate.base.urls import ON_DISK, path_of, scheme_of
from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.steps.retire import kept_by
from tidegate.errors import TidegateError
from tidegate.options import Options
from tidegate.sinks.store import Store
from tidegate.wal.log import Log
from tidegate.wal.record import Folded

DISK_WARN_BYTES, DISK_FAIL_BYTES = 1024**3, 100 * 1024**2
LOOKED_AT = 20
"""The rate is measured over this number of the last versions."""
DAY_S = 86_400
ROOM_WARN_DAYS = 2.0
BOUNDED = "disks do not fill up (I11): retirement and trimming keep up"


def folder_of(url: str) -> Path | None:
    """Return the folder of a file or sqlite URL, None for any other."""
    path = path_of(url) if scheme_of(url) in ON_DISK else None
    return Path(path) if path else None


def free_bytes(url: str) -> int | None:
    """Return the free space on the disk of a URL's folder; None: it is not on this machine, or in memory."""
    folder = folder_of(url)
    return None if folder is None else shutil.disk_usage(_nearest(folder)).free


def _nearest(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def check_writable(what: str, folder: Path) -> Check:
    """Check that the folder can be written, or created."""
    existing = _nearest(folder)
    fits = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    state = "writable" if existing == folder else f"can be made below {existing}"
    message = f"{folder}: {state if fits else f'{existing} is not a folder that this user can write'}"
    promise = "durable before acknowledged (I3)"
    return Check(f"{what}: folder", "pass" if fits else "fail", message, promise)


def check_private(what: str, folder: Path) -> list[Check]:
    """Warn where every user of this machine may read a namespace's folder."""
    if not folder.is_dir() or not others_may_read(folder):
        return []
    message = f"{folder} can be read by every user of this machine: chmod -R o-rwx {shlex.quote(str(folder))}"
    return [Check(f"{what}: rights", "warn", message, "rows are read by those who may")]


def check_disk(what: str, folder: Path) -> Check:
    """Check the free space at the folder's location."""
    free = shutil.disk_usage(_nearest(folder)).free
    outcome: Outcome = "fail" if free < DISK_FAIL_BYTES else "warn" if free < DISK_WARN_BYTES else "pass"
    message = f"{free / 1024**3:,.1f} GiB free at {_nearest(folder)}"
    return Check(
        f"{what}: disk", outcome, message, "a decided version can be applied (I4): a full disk stops the line"
    )


def check_room(log: Log, store: Store, state: Folded, free: int | None) -> Iterator[Check]:
    """Check sizes, leases and the forecast; ``free`` bytes on the log's disk, None when not known.

    Unreadable parts are left out: another check reports them.
    """
    with contextlib.suppress(TidegateError):
        decisions, staged = log.size()
        size = shown_bytes(store.size()) + (f" ({store.size_counts})" if store.size_counts else "")
        message = (
            f"log {shown_bytes(decisions + staged)} ({shown_bytes(decisions)} of it decisions), store {size}"
        )
        yield Check("size", "pass", message, BOUNDED)
    with contextlib.suppress(TidegateError):
        yield check_leases(store)
    if free is not None:
        with contextlib.suppress(TidegateError):
            yield check_forecast(log, state, free)


def check_leases(store: Store) -> Check:
    """Check the lease on the oldest version. A warning: it has been held longer than the default allows."""
    leases, visible = store.leases(), store.pointer().visible
    if not leases:
        return Check("oldest lease", "pass", "no reader holds a version", BOUNDED)
    oldest, limits = leases[0], Options()
    behind = visible - oldest.version
    message = (
        f"version {oldest.version}, {behind} behind the visible one, held for {oldest.age_s:.0f} s;"
        f" {len(leases)} leases in all"
    )
    _, layers = kept_by(store, limits)
    long = oldest.age_s > limits.max_lease_s or behind > layers
    return Check("oldest lease", "warn" if long else "pass", message, BOUNDED)


def check_forecast(log: Log, state: Folded, free: int) -> Check:
    """Forecast how long the log's disk lasts at the rate of the last versions, if nothing were trimmed."""
    promise = "a decided version can be applied (I4): a full disk stops the line"
    decided = state.recent[-LOOKED_AT:]
    seconds = (decided[-1].decided_at_us - decided[0].decided_at_us) / 1e6 if len(decided) > 1 else 0.0
    if seconds <= 0:
        return Check("log: room", "pass", "too few versions for a rate", promise)
    written = sum(
        frame.bytes for version in decided[1:] for frame in read_manifest(log, version, rows=False).frames()
    )
    per_day = written / seconds * DAY_S
    if per_day == 0:
        return Check("log: room", "pass", "the last versions were empty", promise)
    days = free / per_day
    pace = f"{shown_bytes(per_day)} a day by the last {len(decided)} versions"
    message = f"{pace}: room for {days:,.1f} days, untrimmed"
    return Check("log: room", "warn" if days < ROOM_WARN_DAYS else "pass", message, promise)
