"""Decided versions by their frames: what a read of state, and a cache that is behind, needs of them. Pure.

``state_at.py`` reads them.
"""

from __future__ import annotations

import dataclasses

import msgspec

from tidegate.keys.groups import groups_of
from tidegate.sinks.cache.links import Link, touches
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import FrameRef

FRAMES_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of frames in flight that one task may have to read: they are in its memory (I11)."""
CATCH_UP_BYTES_MAX = 8 * 1024 * 1024
CATCH_UP_VERSIONS_MAX = 64
"""The most changes by which a cache may be behind; beyond it its rows are read from the store again."""


class VersionFrames(msgspec.Struct, frozen=True, array_like=True):
    """The frames of one decided version: all its changes. ``tables`` are in the order of their indexes."""

    version: int
    attempt: str
    tables: tuple[str, ...]
    frames: tuple[FrameRef, ...]


def frames_of(manifest: Manifest) -> VersionFrames:
    """Return the frames of a version by its manifest."""
    return VersionFrames(manifest.version, manifest.attempt, manifest.tables, tuple(manifest.frames()))


@dataclasses.dataclass(frozen=True)
class InFlightVersions:
    """The versions above ``visible`` up to a base version, the oldest first. Plain data for tasks."""

    visible: int
    versions: tuple[VersionFrames, ...]

    def bytes_of(self, groups: range) -> int:
        """Return the bytes of the frames that have rows of these key groups."""
        return sum(ref.bytes for one in self.versions for ref in one.frames if touches(ref, groups))

    def fit(self, parallelism: int, key_groups: int) -> bool:
        """Return whether each of this number of tasks may read its part into memory."""
        ranges = (groups_of(task, parallelism, key_groups) for task in range(parallelism))
        return all(self.bytes_of(groups) <= FRAMES_BYTES_MAX for groups in ranges)


ALL_VISIBLE = InFlightVersions(0, ())
"""For a base version that is visible: all is read from the store there."""


@dataclasses.dataclass(frozen=True)
class EarlierLinks:
    """Links that hold at a version before the base version. A cache of theirs is **behind**."""

    version: int
    links: tuple[Link, ...]


@dataclasses.dataclass(frozen=True)
class Behind:
    """The caches that are behind, the newest first, and all changes since the oldest one's version.

    With the changes of all versions after its own, a cache that is behind holds at the base version.
    """

    earlier: tuple[EarlierLinks, ...] = ()
    changes: tuple[VersionFrames, ...] = ()

    def after(self, version: int) -> tuple[VersionFrames, ...]:
        """Return the changes of all versions after this one, the oldest first."""
        return tuple(one for one in self.changes if one.version > version)

    def followed(self, before: EarlierLinks, now: EarlierLinks, made: VersionFrames) -> Behind:
        """Return those at the version after ``before``, which ``made`` made, and whose links are ``now``.

        Of earlier links only the newest ones of each division into key groups are kept, and none whose
        changes since are more than ``CATCH_UP_VERSIONS_MAX`` or ``CATCH_UP_BYTES_MAX``.
        """
        changes = [*self.changes, made][-CATCH_UP_VERSIONS_MAX:]
        while sum(ref.bytes for one in changes for ref in one.frames) > CATCH_UP_BYTES_MAX:
            changes.pop(0)
        reached = changes[0].version - 1 if changes else made.version
        known, retained = {_division(now.links)}, []
        for each in (before, *self.earlier):
            division = _division(each.links)
            if each.version >= reached and division not in known:
                known.add(division)
                retained.append(each)
        return Behind(tuple(retained), tuple(changes) if retained else ())


NOT_BEHIND = Behind()


def _division(links: tuple[Link, ...]) -> frozenset[tuple[int, int]]:
    return frozenset((link.first_group, link.end_group) for link in links)
