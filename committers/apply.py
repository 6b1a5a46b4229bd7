"""Apply: the change-logs of a decided version into the store, by whoever is at hand.

A version is cut into works by ranges of key groups. A work names everything it needs, so a
task that never saw the batch, a new driver or the command line does it just as well; doing
it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tidegate import failpoints
from tidegate.errors import CorruptError
from tidegate.key_groups import groups_of
from tidegate.sinks.store import Stamp, Store
from tidegate.wal.frame import Chunk, decode_frame
from tidegate.wal.log import Log
from tidegate.wal.record import FrameRef, Manifest, VersionFact, decode_manifest


class ApplyWork(msgspec.Struct, frozen=True):
    """One range of key groups of one version: frames to read, counts that the seal must find.

    ``frames`` are (ordinal in the version, frame).
    """

    attempt: str
    stamp: Stamp
    first_group: int
    end_group: int
    frames: tuple[tuple[int, FrameRef], ...]
    counts: dict[int, dict[str, int]]


def read_manifest(log: Log, fact: VersionFact) -> Manifest:
    """The manifest a fact names. WalGapError: it was trimmed. CorruptError: it is another."""
    for blob in log.read([fact.manifest_address]):
        where = f"{log.where}, manifest of version {fact.version} at {fact.manifest_address}"
        return decode_manifest(blob.content, fact.manifest_digest, where)
    msg = f"{log.where}: the log returned nothing for {fact.manifest_address}"
    raise CorruptError(msg)


def plan(manifest: Manifest, fact: VersionFact, tasks: int) -> list[ApplyWork]:
    """The version as works over contiguous ranges of key groups, none empty."""
    frames = list(enumerate(manifest.frames()))
    counts = manifest.counts()
    works = []
    for task in range(tasks):
        groups = groups_of(task, tasks, manifest.key_groups)
        mine = {group: counts[group] for group in groups if group in counts}
        if mine:
            touching = tuple((i, ref) for i, ref in frames if not mine.keys().isdisjoint(ref.groups))
            stamp = Stamp(fact.version, fact.decided_at_us)
            works.append(ApplyWork(fact.attempt, stamp, groups.start, groups.stop, touching, mine))
    return works


def chunks_of(work: ApplyWork, log: Log) -> Iterator[Chunk]:
    """The work's changes, read from the log by address and checked, a frame at a time."""
    wanted = {ref.address: (ordinal, ref) for ordinal, ref in work.frames}
    for blob in log.read(list(wanted)):
        ordinal, ref = wanted[blob.address]
        where = f"{log.where}, version {work.stamp.version}, frame at {blob.address}"
        runs = decode_frame(blob.content, ref, work.attempt, where)
        yield Chunk(ordinal, [run for run in runs if work.first_group <= run.group < work.end_group])


def do(work: ApplyWork, log: Log, store: Store) -> None:
    """Apply and seal one work. On return its key groups are whole and durable; repeatable.

    The store's and the log's errors pass through; IncompleteError: apply again.
    """
    for chunk in chunks_of(work, log):
        failpoints.hit("apply.before_chunk")
        store.apply(work.stamp, chunk)
        failpoints.hit("apply.after_chunk")
    store.seal(work.stamp, work.counts)
    failpoints.hit("seal.after")
