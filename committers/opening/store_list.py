"""The log's list of stores, compared with the stores that a driver was given.

StoreAdded and StoreRemoved records make the list. An empty list means one store, with any name: a namespace
that only ever had one needs no list. The list contains every store that follows the log, including the
primary; the driver's order decides which one is the primary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tidegate.committers.coordinator import Coordinator
from tidegate.committers.decision_log import DecisionLog
from tidegate.committers.opening.rekeyed import moved_from
from tidegate.committers.steps.append import append_until_confirmed
from tidegate.errors import ConfigError, StoreUnavailableError
from tidegate.sinks.aliases import refuse_writing
from tidegate.sinks.store import Store
from tidegate.wal.record import Folded, StoreAdded, StoreRemoved


def refuse_other_stores(coordinator: Coordinator, state: Folded, changing: str | None = None) -> None:
    """Refuse a driver whose stores are not those of the list.

    A namespace without versions may still get its first stores. ``changing`` may be in the list or not.
    Raises: ConfigError, which names each difference and its remedy.
    """
    ways = suggested_fixes(state, [ref.name for ref in coordinator.endpoints.stores], changing)
    if not ways:
        return
    listed = ", ".join(state.stores) or "one store, without a name"
    name = coordinator.endpoints.namespace
    raise ConfigError(f"the log of namespace {name} lists {listed}; store {'; store '.join(ways)}")


def suggested_fixes(state: Folded, given: Sequence[str], changing: str | None = None) -> list[str]:
    """Describe each store that is in the list and was not given, or the other way round, with a remedy."""
    if state.stores:
        missing = [name for name in state.stores if name not in (*given, changing)]
        unlisted = [name for name in given if name not in (*state.stores, changing)]
    else:
        missing, unlisted = [], [name for name in given[1:] if name != changing]
    if state.last_version == 0:
        unlisted = []
    if missing and unlisted:  # commands that change the list would be refused for the other ones
        named = f"it may be {' or '.join(missing)} without its name, or by another one; else leave it out"
        return [f"{one} is not given: give it as {one}=URL" for one in missing] + [
            f"{one} is not in the list: {named}" for one in unlisted
        ]
    if moved_from(state) is not None:  # the list of a moved namespace cannot be changed
        return [f"{one} is not given: give it as {one}=URL" for one in missing] + [
            f"{one} is not in the list: leave it out" for one in unlisted
        ]
    return [
        f"{one} is not given: give it as {one}=URL, or run `tidegate store remove {one}`" for one in missing
    ] + [f"{one} is not in the list: run `tidegate store add {one}=URL`, or leave it out" for one in unlisted]


def list_stores_of_new(coordinator: Coordinator) -> None:
    """Add the first stores of a namespace without versions to the list. Repeatable.

    The primary is claimed, no other store is: no follower writes to one that is not in the list. Raises:
    ConfigError: one is the primary under another name; the list has none of the stores.
    """
    given = [ref.name for ref in coordinator.endpoints.stores]
    if len(given) > 1 and coordinator.folded.last_version == 0:
        if not coordinator.folded.stores:
            for other in coordinator.others:
                with contextlib.suppress(StoreUnavailableError):  # its follower looks at it later
                    refuse_primary(coordinator, other)
        for name in given:
            add_to_list(coordinator.decisions, name)


def refuse_alias(coordinator: Coordinator) -> None:
    """Refuse a new namespace whose name is an alias in one of its stores. Raises: ConfigError."""
    name = coordinator.endpoints.namespace
    for store in coordinator.stores:
        with contextlib.suppress(*() if store is coordinator.store else (StoreUnavailableError,)):
            refuse_writing(store.where, name, store.aliases().get(name))


def refuse_primary(coordinator: Coordinator, store: Store) -> None:
    """Refuse a store that is the primary under another name: a second URL of one place is no copy.

    The open has claimed the primary alone. Raises: ConfigError; StoreUnavailableError: it does not answer.
    """
    if store.identity() is not None and store.pointer().writer == coordinator.writer:
        raise ConfigError(
            f"{store.where} is the primary, {coordinator.store.where}, under another name: nothing was added."
            " Give a place of its own"
        )


def add_to_list(decisions: DecisionLog, name: str) -> None:
    """Add a store to the log's list. The driver must be open.

    Durable: on return the log lists it. Raises: as ``append_until_confirmed``.
    """
    if name in decisions.folded.stores:
        return
    append_until_confirmed(
        decisions,
        StoreAdded(**decisions.header(), store=name),
        lambda state: name in state.stores,
        f"namespace {decisions.namespace} has store {name}",
        f"tidegate store add {name}=URL",
    )


def remove_from_list(decisions: DecisionLog, name: str) -> None:
    """Remove a store from the log's list. The driver must be open.

    Durable: on return the log does not list it. Raises: as ``append_until_confirmed``.
    """
    if name not in decisions.folded.stores:
        return
    append_until_confirmed(
        decisions,
        StoreRemoved(**decisions.header(), store=name),
        lambda state: name not in state.stores,
        f"namespace {decisions.namespace} has no store {name}",
        f"tidegate store remove {name}",
    )
