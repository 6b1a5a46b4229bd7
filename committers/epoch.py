"""Epochs: taking one in the log, claiming it in the store."""

from __future__ import annotations

from tidegate.committers.driver import Driver
from tidegate.errors import FencedError
from tidegate.wal.log import Appended
from tidegate.wal.record import Open


def take_epoch(driver: Driver, lineage: str | None) -> Appended | None:
    """Append an Open above every epoch folded and every one this writer ever tried.

    It only sends; whether the epoch is the driver's own is for the fold to say.
    """
    state = driver.folded
    driver.tried_epoch = max(driver.tried_epoch, state.epoch) + 1
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
