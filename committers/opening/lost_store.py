"""The rebuild of a store that lost every row: its state at the horizon, then the versions that readers keep.

It is the fill of a new store, with the log as the source. Nothing is visible until all is complete, and then
the last version is, so readers never get the past as the present. The next driver that opens continues an
interrupted rebuild at the same version. A store on Redis is rebuilt by key groups (``lost_pointer.py``).
"""

from __future__ import annotations

import contextlib
import logging

from tidegate.base import failpoints
from tidegate.committers.apply import apply
from tidegate.committers.background.fill import fill_groups, is_filled
from tidegate.committers.barrier import catalog_entry
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.repair.log_reach import first_kept
from tidegate.committers.repair.log_state import LogState
from tidegate.committers.states import Machine, State
from tidegate.committers.steps.decided_versions import decided_versions_from
from tidegate.committers.steps.publish import publish
from tidegate.committers.steps.seal import apply_and_seal
from tidegate.sinks.capabilities import SupportsRebuild
from tidegate.sinks.records import Pointer
from tidegate.sinks.rules.reads import FILLED_FROM
from tidegate.wal.record import DecidedVersion

logger = logging.getLogger("tidegate")


def rebuild_lost(coordinator: Coordinator) -> list[int]:
    """Rebuild a store that shows nothing and holds nothing; return the versions made visible, [] for none.

    The driver owns the epoch. Durable: on return the last decided version is visible. Repeatable: also after
    an interruption, and concurrently with another driver's. Raises: WalGapError: the log no longer has every
    version; nothing was written. Otherwise as ``fill``.
    """
    store, state = coordinator.store, coordinator.folded
    pointer = store.pointer()
    if not is_lost(coordinator, pointer):
        return []
    versions = versions_of(coordinator)
    horizon = pointer.filling_at or first_kept(coordinator)
    with contextlib.closing(LogState(coordinator.log, versions[:horizon])) as rows:
        base, entry = versions[horizon - 1], catalog_entry(versions[horizon - 1], rows.manifest)
        marked = store.begin_fill(entry, coordinator.epoch)
        if marked != horizon:
            is_filled(coordinator, horizon, marked)
            return []
        logger.warning(
            "%s shows nothing, and the log has %s versions: it is rebuilt from the log, with versions %s to %s"
            " readable; readers are refused until then",
            store.where,
            state.last_version,
            horizon,
            state.last_version,
        )
        failpoints.hit("fill.after_begin")
        store.put_schemas(rows.manifest.schemas.values())
        fill_groups(coordinator, rows, apply.stamp_of(base), entry)
    entries, machine = [entry], Machine(State.SEALED, coordinator.watch)
    for decided in versions[horizon:]:
        machine = Machine(State.DECIDED, coordinator.watch)
        manifest = apply_and_seal(coordinator, machine, decided, None)
        entries.append(catalog_entry(decided, manifest))
    publish(coordinator, machine, versions[-1], entries[-1], first_of=entries)
    logger.info("%s was rebuilt from the log: version %s is visible", store.where, state.last_version)
    return [entry.version for entry in entries]


def is_lost(coordinator: Coordinator, pointer: Pointer) -> bool:
    """Whether nothing is visible nor held in the store, although versions were decided.

    A first version that is being applied holds something: it is completed in the ordinary way.
    """
    store, state = coordinator.store, coordinator.folded
    if pointer.visible or state.last_version < FILLED_FROM or isinstance(store, SupportsRebuild):
        return False
    if not store.can_be_filled:
        return False
    if pointer.filling_at:
        return True
    return not store.begun() and next(iter(store.row_counts(state.tables)), None) is None


def versions_of(coordinator: Coordinator) -> list[DecidedVersion]:
    """List every decided version from 1 on. Raises: WalGapError: the log no longer has the first ones."""
    return list(decided_versions_from(coordinator.decisions, 1, coordinator.store.where))
