"""Filling a new store from another one: the part of the store's interface that most stores leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.errors import ConfigError

if TYPE_CHECKING:
    from tidegate.sinks.store import CatalogEntry


class Fillable:
    """What every store answers when it is to be filled; as it stands here: that it cannot be."""

    where: str
    can_be_filled = False
    """Whether ``begin_fill`` and ``publish_filled`` work here."""

    def begin_fill(self, entry: CatalogEntry, epoch: int) -> int:
        """Make ready to be filled at the entry's version, while nothing is visible; the version that stands.

        One atomic conditional write marks the store: the horizon becomes that version iff nothing
        is visible, the horizon is below it, and the store's epoch <= ``epoch``. A horizon above a
        visible version of 0 means: nothing but this version, whole, may become visible first. Then, in
        every key group, the floor becomes at least the version before the one that stands, and what lies at
        or below it is dropped: what an older filler, or an apply of version 1, brings late is not written.

        Durable on return. May be repeated and may land late: the horizon never goes down, and nothing of the
        version that stands is touched. 0: something is visible here already, or a higher epoch is claimed;
        nothing was changed. ConfigError: this kind of store cannot be filled; it can only follow a log that
        reaches back to version 1. StoreNotVerifiedError: a server was not compared with the log.
        WalGapError: it lost what it had, and has to be dropped first. ValueError: see ``FILLED_FROM``.
        """
        raise ConfigError(
            f"{self.where}: a store of this kind cannot be filled from another one; it can follow a log that"
            " reaches back to version 1, or a new namespace from its start"
        )

    def publish_filled(self, entry: CatalogEntry, epoch: int) -> bool:
        """Make ``entry.version``, which the store was filled at and sealed, the first visible one.

        First the floor of every key group becomes that version: what was applied is all versions up
        to it, merged. Then one atomic conditional write, as ``publish``: visible 0 -> version iff
        nothing is visible, the horizon is exactly this version and the store's epoch <= ``epoch``.
        StoreNotVerifiedError: servers changed since the fill began; begin it again.
        """
        raise ConfigError(f"{self.where}: a store of this kind cannot be filled from another one")
