"""Recover: every decided version above the visible one becomes visible, in order (I4, I7)."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.committers import facts
from tidegate.committers.commit import complete
from tidegate.committers.driver import Driver
from tidegate.errors import WalGapError
from tidegate.wal.record import VersionFact


def recover(driver: Driver) -> list[int]:
    """Complete what was decided before; the versions made visible. The driver must be open.

    Needs neither Spark nor the input: everything is in the log. May be repeated. Stops at the
    first version that cannot be completed, so no version is ever skipped.
    """
    visible = driver.store.pointer().visible
    recovered = []
    for fact in facts_from(driver, visible + 1):
        complete(driver, fact)
        recovered.append(fact.version)
    return recovered


def facts_from(driver: Driver, version: int) -> Iterator[VersionFact]:
    """The facts of ``version`` and all later ones, oldest first.

    WalGapError: the log no longer has them.
    """
    state, expected = driver.folded, version
    for fact in facts.known_facts(driver.log, state, version):
        if fact.version != expected:
            break
        yield fact
        expected += 1
    if expected <= state.last_version:
        msg = (
            f"version {expected} is not visible in {driver.store.where}, and {driver.log.where} no longer"
            " holds its decision: it was trimmed, wal_retain_s says how far back the log reaches; restore the"
            " store from a newer copy, or use a new namespace"
        )
        raise WalGapError(msg)
