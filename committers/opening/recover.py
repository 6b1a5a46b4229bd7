"""Recovery: every decided version above the visible one becomes visible, in order (I4, I7).

Lost rows come first: a part of a store's by ``repair``, all of them by ``rebuild_lost``. Then each version is
completed as a commit completes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Sequence

from tidegate.base.names import saved_by_relog
from tidegate.committers.commit import complete
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.repair.log_reach import has_manifest
from tidegate.committers.repair.lost_store import rebuild_lost
from tidegate.committers.repair.repair import repair
from tidegate.committers.steps.decided_versions import decided_versions, decided_versions_from
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import StoreUnavailableError, WalGapError
from tidegate.sinks.capabilities import SupportsRebuild
from tidegate.sinks.records import Pointer
from tidegate.sinks.rules.fit import Fit, fit_of
from tidegate.sinks.store import Store
from tidegate.wal.record import DecidedVersion


def recover(
    coordinator: Coordinator, stopped: Callable[[], bool] = lambda: False, primary: Store | None = None
) -> list[int]:
    """Complete every decided version; return the versions made visible. The driver must be open.

    It needs neither Spark nor the input: everything is in the log. It stops at the first version that
    cannot be completed, so no version is ever skipped.
    A store that lost every row is rebuilt first. ``stopped`` is called before each version.
    ``primary`` is given where the store is another one.
    Repeatable. Raises: WalGapError: the log no longer has the rows of a version that the store lacks.
    """
    if coordinator.store.unverified():
        if isinstance(coordinator.store, SupportsRebuild):
            coordinator.store.note_moved()
        if coordinator.store.unverified():
            repair(coordinator)
    rebuilt = rebuild_lost(coordinator, stopped)
    pointer = coordinator.store.pointer()
    if pointer.filling_at:
        return []  # stopped half-way: nothing is applied beside the rebuild
    visible = pointer.visible
    recovered = rebuilt or _resumed(coordinator, visible)
    for decided in decided_versions_from(coordinator.decisions, visible + 1, coordinator.store.where):
        if stopped():
            break
        try:
            complete(coordinator, decided)
        except WalGapError as error:
            _refuse_if_no_longer_held(coordinator, decided, error, primary)
            raise
        recovered.append(decided.version)
    if visible and recovered and not rebuilt:
        _retire_trimmed(coordinator, visible)
    return recovered


def _retire_trimmed(coordinator: Coordinator, visible: int) -> None:
    """Retire the versions up to the one that was visible which the log no longer has.

    A store that was put back, or removed and added again, has versions that all stores of the list had
    retired before the log was trimmed. Nothing repairs or retires them later, so readers do not get them.
    """
    store, log, horizon = coordinator.store, coordinator.log, coordinator.store.pointer().horizon
    versions = decided_versions(log, coordinator.folded, horizon + 1)
    older = itertools.takewhile(lambda decided: decided.version <= visible, versions)
    trimmed = [decided.version for decided in older if not has_manifest(log, decided)]
    if trimmed and log.retention_s() is None:  # a log with a retention may lose what is needed
        readable = coordinator.store.pointer().visible - trimmed[-1] + 1
        options = dataclasses.replace(coordinator.options, keep_versions=readable)
        retire_up_to(log, store, coordinator.folded, options, lambda: False)


def _resumed(coordinator: Coordinator, visible: int) -> list[int]:
    """List the versions that became visible with a pointer that was made again; [] for none."""
    first, coordinator.rebuilt_from = coordinator.rebuilt_from, 0
    return list(range(first, visible + 1)) if first else []


def _refuse_if_no_longer_held(
    coordinator: Coordinator, decided: DecidedVersion, error: WalGapError, primary: Store | None
) -> None:
    """Raise a WalGapError with the remedies when the log lacks rows.

    Do nothing when the store has begun another attempt of the version: then that is the cause.
    """
    if any(
        one.version == decided.version and one.attempt != decided.attempt for one in coordinator.store.begun()
    ):
        return
    store, visible = coordinator.store.where, coordinator.store.pointer().visible
    others = coordinator.others if primary is None else (primary,)
    raise WalGapError(
        f"version {visible} is visible in {store}, and the log no longer has the rows of version"
        f" {decided.version}, which is decided: {error}. Either the store went back further than the log"
        " keeps (an older copy was put back; wal_retain_s), or the log lost rows."
        f" {_filled_by_another(coordinator, decided.version, others) or _saved(coordinator, visible)}"
    ) from error


def _saved(coordinator: Coordinator, visible: int) -> str:
    return (
        f"Readers keep what they see: {saved_by_relog(coordinator.endpoints.namespace, visible)}. A newer"
        " copy of the store, or another store that is filled into this one (`tidegate store add NAME=URL`),"
        " saves more"
    )


def _filled_by_another(coordinator: Coordinator, version: int, others: Sequence[Store]) -> str:
    """Describe the way out where another store shows this version, or a later one; '' where none does."""
    state, name = coordinator.folded, coordinator.endpoints.stores[0].name
    for store in others:
        with contextlib.suppress(StoreUnavailableError):
            identity = store.identity()
            pointer = Pointer() if identity is None else store.pointer()
            whole = identity is not None and fit_of(state, identity, pointer) is Fit.FITS
            if whole and pointer.visible >= version and not pointer.is_removed:
                return (
                    f"{store.where} shows version {pointer.visible}, so nothing is lost: fill this one from"
                    f" it, by `tidegate store remove {name}`, `tidegate drop --only-stores --store"
                    f" {name}=URL` and `tidegate store add {name}=URL`"
                )
    return ""
