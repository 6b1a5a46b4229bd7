"""The attempt that may write a version: the part of the store's interface that ties rows to a decision.

A log may lose its last acknowledged records: by a power cut of its brokers, an unclean election, or a copy
that is put back. Then a version that was decided, and maybe applied, is decided again, as another attempt.
Rows have only their version's number, so a store notes each version's attempt before its first row,
and refuses another one. docs/decisions/0028.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tidegate.errors import FencedError, WalGapError

if TYPE_CHECKING:
    from tidegate.sinks.records import Stamp
    from tidegate.wal.record import TableSchema

DISCARDED = ""
"""The attempt in the stamp of a version that was discarded here."""
DISCARDED_MAX = 100
"""The most discarded attempts that are remembered; each one is an operator's command."""


class Attempts(abc.ABC):
    """The noted attempts of one namespace in one store."""

    where: str

    @abc.abstractmethod
    def begin(self, stamp: Stamp, schemas: Iterable[TableSchema], epoch: int) -> bool:
        """Note the attempt that may write this version, and keep the schemas, before the version's first row.

        One atomic step per namespace: the attempt is noted iff the version is above the visible one, no
        other attempt of the version is noted, this one was never discarded, and the store's epoch <=
        ``epoch``. So after a claim no older driver begins a version that it had not begun before.

        True: rows of this attempt may be written. False: the version is visible, nothing of it is to be
        written any more; publish and read back. Durable: on return, both ways, before any row that is
        applied after it. Repeatable. Raises: WalGapError: another attempt of this version is noted here,
        or this one was discarded: the log lost a decision. FencedError: a higher epoch is claimed.
        """

    @abc.abstractmethod
    def begun(self) -> list[Stamp]:
        """List the noted versions above the visible one, ascending. It writes nothing.

        A version that was discarded is listed too, with the attempt ``DISCARDED``, until a version with its
        number is visible: the next decision needs a later time. A noted version above a version that the
        log lacks is of the same lost history.
        """

    @abc.abstractmethod
    def discard(self, lost: Sequence[Stamp], epoch: int) -> None:
        """Remove every row and note from the lowest of these versions on, and refuse these attempts for good.

        Only versions above the visible one are allowed, of attempts that no log has. Late rows of such an
        attempt are never read, nor sealed; docs/decisions/0028 describes how for each store, and the rest
        that remains. Durable: on return. Repeatable. Raises: FencedError: a higher epoch is claimed, and
        nothing was removed.
        """


def other_attempt(where: str, stamp: Stamp, noted: str = "") -> WalGapError:
    """Build the error for an attempt that may not write its version; ``noted``: the one that may, or ''."""
    other = (
        f"attempt {noted} was begun" if noted else "another attempt of it was begun, or this one discarded"
    )
    return WalGapError(
        f"{where}: attempt {stamp.attempt} of version {stamp.version} is not written, {other}: the log lost"
        " a decision that this store has seen (brokers without power, an older copy put back). Nothing was"
        " written. Restore the newest copy of the log if there is one; else stop all drivers and run"
        " `tidegate recover --discard-lost`"
    )


def fenced(where: str, stamp: Stamp, standing: int, epoch: int, writer: str) -> FencedError:
    """Build the error for a driver that begins a version under an epoch below the claimed one."""
    by = f"driver {writer}" if writer else "another driver"
    return FencedError(
        f"{where}: {by} claimed epoch {standing}, above this driver's {epoch}; version {stamp.version} is"
        " decided and becomes visible by that driver; stop this one, or restart it if it is the one that"
        " should run"
    )
