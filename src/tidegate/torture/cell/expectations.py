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
    if seen.visible >= decided:
        return []
    return [
        Finding(
            rule="finish",
            invariant="I4",
            what="`tidegate recover` ended well, and a version that is decided is not visible",
            expected=f"version {decided} visible",
            seen=f"version {seen.visible} visible",
        )
    ]


def unretired(seen: Seen) -> list[Finding]:
    """Check that a driver that retires after each batch moved the horizon as far as leases allow (I11)."""
    least = seen.visible - MOST_LAYERS
    if seen.horizon >= least:
        return []
    return [
        Finding(
            rule="finish",
            invariant="I11",
            what="a driver that retires old versions ended well, and they are there still",
            expected=f"a horizon of {least} or more",
            seen=f"version {seen.visible} visible, horizon {seen.horizon}",
        )
    ]


def wiped(before: set[str], after: set[str]) -> list[Finding]:
    """Check that `tidegate repair` removed no hash of rows, whether it could put back lost ones or not."""
    gone = sorted(before - after)
    if not gone:
        return []
    return [
        Finding(
            rule="wiped",
            invariant="I3",
            what=f"`tidegate repair` removed {len(gone)} hashes of rows, {gone[0]} among them",
            expected=f"{len(before)} hashes",
            seen=f"{len(before & after)} of them",
        )
    ]


def moved_by_a_zombie(before: Seen, after: Seen) -> list[Finding]:
    """Check that after a claim nothing of an older driver becomes visible, until the next claim (I6)."""
    if after.visible == before.visible or after.epoch > before.epoch:
        return []
    return [
        Finding(
            rule="zombie",
            invariant="I6",
            what="a driver made a version visible after another one had claimed the namespace",
            expected=f"version {before.visible} visible, epoch {before.epoch}",
            seen=f"version {after.visible} visible, epoch {after.epoch}",
        )
    ]
