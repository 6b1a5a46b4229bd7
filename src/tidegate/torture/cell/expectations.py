"""What may not be left to do, or be done, at certain places of a cell: told by what is seen there."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.torture.driver.driver import MOST_LAYERS
from tidegate.torture.outcome import Finding


class Seen(NamedTuple):
    """What is visible in the primary, under which epoch, the last version that is decided, the horizon."""

    visible: int
    epoch: int
    decided: int
    horizon: int = 0


def unfinished(decided: int, seen: Seen) -> list[Finding]:
    """`tidegate recover` ended well: what was decided before it began is visible (I4)."""
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
    """A driver that retires after each batch ended well: leases hold back no more than they may (I11)."""
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
    """`tidegate repair` removes no hash of rows, whether it could put back what was lost or not."""
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
    """From a claim on nothing that an older driver does becomes visible, until somebody claims anew (I6)."""
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
