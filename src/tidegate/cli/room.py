"""The part of ``tidegate doctor`` about room: sizes, the oldest lease, how long a disk will do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tidegate.checks import Check
from tidegate.cli.output import shown_bytes
from tidegate.committers.apply import read_manifest
from tidegate.errors import TidegateError
from tidegate.options import Options
from tidegate.sinks.store import Store
from tidegate.wal.log import Log
from tidegate.wal.record import Folded

LOOKED_AT = 20
"""The pace is taken from so many of the last versions."""
DAY_S = 86_400
ROOM_WARN_DAYS = 2.0
BOUNDED = "disks do not fill up (I11): retirement and trimming keep up"


def check_room(log: Log, store: Store, state: Folded, free_bytes: int | None) -> Iterator[Check]:
    """Sizes, leases and the forecast; ``free_bytes`` on the log's disk, None when not known.

    Whatever cannot be read is left out: another line says so.
    """
    with contextlib.suppress(TidegateError):
        decisions, staged = log.size()
        held = shown_bytes(store.size())
        found = (
            f"log {shown_bytes(decisions + staged)} ({shown_bytes(decisions)} of it decisions), store {held}"
        )
        yield Check("size", "pass", found, BOUNDED)
    with contextlib.suppress(TidegateError):
        yield check_leases(store)
    if free_bytes is not None:
        with contextlib.suppress(TidegateError):
            yield check_forecast(log, state, free_bytes)


def check_leases(store: Store) -> Check:
    """The lease that holds the oldest version. A warning: it holds longer than the default allows."""
    leases, visible = store.leases(), store.pointer().visible
    if not leases:
        return Check("oldest lease", "pass", "no reader holds a version", BOUNDED)
    oldest, limits = leases[0], Options()
    behind = visible - oldest.version
    found = (
        f"version {oldest.version}, {behind} behind the visible one, held for {oldest.age_s:.0f} s;"
        f" {len(leases)} leases in all"
    )
    long = oldest.age_s > limits.max_lease_s or behind > limits.layers_max
    return Check("oldest lease", "warn" if long else "pass", found, BOUNDED)


def check_forecast(log: Log, state: Folded, free_bytes: int) -> Check:
    """How long the log's disk lasts at the pace of the last versions, if nothing were trimmed."""
    promise = "what is decided can be applied (I4): a full disk stops the line"
    facts = state.recent[-LOOKED_AT:]
    seconds = (facts[-1].decided_at_us - facts[0].decided_at_us) / 1e6 if len(facts) > 1 else 0.0
    if seconds <= 0:
        return Check("log: room", "pass", "too few versions to tell a pace", promise)
    written = sum(frame.bytes for fact in facts[1:] for frame in read_manifest(log, fact).frames())
    per_day = written / seconds * DAY_S
    if per_day == 0:
        return Check("log: room", "pass", "the last versions were empty", promise)
    days = free_bytes / per_day
    pace = f"{shown_bytes(per_day)} a day by the last {len(facts)} versions"
    found = f"{pace}: room for {days:,.1f} days, untrimmed"
    return Check("log: room", "warn" if days < ROOM_WARN_DAYS else "pass", found, promise)
