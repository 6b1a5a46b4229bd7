"""The parts of the room that a store takes, and the way to free each, for ``tidegate vacuum``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tidegate.errors import TidegateError
from tidegate.sinks.capabilities import SupportsUsage
from tidegate.sinks.records import Pointer, Usage
from tidegate.sinks.store import Store

FULL = 0.99
"""The used share of a server's memory or a disk from which a store counts as full."""
LEASES_SHOWN = 5


def usage_of(store: Store) -> list[Usage]:
    """List the parts: versions that leases hold, what the store lists by itself, else its size."""
    pointer = store.pointer()
    pinned = list(_held(store, pointer))
    if isinstance(store, SupportsUsage):
        return [*pinned, *store.usage()]
    entries = store.catalog(pointer.horizon, pointer.visible)
    changes = sum(sum(entry.changes.values()) for entry in entries[1:])
    way = "a smaller keep_versions of the query: its next retirement drops what they replaced"
    replaced = (
        [Usage("changes of newer versions than the oldest readable", changes, None, way)] if changes else []
    )
    return [*pinned, *replaced, Usage("all of the store", None, store.size(), "fewer rows, or larger disks")]


def full_share(store: Store) -> float | None:
    """Return the used share of the fullest server or disk of a full store; None: not full, or not known."""
    fullest = max(store.used_shares().values(), default=0.0)
    return fullest if fullest >= FULL else None


def _held(store: Store, pointer: Pointer) -> Iterator[Usage]:
    """Yield the oldest versions that leases hold, each with its holders and the rows that it keeps."""
    oldest: dict[int, list[str]] = {}
    for lease in store.leases():
        holder = f"{lease.lease_id} for {lease.age_s:,.0f} s, {lease.expires_in_s:,.0f} s more"
        oldest.setdefault(lease.version, []).append(holder)
    for version, holders in list(oldest.items())[:LEASES_SHOWN]:
        if version == pointer.visible:
            continue
        changes = sum(sum(entry.changes.values()) for entry in store.catalog(version + 1, pointer.visible))
        contents = f"version {version}, held by leases: {'; '.join(holders[:LEASES_SHOWN])}"
        way = "close these snapshots and scans; max_lease_s of the query ends leases"
        yield Usage(contents, changes, None, way)


def refusal_of(store: Store) -> str:
    """Return the message about a store that takes no writes now; empty: it takes them, or it is not known."""
    if not isinstance(store, SupportsUsage):
        return ""
    with contextlib.suppress(TidegateError):
        if why := store.refused_writes():
            return f"{store.where} takes no writes now, and readers continue: {why}"
    return ""
