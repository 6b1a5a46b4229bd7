"""A staging task's use of its host's cache of state: opened with the task, kept once its frames are durable.

No pyspark is imported here.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow.compute as pc

from tidegate.base.local_dir import check_local_dir, local_dirs
from tidegate.keys.groups import groups_of
from tidegate.options import Options
from tidegate.options.state_spill import StateSpill
from tidegate.sinks.cache.cache import FOLDER, CacheSpec, StateCache
from tidegate.sinks.cache.in_flight import NOT_BEHIND, Behind, VersionFrames
from tidegate.sinks.cache.links import Link, link_of
from tidegate.sinks.cache.pieces import host_pieces
from tidegate.sinks.cache.state_at import StateAt, read_changes
from tidegate.sinks.rules.layout import payloads
from tidegate.spark.state.read import ReadState, uncached
from tidegate.wal.log import Blobs
from tidegate.wal.record import Folded
from tidegate.wal.staging.acks import Ack, StateReads
from tidegate.wal.staging.spec import StageSpec


class LinksAt(NamedTuple):
    """The links that hold at a version, and earlier ones whose caches can catch up."""

    version: int
    links: tuple[Link, ...]
    behind: Behind = NOT_BEHIND


NO_LINKS = LinksAt(0, ())


@dataclasses.dataclass(frozen=True)
class CachePlace:
    """The location of a namespace's cache on each host, and what holds in it. Travels to tasks.

    ``local_dir`` None is the host's temporary folder. ``memory_bytes`` of a host's cache may be in
    memory. ``bands`` None are those of ``StateSpill()``.
    """

    local_dir: tuple[str, ...] | None
    name: str
    spec: CacheSpec
    memory_bytes: int
    bands: StateSpill | None = None


class CachedState:
    """The cache in one run of a staging task, which ``reads`` these tables.

    ``task_attempt`` is unique to this run; ``log`` opens the log, for a cache that is behind.
    """

    def __init__(
        self,
        place: CachePlace,
        stage: StageSpec,
        task: int,
        parallelism: int,
        task_attempt: str,
        reads: Iterable[str],
        log: Callable[[], Blobs],
    ) -> None:
        self._stage, self._base = stage, place.spec.base_version
        self._groups = groups_of(task, parallelism, stage.key_groups)
        named = place.local_dir, place.name, stage.namespace
        local = local_dirs(*named)[0]
        pieces = host_pieces(*named, place.memory_bytes, place.spec.bytes_max, place.bands)
        run = f"{stage.attempt}-{task}-{task_attempt}"

        def changes(versions: Sequence[VersionFrames]) -> Iterator[tuple[str, int, Any]]:
            return read_changes(log(), versions, self._groups)

        self._cache = StateCache(local, pieces, place.spec, self._groups, run, reads, changes)
        self._read_before = f"{stage.attempt}-{task}-"

    @staticmethod
    def is_needed(place: CachePlace, stage: StageSpec, *, stateful: bool) -> bool:
        """Return whether a task reads state, or an existing cache must follow its changes."""
        local = local_dirs(place.local_dir, place.name, stage.namespace)[0]
        return stateful or os.path.isdir(local.path / "shared" / FOLDER)  # noqa: PTH112 - never raises

    def before(self, state: StateAt) -> ReadState:
        """Return a read that gets missing values from the frames in flight and the store."""

        def read(table: str, start: int, rows: Any) -> Any:
            def ask(missing: Any) -> Any:
                return state.get_stored(table, start, missing)

            return payloads(self._cache.read(table, rows, ask), self._stage.at_us)

        return read

    def reads(self) -> StateReads:
        """Return how this run has read its state so far. The staging task counts the bytes held."""
        return msgspec.structs.replace(self._cache.counts, cache_bytes=0)

    def hand_over(self) -> None:
        """Leave this run's reads of the store to the staging task, if it runs on this host."""
        self._cache.hand_over()

    def watch(self, batch: Any) -> None:
        """Note a batch of changes that is cut into frames."""
        tables = pc.unique(batch["t"]).to_pylist()
        for table in tables:
            rows = batch if len(tables) == 1 else batch.filter(pc.equal(batch["t"], table))
            self._cache.wrote(self._stage.tables[table], rows)

    def keep(self, ack: Ack) -> Ack:
        """Keep what this run read and wrote, if its frames are durable; return the ack with its
        read counts.
        """
        if ack.refusal is None:
            self._cache.take_over(self._read_before)
            of = self._stage.namespace, self._stage.attempt, self._base + 1
            self._cache.keep(link_of(*of, self._groups, ack.frames))
        counts = msgspec.structs.replace(self._cache.counts, disk_bytes=self._cache.disk_bytes)
        return msgspec.structs.replace(ack, state=counts)


def state_reader(state: StateAt, spec: StageSpec, cache: CachedState | None) -> ReadState:
    """Return the read of state for the tasks of every stateful step: the only place that chooses it."""
    return uncached(state, spec.at_us) if cache is None else cache.before(state)


def total_reads(acks: list[StateReads]) -> StateReads:
    """Add up the reads of all tasks of a barrier: bytes on all hosts, and the longest time."""
    return StateReads(
        sum(one.hits for one in acks),
        sum(one.absent for one in acks),
        sum(one.misses for one in acks),
        sum(one.cache_bytes for one in acks),
        max((one.seconds for one in acks), default=0.0),
        max((one.disk_bytes for one in acks), default=0),
        dict(sum((Counter(one.moved) for one in acks), Counter())),
    )


def cache_place(state: Folded, links: LinksAt, options: Options) -> CachePlace:
    """Return the hosts' caches of state that hold at the base version."""
    starts = {name: table_at.start for name, table_at in state.tables.items()}
    of_host = options.state_cache_bytes, links.behind, state.decided_at_us, state.first_start
    spec = CacheSpec(state.last_version, links.links, starts, state.key_groups, *of_host)
    # Without the option each host has its own temporary folder, which is determined there, not here.
    local = None if options.local_dir is None else check_local_dir(options.local_dir)
    return CachePlace(local, state.name, spec, options.state_memory_bytes, options.state_spill)
