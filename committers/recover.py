"""Recover: every decided version above the visible one becomes visible, in order (I4, I7)."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.committers.commit import complete
from tidegate.committers.driver import Driver
from tidegate.committers.facts import facts_from
from tidegate.committers.repair import repair
from tidegate.sinks.rebuildable import RebuildableStore


def recover(driver: Driver, stopped: Callable[[], bool] = lambda: False) -> list[int]:
    """Complete what was decided before; the versions made visible. The driver must be open.

    Needs neither Spark nor the input: everything is in the log. May be repeated. Stops at the
    first version that cannot be completed, so no version is ever skipped. ``stopped`` is asked
    before each version.
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
        complete(driver, fact)
        recovered.append(fact.version)
    return recovered
