"""Recover: every decided version above the visible one becomes visible, in order (I4, I7)."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.committers.commit import complete
from tidegate.committers.driver import Driver
from tidegate.committers.facts import facts_from
from tidegate.committers.repair import repair
from tidegate.errors import WalGapError
from tidegate.sinks.rebuildable import RebuildableStore
from tidegate.wal.record import VersionFact


def recover(driver: Driver, stopped: Callable[[], bool] = lambda: False) -> list[int]:
    """Complete what was decided before; the versions made visible. The driver must be open.

    Needs neither Spark nor the input: everything is in the log. May be repeated. Stops at the
    first version that cannot be completed, so no version is ever skipped. ``stopped`` is asked
    before each version. WalGapError: the log no longer has the rows of a version that the store lacks.
    """
    if driver.store.unverified():
        if isinstance(driver.store, RebuildableStore):
            driver.store.note_moved()
        if driver.store.unverified():
            repair(driver)
    visible = driver.store.pointer().visible
    recovered = []
    for fact in facts_from(driver, visible + 1):
        if stopped():
            break
        try:
            complete(driver, fact)
        except WalGapError as error:
            _refuse_if_no_longer_held(driver, fact, error)
            raise
        recovered.append(fact.version)
    return recovered


def _refuse_if_no_longer_held(driver: Driver, fact: VersionFact, error: WalGapError) -> None:
    """WalGapError with the ways out, where it was the log that lacks rows, and not the store that has begun
    another attempt of the version.
    """
    if any(one.version == fact.version and one.attempt != fact.attempt for one in driver.store.begun()):
        return
    store, visible = driver.store.where, driver.store.pointer().visible
    raise WalGapError(
        f"version {visible} is visible in {store}, and the log no longer has the rows of version"
        f" {fact.version}, which is decided: {error}. Either the store went back further than the log keeps"
        " (an older copy was put back; wal_retain_s), or the log lost rows. Readers keep what they see. Put a"
        " newer copy of the store back, or restore the log's newest copy; else make this store anew from"
        " another one (`tidegate store add`), or use a new namespace"
    ) from error
