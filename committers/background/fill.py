"""The fill: a new store gets the state of another one at one version, then follows the log from there.

A lease pins the version in the source, and the new store is marked with it before anything is written there.
Every row that is live at the version is applied as that version's, and sealed. Then that version is the first
one visible. A second or concurrent filler at the same version writes the same rows in the same chunks.
docs/decisions/0015 explains why an older filler can do no harm.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from tidegate.base import failpoints
from tidegate.base.names import FILL_AGAIN
from tidegate.committers.apply.apply import stamp_of
from tidegate.committers.background.pin import VersionPin
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.decision_log import DecisionLog
from tidegate.committers.repair.repair import repair
from tidegate.committers.states import Machine, State
from tidegate.committers.steps.decided_versions import decided_version
from tidegate.committers.steps.fill_groups import fill_groups, is_filled
from tidegate.committers.steps.publish import publish
from tidegate.errors import (
    CorruptError,
    SnapshotExpiredError,
    StoreUnavailableError,
    WalGapError,
)
from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.rules.reads import FILLED_FROM
from tidegate.sinks.store import Store
from tidegate.wal.record import DecidedVersion

logger = logging.getLogger("tidegate")


def fill(coordinator: Coordinator, source: Store, stopped: Callable[[], bool] = lambda: False) -> bool:
    """Fill the driver's store from ``source``; False: stopped half-way, call it again.

    The epoch must be claimed. Durable: on return of True a version is visible there, complete; readers never
    saw a part of it. Repeatable: also after an interruption; it continues at the version that was begun if
    the source still has it, else at a newer one, from ``FILLED_FROM`` on. Raises: StoreUnavailableError,
    SnapshotExpiredError: call it again. FencedError: a newer driver fills. ConfigError: the store cannot be
    filled. WalGapError: the log does not know the source's version.
    """
    if coordinator.store.pointer().filling_at and coordinator.store.unverified():
        repair(coordinator)  # puts nothing back: the fill writes again the rows of it that servers lost
    pin = _hold(coordinator, source)
    try:
        decided = _decided(coordinator.decisions, pin.version)
        entry = _entry(source, decided)
        _refuse_other_base(coordinator, pin.version)
        mark = coordinator.store.begin_fill(entry, coordinator.epoch)
        failpoints.hit("fill.after_begin")
        if mark != pin.version:
            return is_filled(coordinator, pin.version, mark)
        stamp = stamp_of(decided)
        coordinator.store.begin(stamp, source.schemas().values(), coordinator.epoch)
        if not fill_groups(coordinator, source, stamp, entry, stopped, pin.keep):
            return False
        publish(
            coordinator,
            Machine(State.SEALED, coordinator.watch),
            decided,
            entry,
            first_of=(entry,),
        )
        logger.info(
            "%s was filled from %s, version %s is visible",
            coordinator.store.where,
            source.where,
            decided.version,
        )
        return True
    finally:
        pin.give_back()


def _hold(coordinator: Coordinator, source: Store) -> VersionPin:
    """Pin the version that was begun if the source still has it, else its newest."""
    mark, newest = coordinator.store.pointer().filling_at, source.pointer().visible
    oldest = max(mark, FILLED_FROM)
    if newest < oldest:
        msg = (
            f"{coordinator.store.where} waits to be filled from {source.where}: version {oldest} is not"
            f" visible there yet, version {newest} is"
        )
        raise StoreUnavailableError(msg)
    if mark >= FILLED_FROM:
        with contextlib.suppress(SnapshotExpiredError):
            return VersionPin(source, mark, coordinator.clock)
    return VersionPin(source, newest, coordinator.clock)


def is_rebuilding(coordinator: Coordinator) -> bool:
    """Whether a rebuild from the log was interrupted here after it had begun versions above its base.

    A fill from another store begins its own version alone.
    """
    mark = coordinator.store.pointer().filling_at
    return bool(mark) and any(stamp.version > mark for stamp in coordinator.store.begun())


def _refuse_other_base(coordinator: Coordinator, version: int) -> None:
    """Refuse to fill a store whose rebuild from the log has written versions above another base.

    Raises: WalGapError: it has to be dropped first.
    """
    mark = coordinator.store.pointer().filling_at
    if mark != version and is_rebuilding(coordinator):
        raise WalGapError(
            f"{coordinator.store.where}: its rebuild from the log, at version {mark}, was interrupted, and"
            f" {version} is the version to fill it at now: remove it, drop its data, and add it again"
            f" ({FILL_AGAIN.replace('NAME', coordinator.endpoints.stores[0].name)})"
        )


def _decided(decisions: DecisionLog, version: int) -> DecidedVersion:
    decisions.catch_up()  # a version visible in the source was decided before
    decided = decided_version(decisions, version)
    if decided is None:
        msg = f"{decisions.where} does not know version {version}: log and stores do not belong together"
        raise WalGapError(msg)
    return decided


def _entry(source: Store, decided: DecidedVersion) -> CatalogEntry:
    entries = source.catalog(decided.version, decided.version)
    if not entries:
        raise SnapshotExpiredError(f"{source.where}: version {decided.version} was retired meanwhile")
    if entries[0].digest != decided.digest:
        msg = (
            f"{source.where}: version {decided.version} has digest {entries[0].digest} in the catalog,"
            f" {decided.digest} in the log: they are of two histories; nothing was copied"
        )
        raise CorruptError(msg)
    return entries[0]
