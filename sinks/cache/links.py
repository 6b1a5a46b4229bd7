"""The one rule of which cache of state holds at which version. Pure.

**The cache of a task's run for a range of key groups holds at version V if and only if the frames
of version V in that range are exactly the frames which that run wrote.** Then, by induction, it
equals the store there: the run read at the version before, from the store or from a cache that held
there, and nothing else changed a key of the range. Frames of derived tables alone do not count: other
tasks write them, and no cache has a row of theirs.

So every run that writes frames has a link, which names it: a digest over the namespace, the
attempt, the version, the range, and address and checksum of each frame. The driver computes the
same links from the manifest that was decided, and passes them to the tasks of the next barrier. A
task takes what was kept under one of them, and nothing else. Other attempts, zombies, older epochs,
and versions made in any other way have no link, and their cache is not used. No clock, epoch or
host matters.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable

import msgspec

from tidegate.keys.groups import groups_of
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import COMPONENT, FrameRef

_encoder = msgspec.msgpack.Encoder()


class Link(msgspec.Struct, frozen=True, array_like=True):
    """The run of a task that made a version of the key groups in [first_group, end_group)."""

    version: int
    first_group: int
    end_group: int
    token: str

    @property
    def groups(self) -> range:
        return range(self.first_group, self.end_group)


def link_of(namespace: str, attempt: str, version: int, groups: range, frames: Iterable[FrameRef]) -> Link:
    """Return the link of the run that wrote these frames for these key groups; other frames do not count."""
    written = sorted((frame.address, frame.checksum) for frame in frames if touches(frame, groups))
    content = _encoder.encode((namespace, attempt, version, groups.start, groups.stop, written))
    return Link(version, groups.start, groups.stop, hashlib.blake2b(content, digest_size=16).hexdigest())


def links_at(manifest: Manifest, before: tuple[Link, ...] = ()) -> tuple[Link, ...]:
    """Return the links that hold at the manifest's version; ``before`` are those of the version before.

    A version without frames changed nothing: the earlier links still hold. The instances of a local state
    stage nothing of their own, and have none.
    """
    frames = _cached(manifest)
    ranges = {
        groups_of(task, component.parallelism, manifest.key_groups)
        for components in manifest.topology.values()
        for name, component in components.items()
        if name == COMPONENT or any(component.instances.values())
        for task in range(component.parallelism)
    }
    named = manifest.namespace, manifest.attempt, manifest.version
    links = tuple(link_of(*named, groups, frames) for groups in sorted(ranges, key=lambda r: r.start))
    if frames or not before:
        return links
    last_change = min(link.version for link in before)
    return links + tuple(link for link in before if link.version == last_change)


def _cached(manifest: Manifest) -> list[FrameRef]:
    """Return the frames that have rows of other than derived tables."""
    of_bases = {name for name, table_at in manifest.table_schemas.items() if table_at.of}
    derived = {index for index, name in enumerate(manifest.tables) if name in of_bases}
    frames = manifest.frames()
    return [frame for frame in frames if not derived.issuperset(frame.tables)] if derived else frames


def touches(frame: FrameRef, groups: range) -> bool:
    """Return whether the frame has rows in these key groups; its own are in ascending order."""
    index = bisect_left(frame.groups, groups.start)
    return index < len(frame.groups) and frame.groups[index] < groups.stop
