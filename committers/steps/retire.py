"""Retirement: versions that no reader may read any more are made unreadable, then dropped.

Announce, check, delete, one version at a time. The horizon is announced first, durably. The same atomic step
checks the leases and revokes those that it passes. Only rows below the horizon are dropped. A crash in
between leaves at most the last announced version to be dropped again, which is repeatable.

A zombie, an older driver's retirement that wakes late, does no harm, so nothing here checks the epoch. Its
announce: the horizon never moves down, nor past the visible version or a lease that holds when the announce
takes effect; a reader that it passes is refused, not answered wrongly (I8). Its retire: the version was at or
below the horizon when it was sent, the horizon has only moved up since, and a row that was replaced at or
below the horizon is needed at no version that can still be read. A store that lost the namespace and is
rebuilt may have a lower horizon: it keeps the row, or refuses the readers that would miss it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from tidegate.base import failpoints
from tidegate.committers.apply import apply
from tidegate.committers.steps.decided_versions import RetirementBacklog
from tidegate.errors import WalGapError
from tidegate.options import Options
from tidegate.sinks.records import Stopped
from tidegate.sinks.store import Store
from tidegate.wal.frame import Chunk
from tidegate.wal.log import Log
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import DecidedVersion, Folded

logger = logging.getLogger("tidegate")

LOOK_AT_LEAST, LOOK_PER_CHANGE, LOOK_AT_ONCE = 500, 2, 2_000
"""The number of rows that each retired version checks for expiry: a minimum, per change, and per call. So the
cost is proportional to the version's changes (I11). At a steady rate of inserts and expiries, the expired
rows awaiting removal amount to about a third of the live rows.
"""

BEHIND_LEAST = 4
"""The least number of versions that may become visible during one retirement, whatever ``max_layers`` is."""


def kept_by(store: Store, options: Options) -> tuple[int, int]:
    """Return how many versions stay readable, and how many behind the visible one a lease may pin."""
    readable = store.keep_versions_default if options.keep_versions is None else options.keep_versions
    return readable, readable + store.layers_default if options.max_layers is None else options.max_layers


def behind_most(store: Store, options: Options) -> int:
    """Return how many versions may become visible while older ones are retired.

    Together with an equal number that wait for the next retirement, they are about as many as a lease may
    pin.
    """
    readable, layers = kept_by(store, options)
    return max(BEHIND_LEAST, (layers - readable) // 2)


def retire_up_to(
    log: Log,
    store: Store,
    state: Folded | None,
    options: Options,
    stopped: Stopped,
    dropped: int = 0,
    retired: Callable[[], None] = lambda: None,
    backlog: RetirementBacklog | None = None,
) -> int:
    """Move the horizon so that ``keep_versions`` stay readable, and drop the versions below it.

    Returns the version up to which all is dropped: the horizon, unless ``stopped`` ended the call
    half-way, or the horizon is past ``state``. ``dropped`` is the result of an earlier call; without it the
    last announced version is dropped once more, since the driver that announced it may have died before
    the drop. ``retired`` is called after each version that is dropped. ``backlog`` is that of earlier calls;
    without it, versions that the fold no longer keeps are read from the log in each call.

    Leases hold the horizon back, within ``max_lease_s`` and ``max_layers``. A version whose decision or
    changes the log no longer has is left to ``Store.vacuum``. Repeatable: also after an interruption at any
    point, and concurrently with another driver's.
    """
    if state is None:
        return dropped
    pointer, last = store.pointer(), state.last_version
    readable, layers = kept_by(store, options)
    # Not past the last version folded: an announced version with unknown changes would never be dropped.
    horizon, target = pointer.horizon, min(pointer.visible, last) - readable + 1
    if horizon >= target and min(horizon, last) <= dropped:
        return dropped
    versions = (backlog or RetirementBacklog(log)).since(
        state, min(horizon, dropped + 1) if dropped else horizon
    )
    decided = next(versions, None)
    while decided is not None and decided.version <= horizon:
        if decided.version > dropped:
            if not _drop(log, store, decided, stopped):
                return dropped
            retired()
        decided = next(versions, None)
    while horizon < target and not stopped():
        announced = store.announce(
            horizon + 1,
            max_lease_s=options.max_lease_s,
            max_layers=layers,
            keep_versions=readable,
            max_leases=options.max_leases,
        )
        if announced <= horizon:
            break
        failpoints.hit("retire.after_announce")
        while decided is not None and decided.version <= announced:
            if not _drop(log, store, decided, stopped):
                return horizon
            retired()
            decided = next(versions, None)
        horizon = announced
    return min(horizon, last)


def _drop(log: Log, store: Store, decided: DecidedVersion, stopped: Stopped) -> bool:
    """Drop the rows that a version has replaced, by its own changes; False: stopped half-way."""

    def changes(manifest: Manifest) -> Iterator[Chunk]:
        for work in apply.plan(manifest, decided, 1):
            for chunk in apply.chunks_of(work, log):
                yield chunk
                failpoints.hit("retire.after_group")

    try:
        manifest = apply.read_manifest(log, decided)
        # One call, also for a version without changes: it may have emptied a table.
        counts = manifest.counts()
        if not store.retire(apply.stamp_of(decided), counts, changes(manifest), stopped):
            return False  # the next run does the rest
        if any(table_at.expires for table_at in manifest.table_schemas.values()):
            _drop_expired(store, sum(sum(tables.values()) for tables in counts.values()), stopped)
    except WalGapError as error:
        # The horizon has passed it: no reader reads the rows it replaced, so only disk space is at stake.
        logger.warning(
            "version %s is retired, but not dropped: %s; `tidegate vacuum` drops it", decided.version, error
        )
    return True


def _drop_expired(store: Store, changes: int, stopped: Stopped) -> None:
    """Check more rows for expiry at the horizon, from where the last check ended."""
    rows = LOOK_AT_LEAST + LOOK_PER_CHANGE * changes
    for first in range(0, rows, LOOK_AT_ONCE):
        store.drop_expired(min(LOOK_AT_ONCE, rows - first))
        if stopped():
            return
