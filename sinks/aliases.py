"""Aliases: names under which readers find a namespace. The interface and its guarantees; no I/O here.

An alias belongs to a place (a folder, a Redis, a keyspace), not to a namespace: it is one small record
that names a namespace of the same place, and changes in one atomic write. Readers look at it as each of
their calls begins (``src/tidegate/reader/alias_gate.py``); a writer never goes by one. Why so: decision 0042.

Every method may raise StoreUnavailableError: no answer in time. From ``get`` and ``all`` it proves nothing
but that; ``set`` and ``drop`` may have taken effect, and may simply be repeated. What of them arrives late,
when a later one has returned, changes nothing: each goes on from the revision that it read
(``changed``), but for a first ``set`` behind a ``drop``.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TypeVar

import msgspec

from tidegate.errors import ConfigError, StoreUnavailableError

TRIES = 20
"""So often others may change an alias in the moment between a look and the write behind it."""

Outcome = TypeVar("Outcome")


class Target(msgspec.Struct, frozen=True):
    """The namespace that an alias names. The ``uuid`` too: one that was dropped and made again is another."""

    namespace: str
    uuid: str


class Aliases(abc.ABC):
    """The aliases of one place. Threads may share it; it ends with the store that gave it."""

    where: str

    @abc.abstractmethod
    def get(self, alias: str) -> Target | None:
        """What the alias names now; None: it is no alias. After ``set`` has returned, its target or a later
        one.
        """

    @abc.abstractmethod
    def all(self) -> dict[str, Target]:
        """Every alias of the place, by name. One that changes meanwhile may be missed, or told as it was.

        On servers that several share, one that cannot be read is left out, with a warning: it names nothing.
        """

    @abc.abstractmethod
    def set(self, alias: str, target: Target) -> None:
        """From now on the alias names the target, whatever it named before: one atomic write, as durable on
        return as any other of the store.

        May be repeated; of two at once the last one stands, whole. ConfigError: the name is a namespace's,
        where the store can tell in the same step; else the caller has looked before.
        """

    @abc.abstractmethod
    def drop(self, alias: str) -> bool:
        """Remove the alias, not the namespace; whether there was one. May be repeated. Durable on return."""


def changed(where: str, alias: str, once: Callable[[], Outcome | None]) -> Outcome:
    """What ``once`` returns. It looks at an alias, and writes if that stands as it was; None: it does not.

    StoreUnavailableError: others changed it ``TRIES`` times in between; nothing was written.
    """
    for _ in range(TRIES):
        outcome = once()
        if outcome is not None:
            return outcome
    raise StoreUnavailableError(
        f"{where}: alias {alias!r} was changed by others {TRIES} times meanwhile: repeat the command"
    )


def name_is_taken(where: str, alias: str) -> ConfigError:
    """The error for an alias that would have a namespace's name."""
    return ConfigError(
        f"{where}: {alias!r} is a namespace here, which readers find by that name: choose another"
    )


def refuse_writing(where: str, name: str, target: Target | None) -> None:
    """ConfigError: the name that something with a log is to go by is an alias."""
    if target is not None:
        raise ConfigError(
            f"{where}: {name!r} is an alias of namespace {target.namespace}, and only readers go by an alias:"
            f" give the namespace's own name; to free this one: `tidegate alias drop {name}`"
        )
