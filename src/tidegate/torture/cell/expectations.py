"""Expectations at certain places of a cell, judged by the observed pointer and decisions."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.torture.driver.driver import MOST_LAYERS
from tidegate.torture.outcome import Finding


class Seen(NamedTuple):
    """The primary's visible version and epoch, the last decided version, the horizon."""

    visible: int
    epoch: int
    decided: int
    horizon: int = 0


def unfinished(decided: int, seen: Seen) -> list[Finding]:
    """Check that a successful `tidegate recover` left every version visible that was decided before (I4)."""
    what = "`tidegate recover` ended well, and a version that is decided is not visible"
    visible = f"version {seen.visible} visible"
    return _unless(seen.visible >= decided, "finish", "I4", what, f"version {decided} visible", visible)


def unretired(seen: Seen) -> list[Finding]:
    """Check that a driver that retires after each batch moved the horizon as far as leases allow (I11)."""
    least = seen.visible - MOST_LAYERS
    what = "a driver that retires old versions ended well, and they still exist"
    reached = f"version {seen.visible} visible, horizon {seen.horizon}"
    return _unless(seen.horizon >= least, "finish", "I11", what, f"a horizon of {least} or more", reached)


def wiped(before: set[str], after: set[str]) -> list[Finding]:
    """Check that `tidegate repair` removed no hash of rows, whether it could put back lost ones or not."""
    removed = sorted(before - after)
    what = f"`tidegate repair` removed {len(removed)} hashes of rows, {', '.join(removed[:1])} among them"
    remaining = f"{len(before & after)} of them"
    return _unless(not removed, "wiped", "I3", what, f"{len(before)} hashes", remaining)


def moved_by_a_zombie(before: Seen, after: Seen) -> list[Finding]:
    """Check that after a claim nothing of an older driver becomes visible, until the next claim (I6)."""
    holds = after.visible == before.visible or after.epoch > before.epoch
    what = "a driver made a version visible after another one had claimed the namespace"
    claimed, moved = (f"version {seen.visible} visible, epoch {seen.epoch}" for seen in (before, after))
    return _unless(holds, "zombie", "I6", what, claimed, moved)


def _unless(holds: bool, rule: str, invariant: str, what: str, expected: str, seen: str) -> list[Finding]:  # noqa: FBT001
    return [] if holds else [Finding(rule=rule, invariant=invariant, what=what, expected=expected, seen=seen)]
