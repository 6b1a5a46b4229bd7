"""``tidegate drop``: permanent removal of a namespace."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from tidegate.base.urls import redact
from tidegate.cli.core.operation import Operation, operation
from tidegate.cli.core.options import examples
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.lifecycle import ask
from tidegate.committers.opening.open import WRITER_ALIVE_S
from tidegate.committers.operations.alias import aliases_of, refuse_aliased
from tidegate.committers.operations.drop import drop_namespace
from tidegate.errors import ConfigError, CorruptError, TidegateError
from tidegate.sinks.records import Identity
from tidegate.sinks.store import Store
from tidegate.status.stores import no_namespace
from tidegate.wal.record import Folded

EXAMPLES = examples(
    "tidegate drop --store sqlite:///data/store --wal file:///data/wal --namespace flights",
    "tidegate drop --yes --namespace flights",
)


@operation("tidegate drop", without=("allow_unsafe",))
def drop(
    work: Operation,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for the namespace's name.")] = False,
    only_stores: Annotated[
        bool, typer.Option("--only-stores", help="Keep the log: only these stores, which it does not list.")
    ] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="Redis: scan all keys of the server.")] = False,
) -> None:
    """Remove a namespace from all its stores and the log, permanently.

    All versions, all tables. On a terminal it asks for the namespace's name; elsewhere it
    needs --yes. Refused while a writer is running, when the log does not answer, and when only
    the log is there (a wrong --store?). With --force it may be repeated when it was cut short.
    Checkpoints stay: a query that makes the namespace again starts from a new one.

    With --only-stores the log stays, and with it the namespace: for what `store remove` left behind.
    """
    namespace, where = work.namespace, work.endpoints()
    locations = [("store", each.url) for each in where.stores] + [("log", work.wal)] * (not only_stores)
    if not yes:
        _ask(namespace, locations)
    with work.coordinator(where) as coordinator:
        if only_stores:
            _refuse_listed(work, coordinator)
        else:
            _refuse_drop(work, coordinator)
        for store in coordinator.stores if only_stores and not work.force else ():
            for alias in aliases_of(store, store.identity()):  # of a removed one: they led to its note
                store.aliases().drop(alias)
        dropped = drop_namespace(coordinator, log_too=not only_stores, thorough=thorough)
    if not dropped.log and not any(dropped.stores):
        raise no_namespace(namespace, *(url for _, url in locations))
    lines = [f"namespace {namespace} is gone" + " from these stores" * only_stores]
    for (kind, url), existed in zip(locations, (*dropped.stores, dropped.log), strict=False):
        lines.append(f"  {kind:<6} {redact(url)}{'' if existed else ' (nothing was there)'}")
    unsearched = set() if thorough else {store.unsearched for store in coordinator.stores} - {""}
    lines += [f"not looked for: {each}" for each in sorted(unsearched)]
    work.report({"store": any(dropped.stores), "log": dropped.log}, lines)


def _refuse_drop(work: Operation, coordinator: Coordinator) -> None:
    """Raise ConfigError when the drop cannot be intended, or is not safe, unless forced."""
    force, namespace, wal = work.force, work.namespace, work.wal
    try:
        for store in () if force else coordinator.stores:
            refuse_aliased(store)
        work.refuse_if_writer_alive(coordinator)
        # A log that does not answer, or refuses this user, is reported before the stores are gone.
        in_log = _in_log(coordinator, force=force)
        if in_log is not None:
            _refuse_other(work, coordinator, in_log)
        if force:
            return
        if in_log is None:
            _refuse_without_log(work, coordinator)
            return
        ask(coordinator, work.row)
        if all(store.identity() is None for store in coordinator.stores):
            raise ConfigError(
                f"{redact(wal)} has namespace {namespace}, {redact(coordinator.endpoints.store)} has nothing"
                " of it, so only the log would go: check --store; if the store is gone, or a drop was cut"
                f" short, `tidegate drop --namespace {namespace} --force` removes the rest"
            )
        left = set(in_log.stores) - {each.name for each in coordinator.endpoints.stores}
        if left:
            raise ConfigError(
                f"namespace {namespace} also has store {', '.join(sorted(left))}, which would be left without"
                " its log: give it too, as --store NAME=URL; or use --force"
            )
    except CorruptError:
        if not force:  # whether a writer runs is unknown
            raise


def _in_log(coordinator: Coordinator, *, force: bool) -> Folded | None:
    """Return the log's state; with ``force`` None also where the log does not answer, or is damaged."""
    try:
        return coordinator.decisions.catch_up()
    except TidegateError:
        if not force:
            raise
        return None


def _refuse_other(work: Operation, coordinator: Coordinator, in_log: Folded) -> None:
    """Raise ConfigError when a store has another namespace of this name than the log, forced or not."""
    for store in coordinator.stores:
        identity = _identity_of(store, force=work.force)
        if identity is not None and identity.uuid != in_log.namespace:
            raise ConfigError(
                f"{redact(work.wal)} has another namespace {work.namespace} than {store.where}, so the log of"
                " the one and the rows of the other would go: check --wal and --store; nothing was removed."
                " The rows alone go by --only-stores --force"
            )


def _identity_of(store: Store, *, force: bool) -> Identity | None:
    try:
        return store.identity()
    except TidegateError:  # it is damaged, of another format, or does not answer
        if not force:
            raise
        return None


def _refuse_without_log(work: Operation, coordinator: Coordinator, alone: str = "") -> None:
    """Raise ConfigError when a store shows a version and the log has nothing of it: it may be another log."""
    state = coordinator.decisions.view.state
    for each, store in zip(coordinator.endpoints.stores, coordinator.stores, strict=True):
        identity = store.identity()
        visible = store.pointer().visible if identity is not None else 0
        if visible and (state is None or identity is None or identity.uuid != state.namespace):
            raise ConfigError(
                f"{store.where} shows version {visible} of namespace {work.namespace}, and the log"
                f" {redact(work.wal)} has nothing of it: check --wal; nothing was removed. If its log is"
                f" gone, `tidegate drop --namespace {work.namespace}{alone.format(each.name)} --force`"
                " removes the rest"
            )


def _refuse_listed(work: Operation, coordinator: Coordinator) -> None:
    """Raise ConfigError when one of the stores still follows the log, or may, unless forced."""
    if work.force:
        return
    for each, store in zip(coordinator.endpoints.stores, coordinator.stores, strict=True):
        if store.identity() is None or not store.pointer().is_removed:
            refuse_aliased(store, each.name)
        _refuse_written(store)
    state = coordinator.decisions.catch_up()
    _refuse_without_log(work, coordinator, " --only-stores --store {}=URL")
    for each, store in zip(coordinator.endpoints.stores, coordinator.stores, strict=True):
        identity = store.identity()
        if state is None or identity is None or identity.uuid != state.namespace:
            continue
        if each.name in state.stores or not state.stores:
            raise ConfigError(
                f"store {each.name} follows the log of namespace {work.namespace}: first `tidegate store"
                f" remove {each.name}`; or use --force"
            )
        if not store.pointer().is_removed:
            raise ConfigError(
                f"{store.where} has no note that it was removed, so it may be one that a query writes, under"
                f" another name: `tidegate store remove {each.name} --store {each.name}=URL`, with the stores"
                " that remain, writes the note; or use --force"
            )


def _refuse_written(store: Store) -> None:
    """Raise ConfigError when a query writes there, as it does to a store that it knows by another name."""
    age_s = None if store.identity() is None else store.pointer().heartbeat_age_s
    if age_s is not None and age_s < WRITER_ALIVE_S:
        raise ConfigError(
            f"{store.where}: a driver gave a sign of life there {age_s:.0f} s ago, so it is a store that a"
            f" query writes: check --store; if it was removed just now, wait {WRITER_ALIVE_S:.0f} s, or use"
            " --force"
        )


def _ask(namespace: str, locations: Sequence[tuple[str, str]]) -> None:
    if not _is_terminal():
        raise ConfigError(
            f"namespace {namespace} would be removed permanently from"
            f" {' and '.join(redact(url) for _, url in locations)}: add --yes to do that without being asked"
        )
    print(f"This removes namespace {namespace}, all its versions there, permanently:", file=sys.stderr)
    for kind, url in locations:
        print(f"  {kind:<6} {redact(url)}", file=sys.stderr)
    if typer.prompt("Type the namespace's name to go on", err=True) != namespace:
        raise ConfigError("that is not its name; nothing was removed")


def _is_terminal() -> bool:
    return sys.stdin.isatty()
