"""Aliases: setting, listing and refusing them. Only an operator's command sets or drops one."""

from __future__ import annotations

import contextlib
import logging

from tidegate.base.names import check_name
from tidegate.committers.opening.lifecycle import Side, refuse, shown_in
from tidegate.errors import ConfigError, CorruptError
from tidegate.options.endpoints import StoreRef
from tidegate.sinks.aliases import Aliases, Target, name_is_taken
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Identity
from tidegate.sinks.store import Store

logger = logging.getLogger("tidegate")


def checked_target(at: StoreRef, alias: str, namespace: str, *, force: bool = False) -> Target:
    """Find the target that the alias would name in this store. It writes nothing.

    Raises: ConfigError: the name is a namespace's; the namespace does not exist; it has no visible version
    or is an unfinished copy (unless forced).
    """
    refuse_taken(at, alias)
    with contextlib.closing(open_store(at.url, namespace, at.options)) as store:
        identity = store.identity()
        if identity is None:
            raise _no_target(store, namespace, store.aliases().get(namespace))
        if not force and not store.pointer().visible:
            raise ConfigError(
                f"{store.where}: no version is visible here yet, so readers of {alias!r} would find nothing:"
                " wait for the first one, `tidegate status` shows it; or use --force"
            )
        if not force:
            refuse("alias set", namespace, Side(None, shown_in(store)))
    return Target(identity.name, identity.uuid)


def refuse_taken(at: StoreRef, alias: str) -> None:
    """Refuse an alias that is no name, or the name of a namespace in this store. Raises: ConfigError."""
    check_name("alias", alias)
    with contextlib.closing(open_store(at.url, alias, at.options)) as under_it:
        if under_it.identity() is not None:
            raise name_is_taken(under_it.where, alias)


def _no_target(store: Store, namespace: str, behind: Target | None) -> ConfigError:
    """Build the error for a name that an alias cannot name; ``behind``: it is an alias of this target."""
    if behind is None:
        return ConfigError(f"{store.where}: there is no such namespace here: check --namespace and --store")
    return ConfigError(
        f"{store.where}: {namespace!r} is an alias of namespace {behind.namespace}, and an alias cannot name"
        f" another one: give --namespace {behind.namespace}"
    )


def set_alias(at: StoreRef, alias: str, target: Target) -> Target | None:
    """Set the alias, so that its readers find the target; return its earlier target.

    It is one atomic write. Durable: on return. Repeatable: yes. Raises: StoreUnavailableError: it may have
    been set or not; repeat it.
    """
    with contextlib.closing(open_store(at.url, target.namespace, at.options)) as store:
        aliases = store.aliases()
        before = named_by(aliases, alias)
        aliases.set(alias, target)
    return before


def named_by(aliases: Aliases, alias: str) -> Target | None:
    """Read the alias's target; None, with a warning, when it cannot be read: it names nothing."""
    try:
        return aliases.get(alias)
    except CorruptError as error:
        logger.warning("%s", error)
        return None


def aliases_of(store: Store, identity: Identity | None) -> list[str]:
    """List the aliases in this store that name the namespace of this identity, sorted."""
    if identity is None:
        return []
    target = Target(identity.name, identity.uuid)
    return sorted(alias for alias, named in store.aliases().all().items() if named == target)


def refuse_aliased(store: Store, alone: str = "") -> None:
    """Refuse to drop a namespace that has aliases. Raises: ConfigError, which names them.

    ``alone`` is the store's name, where the namespace stays in other ones: so do its aliases there.
    """
    names = aliases_of(store, store.identity())
    if names:
        option = f" --store {alone}=URL" if alone else ""
        raise ConfigError(
            f"{store.where}: readers find it as {', '.join(names)}: set the alias to another namespace with"
            f" `tidegate alias set {names[0]} --namespace NAME{option}`,"
            f" or `tidegate alias drop {names[0]}{option}`"
        )
