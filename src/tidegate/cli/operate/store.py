"""``tidegate store add | remove | list``: the stores that follow a namespace's log."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Annotated

import typer

from tidegate.cli.core.config_files import StoreConfigs, WalConfig, endpoints, stores_given
from tidegate.cli.core.options import AllowUnsafe, Force, Json, Namespace, Stores, Wal, examples, made_here
from tidegate.cli.core.output import print_json, print_table
from tidegate.cli.core.parameters import ValidatedCommand
from tidegate.cli.core.stores import fail_if_behind, print_standings, stores_as_json
from tidegate.committers.background.membership import add_store, remove_store
from tidegate.committers.local_coordinator import coordinator_for, followers_in
from tidegate.committers.opening.open import refuse_if_writer_alive
from tidegate.errors import ConfigError
from tidegate.options import Options, StoreRef, parse_store
from tidegate.sinks.open_store import open_store
from tidegate.status.stores import look_at_stores, with_log

ADD_EXAMPLES = examples(
    "tidegate store add copy=redis://cache:6379 --store main=sqlite:///data/store --wal file:///data/wal",
)
REMOVE_EXAMPLES = examples(
    "tidegate store remove copy --store main=sqlite:///data/store --wal file:///data/wal",
)
LIST_EXAMPLES = examples("tidegate store list --store main=sqlite:///data/store --wal file:///data/wal")

app = typer.Typer(
    name="store",
    help="The stores that follow a namespace's log: add one, remove one, list them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


def add(  # noqa: PLR0913 - its options
    new: Annotated[str, typer.Argument(metavar="NAME=URL", help="The new store, and what it is called.")],
    store: Stores,
    wal: Wal,
    namespace: Namespace,
    store_config: StoreConfigs,
    wal_config: WalConfig = None,
    *,
    later: Annotated[
        bool, typer.Option("--later", help="Only put it into the log's list; the query fills it.")
    ] = False,
    force: Force = False,
    allow_unsafe: AllowUnsafe = False,
    json: Json = False,
) -> None:
    """Add a store to a namespace, and fill it.

    --store names the stores that are there already, the primary first. The new one is filled from the
    primary at one version, then from the log; readers see nothing there before it is whole. With
    --later, or when the command is cut short, the query does that between its batches.

    Refused while a writer is running: stop the query, run this, and start it with the new list. May
    be repeated, wherever it was cut short.
    """
    name = parse_store(new).name
    there = [text for text in store if parse_store(text).name != name]
    if not there:
        raise ConfigError("--store is missing: name the stores that are there already, the primary first")
    *ats, at = stores_given([*there, new], store_config)
    where = endpoints(ats, wal, namespace, wal_config)
    with (
        coordinator_for(where, Options(allow_unsafe=allow_unsafe)) as coordinator,
        contextlib.closing(open_store(at.url, namespace, at.options)) as kept,
    ):
        made_here(coordinator)
        refuse_if_writer_alive(coordinator, "tidegate store add", force=force)
        prepared = kept.prepare()
        follower = add_store(coordinator, at, kept)
        listed = coordinator.folded.stores
        standings = [] if later else [each.catch_up() for each in (follower, *followers_in(coordinator))]
    if json:
        print_json({"namespace": namespace, "listed": listed, "stores": stores_as_json(standings)})
    else:
        for what in prepared:
            print(f"made {what}")
        print(
            f"namespace {namespace} has store {at.name} from now on; its stores are"
            f" {_in_order([*ats, at], listed)}"
        )
        print_standings(standings)
        print("next: start the query with these stores, in this order" + "; it fills the new one" * later)
    fail_if_behind(standings)


def remove(  # noqa: PLR0913 - its options
    name: Annotated[str, typer.Argument(metavar="NAME", help="The store's name in the log's list.")],
    store: Stores,
    wal: Wal,
    namespace: Namespace,
    store_config: StoreConfigs,
    wal_config: WalConfig = None,
    *,
    force: Force = False,
    allow_unsafe: AllowUnsafe = False,
    json: Json = False,
) -> None:
    """Remove a store from a namespace; its data stays there, for `tidegate drop --only-stores`.

    --store names the stores that remain, the primary first; the removed one need not answer. From
    then on no version is written there, and the trimming of the log waits for it no more.

    Refused while a writer is running: stop the query, run this, and start it without the store.
    """
    remaining = [one for one in stores_given(store, store_config) if one.name != name]
    if not remaining:
        raise ConfigError(
            f"store {name} cannot be removed: give the stores that remain, as --store NAME=URL; to end the"
            " namespace itself: `tidegate drop`"
        )
    where = endpoints(remaining, wal, namespace, wal_config)
    with coordinator_for(where, Options(allow_unsafe=allow_unsafe)) as coordinator:
        made_here(coordinator)
        refuse_if_writer_alive(coordinator, "tidegate store remove", force=force)
        removed = remove_store(coordinator, name)
        listed = coordinator.folded.stores
    if json:
        print_json({"namespace": namespace, "removed": removed, "listed": listed})
    elif removed:
        print(
            f"namespace {namespace} has no store {name} any more; its stores are"
            f" {_in_order(remaining, listed)}"
        )
        print(f"its data is where it was: `tidegate drop --only-stores --store {name}=URL` removes it")
    else:
        print(f"namespace {namespace} has no store {name}; nothing was written")


def list_(
    store: Stores,
    wal: Wal,
    namespace: Namespace,
    store_config: StoreConfigs,
    wal_config: WalConfig = None,
    *,
    json: Json = False,
) -> None:
    """List the stores of a namespace: those of the log's list and those given. Writes nothing."""
    ats = stores_given(store, store_config)
    _, rows = look_at_stores(ats, namespace)
    with coordinator_for(endpoints(ats, wal, namespace, wal_config)) as coordinator:
        made_here(coordinator)
        rows = with_log(rows, coordinator.folded)
    if json:
        print_json({"namespace": namespace, "stores": [row.as_json() for row in rows]})
    else:
        print_table(["store", "at", "visible", "lag", "stands"], [row.cells() for row in rows])


def _in_order(given: Sequence[StoreRef], listed: Sequence[str]) -> str:
    """List the log's stores in the given order: a query takes the first as the primary."""
    first = [at.name for at in given]
    names = [*(name for name in first if name in listed), *(name for name in listed if name not in first)]
    return f"{', '.join(names)} (the first is the primary)"


for command, name_of, line, epilog in (
    (add, "add", "Add a store, and fill it.", ADD_EXAMPLES),
    (remove, "remove", "Remove a store; its data stays there.", REMOVE_EXAMPLES),
    (list_, "list", "List a namespace's stores.", LIST_EXAMPLES),
):
    app.command(name=name_of, cls=ValidatedCommand, short_help=line, epilog=epilog)(command)
