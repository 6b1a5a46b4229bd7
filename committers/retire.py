"""Retire: versions that no reader may ask for any more are made unreadable, then dropped.

One version at a time: the horizon is announced first, durably, and held back by leases; only
what lies below it is dropped. A crash in between leaves at most the last announced version
to be dropped again, which is repeatable.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate import failpoints
from tidegate.committers import apply
from tidegate.options import Options
from tidegate.sinks.store import Store
from tidegate.wal.fold import fact_of
from tidegate.wal.log import Log
from tidegate.wal.record import Folded


def retire_up_to(
    log: Log, store: Store, state: Folded | None, options: Options, stopped: Callable[[], bool]
) -> int:
    """Move the horizon so that ``keep_versions`` stay readable, and drop what is below it.

    The horizon that stands afterwards. Leases hold it back. May be repeated and interrupted.
    """
    pointer = store.pointer()
    horizon, target = pointer.horizon, pointer.visible - options.keep_versions + 1
    if state is None or target <= 0:
        return horizon
    if horizon > 0:
        _drop_below(log, store, state, horizon)  # an earlier run may have ended half-way
    while horizon < target and not stopped():
        announced = store.announce(max(horizon + 1, 1))
        if announced <= horizon:
            break
        horizon = announced
        failpoints.hit("retire.after_announce")
        _drop_below(log, store, state, horizon)
    return horizon


def _drop_below(log: Log, store: Store, state: Folded, version: int) -> None:
    """Drop what ``version`` has replaced, driven by its own changes."""
    fact = fact_of(state, version)
    if fact is None:
        return
    manifest = apply.read_manifest(log, fact)
    for work in apply.plan(manifest, fact, 1):
        for chunk in apply.chunks_of(work, log):
            store.retire(version, [chunk])
            failpoints.hit("retire.after_group")
