"""The rebuild of a store that lost every row: its state at the horizon, then the versions that readers keep.

It is the fill of a new store, with the log as the source. Nothing is visible until all is complete, and then
the last version is, so readers never get the past as the present. The next driver that opens continues an
interrupted rebuild at the same version. A store on Redis is rebuilt by key groups (``lost_pointer.py``).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Sequence

from tidegate.base import failpoints
from tidegate.committers.apply import apply
from tidegate.committers.barrier import catalog_entry
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.repair.log_reach import (
    first_kept,
    refilled_at,
    refuse_missing_place,
    refuse_unrecoverable,
)
from tidegate.committers.repair.log_state import LogState
from tidegate.committers.repair.lost_pointer import resume
from tidegate.committers.states import Machine, State
from tidegate.committers.steps.decided_versions import decided_versions_from
from tidegate.committers.steps.epoch import claim_epoch
from tidegate.committers.steps.fill_groups import fill_groups, is_filled
from tidegate.committers.steps.publish import publish
from tidegate.committers.steps.seal import apply_and_seal
from tidegate.errors import ConfigError, FencedError, StoreLostError, TidegateError
from tidegate.sinks.aliases import refuse_writing
from tidegate.sinks.capabilities import SupportsRebuild
from tidegate.sinks.records import Identity, Pointer
from tidegate.sinks.rules.reads import FILLED_FROM
from tidegate.wal.record import DecidedVersion

logger = logging.getLogger("tidegate")


def rebuild_lost(coordinator: Coordinator, stopped: Callable[[], bool] = lambda: False) -> list[int]:
    """Rebuild a store that shows nothing and holds nothing; return the versions made visible, [] for none.

    ``stopped`` is called before each key group and version; call again to continue.

    The driver owns the epoch. Durable: on return the last decided version is visible. Repeatable: also after
    an interruption, and concurrently with another driver's. Raises: WalGapError: the log no longer has every
    version; nothing was written. Otherwise as ``fill``.
    """
    store, state = coordinator.store, coordinator.folded
    pointer = store.pointer()
    if not is_lost(coordinator, pointer):
        return []
    horizon = pointer.filling_at or first_kept(coordinator)
    if horizon > state.last_version:  # of a newer driver, which has decided more than this one has read
        is_filled(coordinator, state.last_version, horizon)
        return []
    # An iterator: only the versions above the horizon are held in memory (I11).
    versions = decided_versions_from(coordinator.decisions, 1, store.where)
    with contextlib.closing(LogState(coordinator.log.where)) as rows:
        rows.read(coordinator.log, itertools.islice(versions, horizon))
        return fill_and_follow(coordinator, rows, list(versions), stopped)


def fill_and_follow(
    coordinator: Coordinator,
    rows: LogState,
    newer: Sequence[DecidedVersion],
    stopped: Callable[[], bool] = lambda: False,
) -> list[int]:
    """Fill the store with the rows of one version, apply the versions after it, and make all visible at once.

    Return the visible versions; []: stopped half-way, or another driver was first. Raises: as ``fill``.
    """
    store, base, entry = coordinator.store, rows.last, rows.entry
    marked = store.begin_fill(entry, coordinator.epoch)
    if marked != base.version:
        is_filled(coordinator, base.version, marked)
        return []
    last = [base, *newer][-1]
    logger.log(
        logging.INFO if coordinator.request.from_backup else logging.WARNING,
        "%s shows nothing, and %s versions were decided: it is rebuilt, with versions %s to %s readable;"
        " readers are refused until then",
        store.where,
        last.version,
        base.version,
        last.version,
    )
    failpoints.hit("fill.after_begin")
    store.begin(apply.stamp_of(base), rows.schemas.values(), coordinator.epoch)
    if not fill_groups(coordinator, rows, apply.stamp_of(base), entry, stopped):
        return []
    entries, machine = [entry], Machine(State.SEALED, coordinator.watch)
    for decided in newer:
        if stopped():
            return []
        machine = Machine(State.DECIDED, coordinator.watch)
        manifest = apply_and_seal(coordinator, machine, decided, None)
        entries.append(catalog_entry(decided, manifest))
    publish(coordinator, machine, last, entries[-1], first_of=entries)
    logger.info("%s was rebuilt: version %s is visible", store.where, last.version)
    return [entry.version for entry in entries]


def make_again(coordinator: Coordinator) -> None:
    """Create the namespace again in a store that lost it. The driver owns the epoch; ``recover`` follows.

    Repeatable. Nothing was written if it raises as ``refuse_if_dropped``, ``refuse_missing_place`` or
    ``refuse_unrecoverable``.
    """
    refuse_if_dropped(coordinator)
    refuse_missing_place(coordinator)
    refuse_unrecoverable(coordinator)
    create_again(coordinator, refilled_at(coordinator))
    claim_epoch(coordinator)
    resume(coordinator)


def create_again(coordinator: Coordinator, lost_at: int = 0) -> Identity:
    """Create the identity again in a store that lacks it, after ``refuse_if_dropped``; return it.

    ``lost_at``: see ``Store.create``; 0 for a store that is filled from another one.
    Raises: as that; ConfigError: an alias has its name. The log may be dropped between that check and the
    creation, so it is checked again: an identity without a log is removed, since no driver could ever use it.
    """
    state, store = coordinator.folded, coordinator.store
    refuse_writing(store.where, state.name, store.aliases().get(state.name))
    identity = store.create(Identity(state.namespace, state.name, state.key_groups), lost_at)
    try:
        refuse_if_dropped(coordinator)
    except ConfigError:
        if identity.uuid == state.namespace and not store.pointer().visible:
            store.drop()
        raise
    return identity


def refuse_if_dropped(coordinator: Coordinator) -> None:
    """Check by the log that a namespace which is missing in the store was not dropped.

    A drop takes an epoch before it removes anything. Raises: FencedError: it has, or another driver opened.
    ConfigError: the log is gone, too.
    """
    coordinator.decisions.forget_records()
    state = coordinator.decisions.catch_up()
    if state is None:
        raise ConfigError(
            f"{coordinator.store.where}: the namespace is gone, and so is its log {coordinator.log.where}:"
            f" `tidegate drop --namespace {coordinator.endpoints.namespace}` removes both. If nobody dropped"
            " it, restore a copy of the log; else stop this query"
        )
    if state.epoch > coordinator.epoch:
        raise FencedError(
            f"{coordinator.store.where}: the namespace is gone, and driver {state.writer} took epoch"
            f" {state.epoch}, above this driver's {coordinator.epoch}: a drop does so, or a newer"
            " driver, which rebuilds the store; stop this one"
        )


def shows_nothing(coordinator: Coordinator) -> bool:
    """Whether the store lost what was visible: it is gone, or is being rebuilt. False: it does not answer.

    A store in which version 1 was begun has shown no version yet, unless it is being rebuilt.
    """
    store = coordinator.store
    try:
        if store.identity() is None:
            return coordinator.last_decided > 0
        pointer = store.pointer()
        if pointer.visible or not coordinator.last_decided:
            return False
        first_begun = any(stamp.version == 1 for stamp in store.begun())
        return bool(pointer.filling_at or store.unverified()) or not first_begun
    except TidegateError as error:
        return isinstance(error, StoreLostError)


def refuse_lost_for_good(coordinator: Coordinator, pointer: Pointer) -> None:
    """Refuse a store that holds nothing if the log cannot rebuild it, such as one that a killed restore made.

    It writes nothing. Raises: as ``refuse_unrecoverable``.
    """
    is_filled_elsewhere = (
        coordinator.request.has_copy or coordinator.request.from_backup or pointer.filling_at
    )
    if not is_filled_elsewhere and is_lost(coordinator, pointer):
        refuse_unrecoverable(coordinator)


def is_lost(coordinator: Coordinator, pointer: Pointer) -> bool:
    """Whether nothing is visible in the store, and nothing of version 1 is held, although more were decided.

    A store in which version 1 was begun never showed a version: it is completed in the ordinary way. A
    later version may have been begun after the loss, by a batch in flight. One whose rebuild was begun is
    lost also if the log lacks the version of that rebuild.
    """
    store, state = coordinator.store, coordinator.folded
    if pointer.visible or isinstance(store, SupportsRebuild) or not store.can_be_filled:
        return False
    if pointer.filling_at or state.last_version < FILLED_FROM:
        return bool(pointer.filling_at)
    first_begun = any(stamp.version == 1 for stamp in store.begun())
    return not first_begun and all(count.version != 1 for count in store.row_counts(state.tables))
