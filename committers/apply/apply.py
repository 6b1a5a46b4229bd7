"""The apply: the change-logs of a decided version are written into the store.

A version is cut into works by ranges of key groups. A work names everything it needs, so a
task that never saw the batch, a new driver or the command line can do it. Repeating it changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import msgspec

from tidegate.base import failpoints
from tidegate.keys.groups import groups_of, task_of
from tidegate.sinks.capabilities import SupportsApplyAndSeal
from tidegate.sinks.records import Stamp
from tidegate.sinks.rules.key_sets import KeySets
from tidegate.sinks.store import Store
from tidegate.wal import catch_up
from tidegate.wal.frame import Chunk, decode_frame
from tidegate.wal.log import Blob, Blobs, Log
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import DecidedVersion, FrameRef


class ApplyWork(msgspec.Struct, frozen=True):
    """The work of one range of key groups of one version: the frames to read, and the counts for the seal.

    ``namespace`` is the uuid; ``frames`` are (ordinal in the version, frame).
    """

    namespace: str
    attempt: str
    stamp: Stamp
    first_group: int
    end_group: int
    frames: tuple[tuple[int, FrameRef], ...]
    counts: dict[int, dict[str, int]]


read_manifest = catch_up.read_manifest
"""Kept under this name for the steps of a commit."""


def stamp_of(decided: DecidedVersion) -> Stamp:
    """Build the stamp of a decided version, with the attempt that won."""
    return Stamp(decided.version, decided.decided_at_us, decided.attempt)


def plan(manifest: Manifest, decided: DecidedVersion, tasks: int) -> list[ApplyWork]:
    """Cut the version into works over contiguous ranges of key groups, none of them empty.

    Each run is read once, for any number of tasks.
    """
    counts: dict[int, dict[int, dict[str, int]]] = {}
    for group, by_table in sorted(manifest.counts().items()):
        counts.setdefault(task_of(group, tasks, manifest.key_groups), {})[group] = by_table
    frames: dict[int, list[tuple[int, FrameRef]]] = {task: [] for task in counts}
    for ordinal, ref in enumerate(manifest.frames()):
        for task in dict.fromkeys(task_of(group, tasks, manifest.key_groups) for group in ref.groups):
            frames[task].append((ordinal, ref))
    of = manifest.namespace, decided.attempt, stamp_of(decided)
    works = []
    for task, of_task in counts.items():
        groups = groups_of(task, tasks, manifest.key_groups)
        works.append(ApplyWork(*of, groups.start, groups.stop, tuple(frames[task]), of_task))
    return works


NONE_HELD: Mapping[str, bytes] = {}


def chunks_of(work: ApplyWork, log: Blobs, cached: Mapping[str, bytes] = NONE_HELD) -> Iterator[Chunk]:
    """Yield the work's changes, a frame at a time, checked: from ``cached``, else from the log by address."""
    refs = {ref.address: (ordinal, ref) for ordinal, ref in work.frames}
    local = (Blob(address, cached[address]) for address in refs if address in cached)
    missing = [address for address in refs if address not in cached]
    for blob in itertools.chain(local, log.read(missing) if missing else ()):
        ordinal, ref = refs[blob.address]
        where = f"{log.where}, version {work.stamp.version}, frame at {blob.address}"
        runs = decode_frame(blob.content, ref, work.attempt, where)
        yield Chunk(ordinal, [run for run in runs if run.group in work.counts])


def gathered(chunks: Iterator[Chunk], at_once_bytes: int) -> Iterator[list[Chunk]]:
    """Yield the chunks in order, in lists that reach ``at_once_bytes``; each has at least one."""
    some: list[Chunk] = []
    some_bytes = 0
    for chunk in chunks:
        some.append(chunk)
        if at_once_bytes:
            some_bytes += sum(run.keys.nbytes + run.values.nbytes for run in chunk.runs)
        if some_bytes >= at_once_bytes:
            yield some
            some, some_bytes = [], 0
    if some:
        yield some


def do(
    work: ApplyWork,
    log: Log,
    store: Store,
    went: Callable[[], None] = lambda: None,
    cached: Mapping[str, bytes] = NONE_HELD,
) -> None:
    """Apply and seal one work.

    ``went`` is called as a sign of progress, whenever the store has taken chunks and after the seal. Frames
    in ``cached`` are durable in the log, too; they only need not be read back. Durable: on return its key
    groups are complete in the store. Repeatable: yes. Raises: the errors of store and log; IncompleteError:
    apply again.
    """
    sealed, left = False, len(work.frames)
    sets = KeySets(work.counts) if isinstance(store, SupportsApplyAndSeal) else None
    for chunks in gathered(chunks_of(work, log, cached), store.apply_bytes):
        left -= len(chunks)
        if sets is not None:
            sets.add(chunks)
        failpoints.hit("apply.before_chunk")
        if left == 0 and isinstance(store, SupportsApplyAndSeal):
            store.apply_and_seal(work.stamp, work.counts, *chunks, sets=sets)
            sealed = True
        else:
            store.apply(work.stamp, *chunks)
        failpoints.hit("apply.after_chunk")
        went()
    if not sealed:
        store.seal(work.stamp, work.counts)
    failpoints.hit("seal.after")
    went()
