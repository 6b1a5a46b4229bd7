"""Repair: what a store's servers lost is put back from the log, in order.

A server that restarts or is promoted may have lost a suffix of what it acknowledged. The store
tells from which version on (``Store.comparing``); every later version is looked for in every key
group that it touched, and applied again where it is not whole. Versions that were never lost are
only looked at. docs/decisions/0013 says why no roll-back of floors or merges is needed.
"""

from __future__ import annotations

import contextlib
import logging

from tidegate.base import failpoints
from tidegate.committers.apply import apply
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.repair.lost_pointer import put_back_entries
from tidegate.committers.repair.rebuild import Mended, Source, copy_from, put_back_in, rebuild, unrepaired
from tidegate.committers.steps.facts import facts_from
from tidegate.wal.record import VersionFact

__all__ = ["Mended", "repair"]

logger = logging.getLogger("tidegate")


def repair(coordinator: Coordinator, source: Source | None = None) -> list[Mended]:
    """Compare the store with the log and put back what is missing; what was. The driver must be open.

    Readers are refused meanwhile, or right. On return every server is verified, and holds
    every decided version, visible or not. May be repeated and interrupted, and run beside another's.
    WalGapError: the log no longer holds all that was lost: all else was put back, the rows that are left
    stay as they are, and reads of those key groups are refused. StoreNotVerifiedError: servers changed
    again meanwhile; repeat.

    ``source``: where rows are taken from that the log no longer holds. ConfigError: it does not fit; nothing
    was written.
    """
    entries = put_back_entries(coordinator)  # first: they say where tables start, and what a copy has to fit
    with contextlib.ExitStack() as comparing:
        copy = None if source is None else comparing.enter_context(copy_from(coordinator, source))
        oldest = comparing.enter_context(coordinator.store.comparing(coordinator.epoch))
        coordinator.catch_up_log()  # what was sealed before the servers were looked at was decided before
        mended, gaps = rebuild(coordinator, oldest, copy)
        for one in mended:
            what = "all versions up to" if one.base else "version"
            logger.warning("%s %s were put back in %s key groups", what, one.version, one.key_groups)
        for fact in facts_from(coordinator, oldest):
            if put_back := _put_back(coordinator, fact):
                mended.append(Mended(fact.version, put_back))
                logger.warning("version %s was put back in %s key groups", fact.version, put_back)
        failpoints.hit("repair.before_listing")
    if gaps:
        raise unrepaired(coordinator, gaps)
    return [*(Mended(version, 0) for version in entries), *mended]


def _put_back(coordinator: Coordinator, fact: VersionFact) -> int:
    """Apply the version again where it is not whole; in how many key groups."""
    manifest = apply.read_manifest(coordinator.log, fact)
    return put_back_in(coordinator, fact, manifest, manifest.counts())
