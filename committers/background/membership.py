"""The membership of stores: adding one to a namespace, or removing one, by a record in the log each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tidegate.base.urls import place_of, scheme_of, with_login_of, without_login
from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.background.follower import Follower, follower_for
from tidegate.committers.coordinator import Coordinator, describe_writer
from tidegate.committers.decision_log import DecisionLog
from tidegate.committers.opening.lifecycle import refuse_other_uuid
from tidegate.committers.opening.open import open_namespace, refuse_other_history
from tidegate.committers.opening.store_list import add_to_list, refuse_primary, remove_from_list
from tidegate.committers.steps.decided_versions import decided_version
from tidegate.errors import ConfigError, FencedError, TidegateError, WalGapError
from tidegate.options.endpoints import StoreRef
from tidegate.sinks.open_store import open_store
from tidegate.sinks.rules.removal import Removal
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
    open_namespace(coordinator, None, changing=at.name, command="store add")
    refuse_primary(coordinator, store)
    for one in coordinator.endpoints.stores:  # a namespace that only ever had one store has no list yet
        add_to_list(coordinator.decisions, one.name)
    add_to_list(coordinator.decisions, at.name)
    if store.identity() is not None:  # the note of an earlier removal is gone before readers are sent here
        store.claim(coordinator.epoch, coordinator.writer)
    return own


def _refuse_unfit(coordinator: Coordinator, store: Store) -> None:
    """Check the new store, as far as that is possible before anything is appended."""
    state, identity = coordinator.folded, store.identity()
    asking = _asking(coordinator, store)
    if identity is not None:
        refuse_other_uuid(coordinator.log, store, state)
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


def _asking(coordinator: Coordinator, store: Store) -> Coordinator:
    """Return a coordinator for questions about another store: it is never opened."""
    return Coordinator(coordinator.endpoints, coordinator.log, store, coordinator.options, coordinator.clock)


def _reaches_back(decisions: DecisionLog) -> bool:
    first = decided_version(decisions, 1)
    if first is None:
        return False
    try:
        read_manifest(decisions.log, first)
    except WalGapError:
        return False
    return True


def successor_url(coordinator: Coordinator, successor: str) -> str:
    """Return the URL without login that the note of a removed store names for ``successor``.

    That is the name of one of the coordinator's stores, or a URL that readers may know one of them by.
    Raises: ConfigError: it is neither.
    """
    for ref in coordinator.endpoints.stores:
        if successor == ref.name:
            return without_login(ref.url)
    if "://" in successor:
        return without_login(successor)
    names = ", ".join(ref.name for ref in coordinator.endpoints.stores)
    raise ConfigError(f"--redirect {successor}: that is no store of --store ({names}), and no URL")


@contextlib.contextmanager
def other_successor(coordinator: Coordinator, removed: StoreRef, successor: str) -> Iterator[Store | None]:
    """Open a successor that is none of the coordinator's stores, as a reader of the removed one would.

    It gets the login of the removed store, and where its scheme is the same the options. None: it is one of
    the coordinator's, or there is none. Raises: ConfigError: it cannot be opened, or has another namespace.
    """
    if not successor or successor in (place_of(ref.url) for ref in coordinator.endpoints.stores):
        yield None
        return
    same = scheme_of(successor) == scheme_of(removed.url)
    url, name = with_login_of(removed.url, successor) if same else successor, coordinator.endpoints.namespace
    with contextlib.ExitStack() as closing:
        try:
            store = open_store(url, name, removed.options if same else None)
            closing.callback(store.close)
            identity = store.identity()
        except TidegateError as error:
            raise ConfigError(
                f"the successor {successor} cannot be opened as readers of store {removed.name} would, with"
                f" its login and options: {error}. Nothing was changed; give it as --store NAME=URL, and NAME"
                " as --redirect"
            ) from error
        if identity is None or identity.uuid != coordinator.folded.namespace:
            content = "no namespace of that name" if identity is None else f"another one ({identity.uuid})"
            raise ConfigError(
                f"the successor {successor} has {content}, not namespace {name}"
                f" ({coordinator.folded.namespace}): nothing was changed; give another --redirect"
            )
        yield store


def leave_note(
    coordinator: Coordinator, removed: Store, successor: str = "", other: Store | None = None
) -> Removal | None:
    """Leave the note in a store that the log does not list any more (``sinks/rules/removal.py``).

    The coordinator is the one of ``remove_store``. From this claim on every older driver is fenced in the
    store, and each read of its pointer shows the note. ``successor`` is a URL without login, ``other`` its
    store where it is none of the coordinator's. None: the store does not have the namespace. Durable: on
    return. Repeatable. Raises: ConfigError: it is one of the coordinator's own stores, or the successor shows
    an older version. WalGapError: it has another namespace of that name. FencedError: a newer driver has
    claimed it. StoreUnavailableError: it may have the note.
    """
    if removed.identity() is None:
        return None
    refuse_other_uuid(coordinator.log, removed, coordinator.folded)
    if not coordinator.epoch:
        open_namespace(coordinator, None, command="store remove")
    _refuse_behind(coordinator, removed, successor, other)
    for store in coordinator.others:  # under another URL the removed store may be one of them
        with contextlib.suppress(TidegateError):
            store.claim(coordinator.epoch, coordinator.writer)
    removal = Removal(coordinator.last_decided, coordinator.clock.now_us(), successor)
    removed.claim(coordinator.epoch, removal.as_writer())
    pointer = removed.pointer()
    if pointer.epoch > coordinator.epoch:
        raise FencedError(
            f"{removed.where}: {describe_writer(pointer.writer)} claimed epoch {pointer.epoch}, above this"
            f" command's {coordinator.epoch}: the store is in use again; `tidegate store list` shows where"
        )
    if not pointer.is_removed:
        raise ConfigError(
            f"{removed.where} is one of the stores that remain, under another URL: no note was written"
        )
    return removal


def _refuse_behind(coordinator: Coordinator, removed: Store, successor: str, other: Store | None) -> None:
    """Refuse a successor whose readers would see an older version. Raises: ConfigError."""
    places = [place_of(ref.url) for ref in coordinator.endpoints.stores]
    stores = [*zip(places, (coordinator.store, *coordinator.others), strict=True), (successor, other)]
    for place, store in stores:
        if store is None or place != successor:
            continue
        shown, before = store.pointer().visible, removed.pointer().visible
        if shown < before:
            raise ConfigError(
                f"the successor {successor} shows version {shown}, the removed one {before}: no note was"
                " written; run `tidegate recover` with the stores that remain, and this command again"
            )


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
    if listed == (name,) or name in (ref.name for ref in coordinator.endpoints.stores):
        msg = (
            f"store {name} cannot be removed: another store has to remain, and to be given as --store"
            " NAME=URL; to end the namespace itself: `tidegate drop --namespace"
            f" {coordinator.endpoints.namespace}`"
        )
        raise ConfigError(msg)
    open_namespace(coordinator, None, changing=name, command="store remove")
    remove_from_list(coordinator.decisions, name)
    return True
