"""Versions that a store has begun and its log lacks: refused, or discarded on an operator's request."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidegate.base.names import FILL_AGAIN
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.decision_log import DecisionLog
from tidegate.committers.steps.decided_versions import decided_version
from tidegate.errors import WalGapError
from tidegate.sinks.records import Stamp
from tidegate.sinks.rules.attempts import DISCARDED

logger = logging.getLogger("tidegate")


def settle_lost_attempts(coordinator: Coordinator) -> None:
    """Refuse attempts that the store has begun and the log lacks, or discard them with ``discard_lost``.

    It is called after the claim, when no older driver begins anything more. Every later decision has a
    later time than all begun attempts. Raises: WalGapError, nothing was written.
    """
    stamps = coordinator.store.begun()
    if lost_of(coordinator.decisions, stamps):
        coordinator.decisions.catch_up()  # a newer driver may have decided and begun since
    lost = lost_of(coordinator.decisions, stamps)
    if lost and not coordinator.request.discard_lost:
        raise lost_by_the_log(coordinator, lost[0])
    if lost:
        _refuse_if_decided_earlier(coordinator, lost)
        coordinator.store.discard(lost, coordinator.epoch)
        for stamp in lost:
            logger.warning(
                "%s: attempt %s of version %s was discarded: no log has its decision",
                coordinator.store.where,
                stamp.attempt,
                stamp.version,
            )
        coordinator.discarded += lost
    coordinator.begun_us = max((stamp.decided_at_us for stamp in stamps), default=0)


def refuse_lost_attempts(
    coordinator: Coordinator, stamps: Sequence[Stamp], changing: str | None = None
) -> None:
    """Refuse attempts that the store has begun and the folded log lacks. Raises: WalGapError.

    ``changing``: the store that a command adds to the list or removes from it, and that is not given.
    """
    lost = lost_of(coordinator.decisions, stamps)
    if lost and not coordinator.request.discard_lost:
        raise lost_by_the_log(coordinator, lost[0], changing)


def lost_of(decisions: DecisionLog, stamps: Sequence[Stamp]) -> list[Stamp]:
    """List the begun versions that the log does not have, or has as another attempt."""
    lost = []
    for stamp in stamps:
        if stamp.attempt == DISCARDED:
            continue
        decided = decided_version(decisions, stamp.version)
        if stamp.version > decisions.last_decided or (decided and decided.attempt != stamp.attempt):
            lost.append(stamp)
    return lost


def _refuse_if_decided_earlier(coordinator: Coordinator, lost: Sequence[Stamp]) -> None:
    """Refuse a lost attempt whose version the log has since decided at an earlier time.

    A store that orders rows by time would hide the decided rows behind the lost ones. Raises: WalGapError.
    """
    for stamp in lost:
        decided = decided_version(coordinator.decisions, stamp.version)
        if decided is not None and decided.decided_at_us <= stamp.decided_at_us:
            raise WalGapError(
                f"{coordinator.store.where}: attempt {stamp.attempt} of version {stamp.version}, which the"
                f" log lost, is later than attempt {decided.attempt}, which the log has: it cannot be"
                " discarded. Nothing was written; fill this store from another one:"
                f" {FILL_AGAIN}; or use a new namespace"
            )


def lost_by_the_log(coordinator: Coordinator, lost: Stamp, changing: str | None = None) -> WalGapError:
    """Build the error for a store that has begun an attempt that the log lacks; it names the remedies."""
    decided = decided_version(coordinator.decisions, lost.version)
    given = [ref.name for ref in coordinator.endpoints.stores]
    listed = coordinator.folded.stores or given[:1]
    # The log may have lost a store's entry in its list, too: the command takes the listed stores alone.
    stores = listed if {*given, changing or listed[0]} - {*listed} else ()
    command = " ".join(["tidegate recover --discard-lost", *(f"--store {name}=URL" for name in stores)])
    has = f"ends at version {coordinator.folded.last_version}"
    if decided is not None:
        has = f"has attempt {decided.attempt} of it"
    return WalGapError(
        f"{coordinator.store.where} has begun attempt {lost.attempt} of version {lost.version}, the log"
        f" {coordinator.log.where} {has}: the log lost a decision (brokers without power, an unclean"
        " election, an older copy put back). Nothing of it is visible, and nothing was written. Restore the"
        f" newest copy of the log if there is one. Else stop all drivers and run `{command}`, which removes"
        " what that attempt wrote, and start the query again"
    )
