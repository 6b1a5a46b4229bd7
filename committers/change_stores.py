"""Add a store to a namespace, or remove one, on a person's word: one record in the log each."""

from __future__ import annotations

from tidegate.committers.apply import read_manifest
from tidegate.committers.driver import Driver
from tidegate.committers.facts import known_facts
from tidegate.committers.follower import Follower, follower_for
from tidegate.committers.open import open_namespace, refuse_other_history, refuse_other_uuid
from tidegate.committers.store_list import add_to_list, remove_from_list
from tidegate.errors import ConfigError, WalGapError
from tidegate.options import StoreAt
from tidegate.sinks.store import Store


def add_store(driver: Driver, at: StoreAt, store: Store) -> Follower:
    """Put a store into the log's list; its follower, whose ``step`` fills it and brings it to the end.

    ``driver`` has the stores that are there already. On return it is open, what was decided is visible
    in its primary, and the log lists the store. May be repeated, wherever it was cut short.

    ConfigError, WalGapError: it cannot become a store of this namespace; nothing was appended. Else
    as ``open_namespace`` and ``append_until_folded``.
    """
    if at.name in (one.name for one in driver.endpoints.stores):
        raise ConfigError(f"store {at.name} is given twice: as the new one, and as one that is there already")
    own = follower_for(driver, at, store, fill_first=True)
    _refuse_unfit(driver, store)
    open_namespace(driver, None, changing=at.name)
    for one in driver.endpoints.stores:  # a namespace that only ever had one store has no list yet
        add_to_list(driver, one.name)
    add_to_list(driver, at.name)
    return own


def _refuse_unfit(driver: Driver, store: Store) -> None:
    """What can be told of the new store before anything is appended."""
    state, identity = driver.folded, store.identity()
    asking = Driver(driver.endpoints, driver.log, store, driver.options, driver.clock)
    if identity is not None:
        refuse_other_uuid(asking, state, identity)
        pointer = store.pointer()  # first: what is visible was decided before, so a log read later has it
        driver.fold_on()
        refuse_other_history(asking, driver.folded, pointer)
        if pointer.visible:
            return
    if not store.can_be_filled and state.last_version and not _reaches_back(driver):
        msg = (
            f"{store.where}: a store of this kind cannot be filled from another one, and"
            f" {driver.log.where} does not reach back to version 1: it can be a store of a new namespace only"
        )
        raise ConfigError(msg)


def _reaches_back(driver: Driver) -> bool:
    first = next(known_facts(driver.log, driver.folded, 1), None)
    if first is None or first.version != 1:
        return False
    try:
        read_manifest(driver.log, first)
    except WalGapError:
        return False
    return True


def remove_store(driver: Driver, name: str) -> bool:
    """Take a store out of the log's list; False: it was not there. Its data stays where it is.

    ``driver`` has the stores that remain, the first of them filled. On return trimming no longer waits
    for the removed one, and no driver that opens writes there. May be repeated.

    ConfigError: it is the only one, or is given as one that remains; nothing was appended. Else as
    ``open_namespace`` and ``append_until_folded``.
    """
    listed = driver.folded.stores
    if name not in listed:
        return False
    if listed == (name,) or name in (at.name for at in driver.endpoints.stores):
        msg = (
            f"store {name} cannot be removed: another store has to remain, and to be given as --store"
            " NAME=URL; to end the namespace itself: `tidegate drop`"
        )
        raise ConfigError(msg)
    open_namespace(driver, None, changing=name)
    remove_from_list(driver, name)
    return True
