"""Retire: versions that no reader may ask for any more are made unreadable, then dropped.

Announce, look, delete, one version at a time: the horizon is announced first, durably; the
same atomic step looks at the leases and revokes those it passes; only what lies below the
horizon is dropped. A crash in between leaves at most the last announced version to be dropped
again, which is repeatable.

A zombie, an older driver's retirement that wakes late, does no harm, so nothing here asks for
the epoch. Its announce: the horizon never goes down, never past the visible version or a
lease that holds when the announce takes effect, and whoever it passes is refused, not
answered wrongly (I8). Its retire: the version was at or below the horizon when it was sent,
the horizon only went up since, and what a row at or below the horizon replaced is needed at
no version that can still be read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from tidegate.base import failpoints
from tidegate.committers.apply import apply
from tidegate.committers.steps.facts import known_facts
from tidegate.errors import WalGapError
from tidegate.options import Options
from tidegate.sinks.records import Stopped
from tidegate.sinks.store import Store
from tidegate.wal.frame import Chunk
from tidegate.wal.log import Log
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import Folded, VersionFact

logger = logging.getLogger("tidegate")

LOOK_AT_LEAST, LOOK_PER_CHANGE, LOOK_AT_ONCE = 500, 2, 2_000
"""How many rows each retired version looks at for those that have expired: what it costs follows its changes
(I11), and while as many rows come as go, about a third as many as live wait to be dropped.
"""

BEHIND_LEAST = 4
"""Versions that may become visible during one retirement, however few layers a lease may hold."""


def kept_by(store: Store, options: Options) -> tuple[int, int]:
    """How many versions stay readable, and how many behind the visible one a lease may hold."""
    kept = store.keep_versions_default if options.keep_versions is None else options.keep_versions
    return kept, kept + store.layers_default if options.max_layers is None else options.max_layers


def behind_most(store: Store, options: Options) -> int:
    """How many versions may become visible while older ones are retired. With as many that wait for the next
    retirement they are about as many as a lease may hold.
    """
    kept, layers = kept_by(store, options)
    return max(BEHIND_LEAST, (layers - kept) // 2)


def retire_up_to(
    log: Log,
    store: Store,
    state: Folded | None,
    options: Options,
    stopped: Stopped,
    dropped: int = 0,
    retired: Callable[[], None] = lambda: None,
) -> int:
    """Move the horizon so that ``keep_versions`` stay readable, and drop what is below it.

    Returns the version up to which all is dropped: the horizon, unless ``stopped`` ended it
    half-way, or the horizon is past ``state``. ``dropped`` is what an earlier call returned; else the
    last announced version is dropped once more, since whoever announced it may have died before that.
    ``retired`` is called behind each version that is dropped.

    Leases hold the horizon back, within ``max_lease_s`` and ``max_layers``. May be repeated,
    interrupted at any point, and run beside another's. A version whose decision or whose changes
    the log no longer has is left to ``Store.vacuum``.
    """
    if state is None:
        return dropped
    pointer, last = store.pointer(), state.last_version
    kept, layers = kept_by(store, options)
    # Not past what was folded: who announces a version and does not know its changes leaves them for ever.
    horizon, target = pointer.horizon, min(pointer.visible, last) - kept + 1
    if horizon >= target and min(horizon, last) <= dropped:
        return dropped
    facts = known_facts(log, state, min(horizon, dropped + 1) if dropped else horizon)
    fact = next(facts, None)
    while fact is not None and fact.version <= horizon:
        if fact.version > dropped:
            if not _drop(log, store, fact, stopped):
                return dropped
            retired()
        fact = next(facts, None)
    while horizon < target and not stopped():
        announced = store.announce(
            horizon + 1,
            max_lease_s=options.max_lease_s,
            max_layers=layers,
            keep_versions=kept,
            max_leases=options.max_leases,
        )
        if announced <= horizon:
            break
        failpoints.hit("retire.after_announce")
        while fact is not None and fact.version <= announced:
            if not _drop(log, store, fact, stopped):
                return horizon
            retired()
            fact = next(facts, None)
        horizon = announced
    return min(horizon, last)


def _drop(log: Log, store: Store, fact: VersionFact, stopped: Stopped) -> bool:
    """Drop what a version has replaced, driven by its own changes; False: stopped half-way."""

    def changes(manifest: Manifest) -> Iterator[Chunk]:
        for work in apply.plan(manifest, fact, 1):
            for chunk in apply.chunks_of(work, log):
                yield chunk
                failpoints.hit("retire.after_group")

    try:
        manifest = apply.read_manifest(log, fact)
        # One call, also for a version without changes: it may have emptied a table.
        counts = manifest.counts()
        if not store.retire(apply.stamp_of(fact), counts, changes(manifest), stopped):
            return False  # what is left is done by the next run
        if any(at.expires for at in manifest.table_schemas.values()):
            _drop_expired(store, sum(sum(tables.values()) for tables in counts.values()), stopped)
    except WalGapError as error:
        # The horizon has passed it: nobody reads what it replaced, so nothing but the disk is at stake.
        logger.warning(
            "version %s is retired, but not dropped: %s; `tidegate vacuum` drops it", fact.version, error
        )
    return True


def _drop_expired(store: Store, changes: int, stopped: Stopped) -> None:
    """Look at some more rows for those that had expired at the horizon, on from where it last ended."""
    rows = LOOK_AT_LEAST + LOOK_PER_CHANGE * changes
    for at in range(0, rows, LOOK_AT_ONCE):
        store.drop_expired(min(LOOK_AT_ONCE, rows - at))
        if stopped():
            return
