"""Epochs: taking one in the log, claiming it in the store."""

from __future__ import annotations

import logging

from tidegate.committers.driver import Driver
from tidegate.errors import FencedError
from tidegate.sinks.store import Pointer
from tidegate.wal.fold import View
from tidegate.wal.log import Appended
from tidegate.wal.record import Open

logger = logging.getLogger("tidegate")


def take_epoch(driver: Driver, lineage: str | None, claimed: int = 0) -> Appended | None:
    """Append an Open above every epoch folded, every one this writer ever tried, and the claimed one.

    ``claimed`` is the store's epoch, read before the log. It is above the log's only when the log lost the
    Open of a driver that may still run: that driver is fenced by the higher epoch.
    It only sends; whether the epoch is the driver's own is for the fold to say.
    """
    state = driver.folded
    if claimed > state.epoch:
        logger.warning(
            "%s carries epoch %s, the log %s has epochs up to %s: the log lost the record by which a driver"
            " took its epoch (brokers without power, an unclean election, an older copy put back); that"
            " driver is fenced if it still runs",
            driver.store.where, claimed, driver.log.where, state.epoch,
        )  # fmt: skip
    driver.tried_epoch = max(driver.tried_epoch, state.epoch, claimed) + 1
    return driver.append(
        Open(
            namespace=state.namespace,
            writer=driver.writer,
            epoch=driver.tried_epoch,
            prev_digest=state.digest,
            lineage=lineage,
        )
    )


def claim_epoch(driver: Driver) -> None:
    """Claim the driver's epoch in the store, before anything else is written there (I6).

    FencedError: a higher epoch is claimed already.
    """
    standing = driver.store.claim(driver.epoch, driver.writer)
    if standing > driver.epoch:
        msg = (
            f"{driver.store.where} carries epoch {standing}, above this driver's {driver.epoch}: a newer"
            " driver runs; stop this one, or restart it if it is the one that should run"
        )
        raise FencedError(msg)


def refuse_if_shared(driver: Driver, pointer: Pointer) -> None:
    """FencedError: another driver has claimed the epoch that this driver has just taken.

    The log gives an epoch to one driver, so it has lost the Open of the other one.
    """
    if pointer.epoch == driver.epoch and pointer.writer != driver.writer:
        driver.view = View()  # what was folded may be what the log lost
        msg = (
            f"{driver.store.where} carries epoch {pointer.epoch} of driver {pointer.writer}, and the log"
            f" {driver.log.where} has given this epoch to driver {driver.writer}: the log lost the record by"
            " which the other one took it (brokers without power, an unclean election, an older copy put"
            " back). Nothing was written; stop the other driver and start this one again, which takes a"
            " higher epoch"
        )
        raise FencedError(msg)
