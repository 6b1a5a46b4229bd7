"""The versions in flight by their frames: what a read of state at a decided version needs. Pure.

``state_at.py`` has the read.
"""

from __future__ import annotations

import dataclasses

import msgspec

from tidegate.keys.groups import groups_of
from tidegate.sinks.cache.links import touches
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import FrameRef

FRAMES_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of frames in flight that one task may have to read: they are in its memory (I11)."""


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
