"""Whether a log and a store match: the mismatches that a writer refuses on open."""

from __future__ import annotations

from tidegate.sinks.records import Identity, Pointer
from tidegate.wal.fold import recent_version
from tidegate.wal.record import Folded


def misfit(state: Folded | None, identity: Identity | None, pointer: Pointer) -> str | None:
    """Describe a mismatch, and its remedy; None when log and store match.

    ``state`` is None for a log that has nothing of the namespace, ``identity`` for such a store.
    """
    if identity is None:
        if state is None:
            return None
        return "the store has nothing of this namespace: check --store; `tidegate recover` writes it again"
    if state is None:
        return "the log is empty and the store is not: check --wal, or restore the log"
    if identity.uuid != state.namespace:
        return f"the log is of namespace {state.namespace}, the store of {identity.uuid}: check the URLs"
    if pointer.visible > state.last_version:
        return f"the log is behind the store: it ends at version {state.last_version}; restore the log"
    fact = recent_version(state, pointer.visible)
    if fact is not None and fact.digest != pointer.digest:
        return f"version {pointer.visible} of the store is not that of the log: restore the log or the store"
    return None
