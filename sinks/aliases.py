"""Aliases: names under which readers find a namespace. The interface and its guarantees, without I/O.

An alias belongs to a place (a folder, a Redis, a keyspace), not to a namespace. It is one small record
that names a namespace of the same place, and changes in one atomic write. Readers read it as each of
their calls begins (``src/tidegate/reader/alias_gate.py``); a writer never uses one. The reasons are in
docs/decisions/0042.

Every method may raise StoreUnavailableError: no answer in time. After ``get`` and ``all`` it proves nothing
else; ``set`` and ``drop`` may have taken effect, and may be repeated. A write that lands late, after a later
one has returned, changes nothing, since each depends on the revision that it read (``changed``). The
exception is a first ``set`` after a ``drop``.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TypeVar

import msgspec

from tidegate.base.text import brief
from tidegate.errors import ConfigError, StoreUnavailableError

TRIES = 20
"""The number of tries when others change an alias between the read and the write."""

Outcome = TypeVar("Outcome")


class Target(msgspec.Struct, frozen=True):
    """The namespace that an alias names. One that was dropped and created again has another ``uuid``."""

    namespace: str
    uuid: str


class Aliases(abc.ABC):
    """The aliases of one place. Thread-safe; it ends with the store that returned it."""

    where: str

    @abc.abstractmethod
    def get(self, alias: str) -> Target | None:
        """Read the alias's target; None: it is no alias. After a ``set``: that target or a later one."""

    @abc.abstractmethod
    def all(self) -> dict[str, Target]:
        """Read every alias of the place, by name.

        One that changes meanwhile may be missing, or have its old target. On shared servers an alias that
        cannot be read is left out, with a warning: it names nothing.
        """

    @abc.abstractmethod
    def set(self, alias: str, target: Target) -> None:
        """Set the alias's target, in one atomic write.

        Durable: on return, as any other write of the store. Repeatable: of two concurrent calls the last one
        counts, completely. Raises: ConfigError: the name is a namespace's, if the store can check that in the
        same step; otherwise the caller has checked before.
        """

    @abc.abstractmethod
    def drop(self, alias: str) -> bool:
        """Remove the alias, not the namespace; return whether it existed. Durable: on return. Repeatable."""


def changed(where: str, alias: str, once: Callable[[], Outcome | None]) -> Outcome:
    """Call ``once`` until it returns an outcome.

    It reads an alias, and writes if the alias is still unchanged; None: it is not. Raises:
    StoreUnavailableError: others changed it ``TRIES`` times in between; nothing was written.
    """
    for _ in range(TRIES):
        outcome = once()
        if outcome is not None:
            return outcome
    raise StoreUnavailableError(
        f"{where}: alias {brief(alias)} was changed by others {TRIES} times meanwhile: repeat the command"
    )


def name_is_taken(where: str, alias: str) -> ConfigError:
    """Build the error for an alias that would have a namespace's name."""
    return ConfigError(
        f"{where}: {brief(alias)} is a namespace here, which readers find by that name: choose another"
    )


def refuse_writing(where: str, name: str, target: Target | None) -> None:
    """Refuse an alias as the name of a namespace with a log. Raises: ConfigError."""
    if target is not None:
        raise ConfigError(
            f"{where}: {brief(name)} is an alias of namespace {target.namespace}, and only readers"
            " go by an alias:"
            f" give the namespace's own name; to free this one: `tidegate alias drop {name}`"
        )
