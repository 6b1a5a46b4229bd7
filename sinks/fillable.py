"""The parts of the store's interface that a store may leave out: filling a new store from another one, and
writing rows below the horizon again that it lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.errors import ConfigError

if TYPE_CHECKING:
    from tidegate.sinks.store import CatalogEntry, Stamp
    from tidegate.wal.frame import Run


class Fillable:
    """What every store answers when it is to be filled, or rows of its base are to be written again; as it
    stands here: that it cannot be.
    """

    where: str
    can_be_filled = False
    """Whether ``begin_fill`` and ``publish_filled`` work here."""
    can_rewrite = False
    """Whether ``rewrite`` works here."""

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

    def rewrite(self, stamp: Stamp, runs: Sequence[Run]) -> None:
        """Write rows again that readers at the horizon's version lack, as rows of that version, the stamp's.

        A row is the key's newest one at or below that version, as the log has it; of a key that has none
        there, a delete marker. So a row that was replaced or retired never comes back.

        Durable: on return. Repeatable: yes, and it may land late, after the horizon moved on: readers at
        and above the new horizon get what they got before. Raises: ConfigError where ``can_rewrite`` is
        False.
        """
        raise ConfigError(f"{self.where}: a store of this kind cannot write single rows of its base again")
