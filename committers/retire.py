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

from tidegate import failpoints
from tidegate.committers import apply
from tidegate.committers.facts import known_facts
from tidegate.errors import WalGapError
from tidegate.options import Options
from tidegate.sinks.store import Store
from tidegate.wal.frame import Chunk
from tidegate.wal.log import Log
from tidegate.wal.record import Folded, VersionFact

logger = logging.getLogger("tidegate")


class _Stopped(Exception):  # noqa: N818 - no error: what is left is done by the next run
    pass


def retire_up_to(
    log: Log,
    store: Store,
    state: Folded | None,
    options: Options,
    stopped: Callable[[], bool],
    dropped: int = 0,
) -> int:
    """Move the horizon so that ``keep_versions`` stay readable, and drop what is below it.

    Returns the version up to which all is dropped: the horizon, unless ``stopped`` ended it
    half-way. ``dropped`` is what an earlier call returned; else the last announced version is
    dropped once more, since whoever announced it may have died before that.

    Leases hold the horizon back, within ``max_lease_s`` and ``max_layers``. May be repeated,
    interrupted at any point, and run beside another's. A version whose decision or whose changes
    the log no longer has is left to ``Store.vacuum``.
    """
    pointer = store.pointer()
    horizon, target = pointer.horizon, pointer.visible - options.keep_versions + 1
    if state is None or (horizon >= target and horizon <= dropped):
        return dropped
    facts = known_facts(log, state, horizon)
    fact = next(facts, None)
    while fact is not None and fact.version <= horizon:
        if fact.version > dropped and not _drop(log, store, fact, stopped):
            return dropped
        fact = next(facts, None)
    while horizon < target and not stopped():
        announced = store.announce(
            horizon + 1, max_lease_s=options.max_lease_s, max_layers=options.layers_max
        )
        if announced <= horizon:
            break
        failpoints.hit("retire.after_announce")
        while fact is not None and fact.version <= announced:
            if not _drop(log, store, fact, stopped):
                return horizon
            fact = next(facts, None)
        horizon = announced
    return horizon


def _drop(log: Log, store: Store, fact: VersionFact, stopped: Callable[[], bool]) -> bool:
    """Drop what a version has replaced, driven by its own changes; False: stopped half-way."""

    def changes() -> Iterator[Chunk]:
        manifest = apply.read_manifest(log, fact)
        for work in apply.plan(manifest, fact, 1):
            for chunk in apply.chunks_of(work, log):
                yield chunk
                failpoints.hit("retire.after_group")
                if stopped():
                    raise _Stopped

    try:
        # One call, also for a version without changes: it may have emptied a table.
        store.retire(fact.version, changes())
    except _Stopped:
        return False
    except WalGapError as error:
        # The horizon has passed it: nobody reads what it replaced, so nothing but the disk is at stake.
        logger.warning(
            "version %s is retired, but not dropped: %s; `tidegate vacuum` drops it", fact.version, error
        )
    return True
