"""Epochs: taking one in the log and claiming it in the store."""

from __future__ import annotations

from tidegate.committers.coordinator import Coordinator
from tidegate.committers.decision_log import DecisionLog
from tidegate.errors import FencedError
from tidegate.sinks.records import Pointer
from tidegate.wal.log import Appended
from tidegate.wal.record import Open


def take_epoch(decisions: DecisionLog, lineage: str | None, claimed: int = 0) -> Appended | None:
    """Append an Open above every epoch folded, every one this writer ever tried, and the claimed one.

    ``claimed`` is the store's epoch, read before the log. It is above the log's only when the log lost the
    Open of a driver that may still run: that driver is fenced by the higher epoch. The append proves
    nothing; the fold decides whether the epoch is the driver's own.
    """
    decisions.tried_epoch = max(decisions.tried_epoch, decisions.folded.epoch, claimed) + 1
    return decisions.append(Open(**decisions.header(decisions.tried_epoch), lineage=lineage))


def claim_epoch(coordinator: Coordinator) -> None:
    """Claim the driver's epoch in the store, before anything else is written there (I6).

    Raises: FencedError: a higher epoch is claimed already.
    """
    claimed = coordinator.store.claim(coordinator.epoch, coordinator.writer)
    if claimed > coordinator.epoch:
        msg = (
            f"{coordinator.store.where} carries epoch {claimed}, above this driver's {coordinator.epoch}: a"
            " newer driver runs; stop this one, or restart it if it is the one that should run"
        )
        raise FencedError(msg)


def refuse_if_shared(coordinator: Coordinator, pointer: Pointer) -> None:
    """Refuse an epoch that another driver has claimed, although this driver has just taken it.

    The log gives an epoch to one driver, so it has lost the Open of the other one. Raises: FencedError.
    """
    if pointer.epoch == coordinator.epoch and pointer.writer != coordinator.writer:
        coordinator.decisions.forget_records()  # they may be those that the log lost
        msg = (
            f"{coordinator.store.where} carries epoch {pointer.epoch} of driver {pointer.writer}, and the log"
            f" {coordinator.log.where} has given this epoch to driver {coordinator.writer}: the log lost the"
            " record by which the other one took it (brokers without power, an unclean election, an older"
            " copy put back). Nothing was written; stop the other driver and start this one again, which"
            " takes a higher epoch"
        )
        raise FencedError(msg)
