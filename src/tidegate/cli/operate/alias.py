"""``tidegate alias set | list | drop``: names under which readers find a namespace."""

from __future__ import annotations

import contextlib
import logging
from typing import Annotated

import typer

from tidegate.base.text import brief
from tidegate.base.urls import redact
from tidegate.cli.core import completion
from tidegate.cli.core.config_files import StoreConfigs, stores_given
from tidegate.cli.core.options import Json, Namespace, Stores, Yes, confirm, examples
from tidegate.cli.core.output import print_json, print_table
from tidegate.cli.core.parameters import group
from tidegate.committers.operations.alias import checked_target, set_alias
from tidegate.errors import ConfigError, CorruptError
from tidegate.options.endpoints import StoreRef
from tidegate.sinks.aliases import Target
from tidegate.sinks.open_store import open_store

logger = logging.getLogger("tidegate")

SET_EXAMPLES = examples(
    "tidegate alias set live --namespace flights_green --store redis://cache:6379",
    "tidegate alias set live --namespace flights_blue   # and back",
)
LIST_EXAMPLES = examples("tidegate alias list --store redis://cache:6379")
DROP_EXAMPLES = examples("tidegate alias drop live --store redis://cache:6379")

Alias = Annotated[str, typer.Argument(metavar="ALIAS", help="The alias.", autocompletion=completion.aliases)]


def set_(
    alias: Alias,
    store: Stores,
    namespace: Namespace,
    store_config: StoreConfigs,
    *,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Although the namespace has no visible version yet, or is an unfinished copy."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Let readers of ALIAS find a namespace, in one atomic step.

    Each of their calls that begins afterwards reads there; snapshots and scans that have begun end where
    they are. Whatever the alias named before stays as it is: setting it back is the same command.
    Of several stores each has aliases of its own: all are looked at before the first is set.

    Refused when the namespace has no visible version yet, or is an unfinished copy of a rekey, and when
    ALIAS is the name of a namespace.
    """
    refs = stores_given(store, store_config)
    targets = [checked_target(ref, alias, namespace, force=force) for ref in refs]
    before = [set_alias(ref, alias, target) for ref, target in zip(refs, targets, strict=True)]
    if json:
        rows = [
            {"store": ref.name, "namespace": target.namespace, "uuid": target.uuid, "before": _name(was)}
            for ref, target, was in zip(refs, targets, before, strict=True)
        ]
        print_json({"alias": alias, "stores": rows})
        return
    for ref, was in zip(refs, before, strict=True):
        now = f"{alias} is namespace {namespace} in {redact(ref.url)} from now on"
        changed = was is not None and was.namespace != namespace
        print(now + (f"; before, it was {_name(was)}" if changed else ""))


def list_(store: Stores, store_config: StoreConfigs, *, json: Json = False) -> None:
    """List the aliases in a store, and the namespaces that they name. Writes nothing."""
    refs = stores_given(store, store_config)
    entries = [
        (ref, alias, target, *_looked_at(ref, target)) for ref in refs for alias, target in _all(ref).items()
    ]
    if json:
        rows = [
            {"store": ref.name, "alias": alias, "namespace": target.namespace, "uuid": target.uuid}
            | {"visible": visible}
            for ref, alias, target, visible, _ in entries
        ]
        print_json({"aliases": rows})
        return
    print_table(
        ["alias", "namespace", "visible", "store"],
        [(alias, target.namespace, shown, ref.name) for ref, alias, target, _, shown in entries],
    )


def drop(
    alias: Alias,
    store: Stores,
    store_config: StoreConfigs,
    *,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Remove an alias: readers who go by it are refused from then on. The namespace stays as it is."""
    refs = stores_given(store, store_config)
    named = [(ref, _all(ref).get(alias)) for ref in refs]
    if all(target is None for _, target in named):
        raise ConfigError(
            f"there is no alias {brief(alias)} in {', '.join(redact(ref.url) for ref in refs)}: check"
            " --store; `tidegate alias list` shows which there are"
        )
    if not yes:
        names = sorted({target.namespace for _, target in named if target is not None})
        confirm(f"readers of {alias}, which is namespace {', '.join(names)}, would be refused")
        if [(ref, _all(ref).get(alias)) for ref in refs] != named:
            raise ConfigError(f"alias {alias} was set meanwhile: nothing was dropped; run this command again")
    for ref in refs:
        with contextlib.closing(open_store(ref.url, alias, ref.options)) as under_it:
            under_it.aliases().drop(alias)
    if json:
        rows = [{"store": ref.name, "namespace": _name(target)} for ref, target in named]
        print_json({"alias": alias, "dropped": rows})
    else:
        print(f"alias {alias} dropped")


def _all(at: StoreRef) -> dict[str, Target]:
    # Aliases belong to the location, not to a namespace: the name opened here is irrelevant.
    with contextlib.closing(open_store(at.url, "alias", at.options)) as store:
        return store.aliases().all()


def _looked_at(at: StoreRef, target: Target) -> tuple[int | None, str]:
    """Return the namespace's visible version, None without one, and the table's text for it.

    A namespace that cannot be read is a warning: on a shared server it hides no other's alias.
    """
    try:
        with contextlib.closing(open_store(at.url, target.namespace, at.options)) as store:
            identity = store.identity()
            same = identity is not None and identity.uuid == target.uuid
            visible = store.pointer().visible if same else None
    except (CorruptError, ConfigError) as error:
        logger.warning("%s", error)
        return None, "cannot be read"
    return visible, "gone" if visible is None else str(visible)


def _name(target: Target | None) -> str | None:
    return None if target is None else target.namespace


app = group(
    "alias",
    "Names under which readers find a namespace: set one, list them, drop one.",
    (set_, "set", "Let readers of ALIAS find a namespace.", SET_EXAMPLES),
    (list_, "list", "List the aliases in a store.", LIST_EXAMPLES),
    (drop, "drop", "Remove an alias; the namespace stays.", DROP_EXAMPLES),
)
