"""Repair: what a store's servers lost is put back from the log, in order.

A server that restarts or is promoted may have lost a suffix of what it acknowledged. The store
tells from which version on (``Store.comparing``); every later version is looked for in every key
group that it touched, and applied again where it is not whole. Versions that were never lost are
only looked at. docs/decisions/0013 says why no roll-back of floors or merges is needed.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec

from tidegate import failpoints
from tidegate.committers import apply
from tidegate.committers.driver import Driver
from tidegate.committers.facts import facts_from
from tidegate.errors import IncompleteError
from tidegate.sinks.store import Stamp
from tidegate.wal.record import VersionFact

logger = logging.getLogger("tidegate")


class Mended(NamedTuple):
    """A version, and in how many key groups it was put back."""

    version: int
    key_groups: int


def repair(driver: Driver) -> list[Mended]:
    """Compare the store with the log and put back what is missing; what was. The driver must be open.

    Readers are refused meanwhile, or right. On return every server is verified, and holds
    every decided version, visible or not. May be repeated and interrupted. WalGapError: the log
    does not reach back to what was lost; nothing was listed. StoreNotVerifiedError: servers
    changed again meanwhile; repeat.
    """
    mended = []
    with driver.store.comparing(driver.epoch) as oldest:
        driver.fold_on()  # what was sealed before the servers were looked at was decided before
        for fact in facts_from(driver, oldest):
            if put_back := _put_back(driver, fact):
                mended.append(Mended(fact.version, put_back))
                logger.warning("version %s was put back in %s key groups", fact.version, put_back)
        failpoints.hit("repair.before_listing")
    return mended


def _put_back(driver: Driver, fact: VersionFact) -> int:
    """Apply the version again where it is not whole; in how many key groups."""
    manifest = apply.read_manifest(driver.log, fact)
    stamp = Stamp(fact.version, fact.decided_at_us)
    driver.store.put_schemas(manifest.schemas.values())  # they may lie elsewhere, and be lost without a row
    missing = driver.store.missing(stamp, manifest.counts())
    if not missing:
        return 0
    for work in apply.plan(manifest, fact, 1):
        apply.do(msgspec.structs.replace(work, counts=dict(missing)), driver.log, driver.store)
    failpoints.hit("repair.after_version")
    if driver.store.missing(stamp, missing):
        msg = f"{driver.store.where}: version {fact.version} was applied again, and still is not whole"
        raise IncompleteError(msg)
    return len(missing)
