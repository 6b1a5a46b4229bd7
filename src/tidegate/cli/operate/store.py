"""``tidegate store add | remove | list``: the stores that follow a namespace's log."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Annotated

import typer

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
from tidegate.committers.background.membership import add_store, remove_store
from tidegate.errors import ConfigError
from tidegate.options import StoreRef, parse_store
from tidegate.sinks.open_store import open_store
from tidegate.status.probes import LIMIT_S
from tidegate.status.stores import rows_of, with_log

ADD_EXAMPLES = examples(
    "tidegate store add copy=redis://cache:6379 --store main=sqlite:///data/store --wal file:///data/wal",
)
REMOVE_EXAMPLES = examples(
    "tidegate store remove copy --store main=sqlite:///data/store --wal file:///data/wal",
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
    if not existing:
        raise ConfigError("--store is missing: name the stores that are there already, the primary first")
    *before, added = stores_given([*existing, new], work.store_config)
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
) -> None:
    """Remove a store from a namespace; its data stays there, for `tidegate drop --only-stores`.

    --store names the stores that remain, the primary first; the removed one need not answer. From
    then on no version is written there, and the trimming of the log waits for it no more.

    Refused while a writer is running: stop the query, run this, and start it without the store.
    """
    remaining = [each for each in work.stores() if each.name != name]
    if not remaining:
        raise ConfigError(
            f"store {name} cannot be removed: give the stores that remain, as --store NAME=URL; to end the"
            " namespace itself: `tidegate drop`"
        )
    with work.writer(work.endpoints(remaining)) as coordinator:
        removed = remove_store(coordinator, name)
        listed = coordinator.folded.stores
    lines = [f"namespace {work.namespace} has no store {name}; nothing was written"]
    if removed:
        stores = _in_order(remaining, listed)
        lines = [
            f"namespace {work.namespace} has no store {name} any more; its stores are {stores}",
            f"its data is where it was: `tidegate drop --only-stores --store {name}=URL` removes it",
        ]
    work.report({"removed": removed, "listed": listed}, lines)


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
    return f"{', '.join(names)} (the first is the primary)"


app = group(
    "store",
    "The stores that follow a namespace's log: add one, remove one, list them.",
    (add, "add", "Add a store, and fill it.", ADD_EXAMPLES),
    (remove, "remove", "Remove a store; its data stays there.", REMOVE_EXAMPLES),
    (list_, "list", "List a namespace's stores.", LIST_EXAMPLES),
)
