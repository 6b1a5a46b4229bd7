"""The membership of stores: adding one to a namespace, or removing one, by a record in the log each."""

from __future__ import annotations

from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.background.follower import Follower, follower_for
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.decision_log import DecisionLog
from tidegate.committers.opening.open import open_namespace, refuse_other_history, refuse_other_uuid
from tidegate.committers.opening.store_list import add_to_list, remove_from_list
from tidegate.committers.steps.decided_versions import decided_version
from tidegate.errors import ConfigError, WalGapError
from tidegate.options import StoreRef
from tidegate.sinks.store import Store


def add_store(coordinator: Coordinator, at: StoreRef, store: Store) -> Follower:
    """Put a store into the log's list; return its follower, whose ``step`` fills it and catches it up.

    The coordinator has the present stores. Durable: on return it is open, every decided version is visible in
    its primary, and the log lists the store. Repeatable: also after an interruption at any point. Raises:
    ConfigError, WalGapError: it cannot become a store of this namespace; nothing was appended. Otherwise as
    ``open_namespace`` and ``append_until_confirmed``.
    """
    if at.name in (one.name for one in coordinator.endpoints.stores):
        raise ConfigError(f"store {at.name} is given twice: as the new one, and as one that is there already")
    own = follower_for(coordinator, at, store, fill_first=True)
    _refuse_unfit(coordinator, store)
    open_namespace(coordinator, None, changing=at.name)
    for one in coordinator.endpoints.stores:  # a namespace that only ever had one store has no list yet
        add_to_list(coordinator.decisions, one.name)
    add_to_list(coordinator.decisions, at.name)
    return own


def _refuse_unfit(coordinator: Coordinator, store: Store) -> None:
    """Check the new store, as far as that is possible before anything is appended."""
    state, identity = coordinator.folded, store.identity()
    asking = Coordinator(
        coordinator.endpoints, coordinator.log, store, coordinator.options, coordinator.clock
    )
    if identity is not None:
        refuse_other_uuid(asking, state, identity)
        pointer = store.pointer()  # first: a visible version was decided before, so a log read later has it
        coordinator.decisions.catch_up()
        refuse_other_history(asking, coordinator.folded, pointer)
        if pointer.visible:
            return
    if not store.can_be_filled and state.last_version and not _reaches_back(coordinator.decisions):
        msg = (
            f"{store.where}: a store of this kind cannot be filled from another one, and"
            f" {coordinator.log.where} does not reach back to version 1: it can be a store of a new namespace"
            " only"
        )
        raise ConfigError(msg)


def _reaches_back(decisions: DecisionLog) -> bool:
    first = decided_version(decisions, 1)
    if first is None:
        return False
    try:
        read_manifest(decisions.log, first)
    except WalGapError:
        return False
    return True


def remove_store(coordinator: Coordinator, name: str) -> bool:
    """Remove a store from the log's list; False: it was not in it. Its data stays as it is.

    The coordinator has the stores that remain, the first of them filled. Durable: on return trimming no
    longer waits for the removed one, and no driver that opens writes to it. Repeatable: yes. Raises:
    ConfigError: it is the only one, or is given as one that remains; nothing was appended. Otherwise as
    ``open_namespace`` and ``append_until_confirmed``.
    """
    listed = coordinator.folded.stores
    if name not in listed:
        return False
    if listed == (name,) or name in (at.name for at in coordinator.endpoints.stores):
        msg = (
            f"store {name} cannot be removed: another store has to remain, and to be given as --store"
            " NAME=URL; to end the namespace itself: `tidegate drop`"
        )
        raise ConfigError(msg)
    open_namespace(coordinator, None, changing=name)
    remove_from_list(coordinator.decisions, name)
    return True
