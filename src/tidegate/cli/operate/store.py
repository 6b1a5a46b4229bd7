"""``tidegate store add | remove | list``: the stores that follow a namespace's log."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tidegate.base.urls import place_of
from tidegate.cli.core.config_files import stores_given
from tidegate.cli.core.operation import (
    Operation,
    catch_up_others,
    operation,
    require_namespace,
    stores_as_json,
)
from tidegate.cli.core.options import examples
from tidegate.cli.core.output import print_json, print_table
from tidegate.cli.core.parameters import group
from tidegate.committers.background.membership import (
    add_store,
    leave_note,
    other_successor,
    remove_store,
    successor_url,
)
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.operations.alias import aliases_of
from tidegate.errors import ConfigError, StoreUnavailableError
from tidegate.options.endpoints import StoreRef, parse_store
from tidegate.sinks.open_store import open_store
from tidegate.sinks.rules.removal import Removal
from tidegate.sinks.store import Store
from tidegate.status.probes import LIMIT_S
from tidegate.status.stores import rows_of, with_log

ADD_EXAMPLES = examples(
    "tidegate store add copy=redis://cache:6379 --store main=sqlite:///data/store --wal file:///data/wal",
)
REMOVE_EXAMPLES = examples(
    "tidegate store remove copy --store main=sqlite:///data/store --wal file:///data/wal",
    "tidegate store remove main --redirect copy --store main=URL --store copy=URL   # move readers",
)
LIST_EXAMPLES = examples("tidegate store list --store main=sqlite:///data/store --wal file:///data/wal")


@operation("tidegate store add")
def add(
    work: Operation,
    new: Annotated[str, typer.Argument(metavar="NAME=URL", help="The new store, and its name.")],
    *,
    later: Annotated[
        bool, typer.Option("--later", help="Only put it into the log's list; the query fills it.")
    ] = False,
) -> None:
    """Add a store to a namespace, and fill it.

    --store names the stores that are there already, the primary first. The new one is filled from the
    primary at one version, then from the log; readers see nothing there before it is whole. With
    --later, or when the command is cut short, the query does that between its batches.

    Refused while a writer is running: stop the query, run this, and start it with the new list. May
    be repeated, wherever it was cut short.
    """
    name = parse_store(new).name
    existing = [text for text in work.store if parse_store(text).name != name]
    if not work.store:
        raise ConfigError("--store is missing: name the stores that are there already, the primary first")
    *before, added = stores_given([*(existing or work.store), new], work.store_config)
    with (
        work.writer(work.endpoints(before)) as coordinator,
        contextlib.closing(open_store(added.url, work.namespace, added.options)) as store,
    ):
        prepared = store.prepare()
        follower = add_store(coordinator, added, store)
        listed = coordinator.folded.stores
        standings = [] if later else [follower.catch_up(), *catch_up_others(coordinator)]
    stores = _in_order([*before, added], listed)
    result = f"namespace {work.namespace} has store {added.name} from now on; its stores are {stores}"
    work.report(
        {"listed": listed, "stores": stores_as_json(standings)},
        [*(f"made {part}" for part in prepared), result],
        standings,
        "next: start the query with these stores, in this order" + "; it fills the new one" * later,
    )


@operation("tidegate store remove")
def remove(
    work: Operation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The store's name in the log's list.")],
    *,
    redirect: Annotated[
        str,
        typer.Option(
            "--redirect",
            metavar="NAME|URL",
            help="The successor of the removed store: one that remains, or its URL.",
        ),
    ] = "",
) -> None:
    """Remove a store from a namespace; its data stays there, for `tidegate drop --only-stores`.

    --store names the stores that remain, the primary first. From then on no version is written to the
    removed store, and the trimming of the log waits for it no more.

    With --store for the removed one, too, the command leaves a note there: its readers get a
    StoreRemovedError, or continue at the store of --redirect. A store that does not answer is removed without
    a note: its readers read on at its last version. Repeat the command when it is back.

    Refused while a writer is running: stop the query, run this, and start it without the store. Refused for a
    name that is in no list, unless its store is given and has the namespace.
    """
    given = work.stores()
    remaining = [each for each in given if each.name != name]
    removed_at = next((each for each in given if each.name == name), None)
    if redirect and removed_at is None:
        raise ConfigError(f"--redirect is for the note in store {name}: give the store as --store {name}=URL")
    if not remaining:
        raise ConfigError(
            f"store {name} cannot be removed: give the stores that remain, as --store NAME=URL; to end the"
            " namespace itself: `tidegate drop`"
        )
    noted: dict[str, Any] = {"noted": False, "successor": None}
    with work.writer(work.endpoints(remaining)) as coordinator, contextlib.ExitStack() as opened:
        successor = successor_url(coordinator, redirect) if redirect else ""
        other = None
        if removed_at is not None:
            if name not in coordinator.folded.stores:
                _refuse_stranger(removed_at, coordinator)
            other = opened.enter_context(other_successor(coordinator, removed_at, successor))
            if successor:
                _refuse_lost_aliases(removed_at, coordinator, successor, other)
        removed = remove_store(coordinator, name)
        listed = coordinator.folded.stores
        standings = catch_up_others(coordinator) if removed and redirect else []
        note = (
            f"store {name} has no note for its readers, who read on at its last version: give it as --store"
            f" {name}=URL, too, and repeat the command"
        )
        if removed_at is not None and listed:
            removal = _note_in(removed_at, coordinator, successor, other)
            noted = {"noted": removal is not None, "successor": successor or None}
            note = _note_in_words(name, removal)
    stores = _in_order(remaining, listed)
    if not removed and not noted["noted"]:
        raise ConfigError(
            f"namespace {work.namespace} has no store {name}, and nothing was written; its stores are"
            f" {stores}. If it was one of them before: {note}"
        )
    lines = [f"store {name} was removed before; nothing was written to the log"]
    if removed:
        lines = [
            f"namespace {work.namespace} has no store {name} any more; its stores are {stores}",
            f"its data is where it was: `tidegate drop --only-stores --store {name}=URL` removes it",
        ]
    work.report({"removed": removed, "listed": listed, **noted}, [*lines, note], standings)


def _refuse_lost_aliases(at: StoreRef, coordinator: Coordinator, successor: str, other: Store | None) -> None:
    """Refuse a successor that lacks an alias of the removed store: its readers would find nothing there.

    Raises: ConfigError. A removed store that does not answer is not asked.
    """
    name = coordinator.endpoints.namespace
    stores = zip(coordinator.endpoints.stores, coordinator.stores, strict=True)
    target = next((store for of, store in stores if place_of(of.url) == successor), other)
    with (
        contextlib.suppress(StoreUnavailableError),
        contextlib.closing(open_store(at.url, name, at.options)) as store,
    ):
        aliases = aliases_of(store, store.identity())
        lost = [alias for alias in aliases if target is None or target.aliases().get(alias) is None]
        if lost:
            raise ConfigError(
                f"store {at.name} has the alias {lost[0]}, which its successor lacks, so readers who go by it"
                f" would find nothing there: nothing was changed. First set it: `tidegate alias set {lost[0]}"
                f" --namespace {name} --store {successor}`"
            )


def _refuse_stranger(at: StoreRef, coordinator: Coordinator) -> None:
    """Refuse a store with another namespace of this name, as restore-from without a log leaves one behind.

    Raises: ConfigError.
    """
    name = coordinator.endpoints.namespace
    with contextlib.closing(open_store(at.url, name, at.options)) as store:
        identity = store.identity()
        if identity is None or identity.uuid == coordinator.folded.namespace:
            return
        raise ConfigError(
            f"store {at.name} shows version {store.pointer().visible} of another namespace {name}"
            f" ({identity.uuid}), which {coordinator.log.where} never had: there is nothing to remove from"
            f" its list, and nothing was written. `tidegate drop --only-stores --store {at.name}=URL --force`"
            f" removes its rows; `tidegate relog --namespace {name} --to NEW --store {at.name}=URL`, with a"
            " --wal without a log of this name, keeps them"
        )


def _note_in(at: StoreRef, coordinator: Coordinator, successor: str, other: Store | None) -> Removal | None:
    """Leave the note in the removed store. Raises: StoreUnavailableError: with the next step."""
    try:
        with contextlib.closing(open_store(at.url, coordinator.endpoints.namespace, at.options)) as store:
            return leave_note(coordinator, store, successor, other)
    except StoreUnavailableError as error:
        raise StoreUnavailableError(
            f"the log lists store {at.name} no more, but the store may have no note, so its readers may read"
            f" on at its last version: repeat this command when it answers; {error}"
        ) from error


def _note_in_words(name: str, removal: Removal | None) -> str:
    if removal is None:
        return f"store {name} does not have the namespace: there is nothing that readers could see"
    if removal.successor:
        return (
            f"readers of store {name} continue at {removal.successor} if follow_redirects names its servers,"
            " others get a StoreRemovedError that names it"
        )
    return f"readers of store {name} get a StoreRemovedError from now on"


@operation("tidegate store list", without=("force", "allow_unsafe"))
def list_(work: Operation) -> None:
    """List the stores of a namespace: those of the log's list and those given. Writes nothing."""
    stores = work.stores()
    rows = rows_of(stores, work.namespace, LIMIT_S)
    with work.coordinator(work.endpoints(stores)) as coordinator:
        require_namespace(coordinator)
        rows = with_log(rows, coordinator.folded)
    if work.json:
        print_json({"namespace": work.namespace, "stores": [row.as_json() for row in rows]})
    else:
        print_table(["store", "at", "visible", "lag", "stands"], [row.cells() for row in rows])


def _in_order(stores: Sequence[StoreRef], listed: Sequence[str]) -> str:
    """List the log's stores in the order of ``stores``: a query takes the first as the primary."""
    first = [each.name for each in stores]
    names = [*(name for name in first if name in listed), *(name for name in listed if name not in first)]
    return f"{', '.join(names)} (the first is the primary)" if names else "in no list, as for a single one"


app = group(
    "store",
    "The stores that follow a namespace's log: add one, remove one, list them.",
    (add, "add", "Add a store, and fill it.", ADD_EXAMPLES),
    (remove, "remove", "Remove a store; its data stays there.", REMOVE_EXAMPLES),
    (list_, "list", "List a namespace's stores.", LIST_EXAMPLES),
)
