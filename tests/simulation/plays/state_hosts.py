"""Caches of state in some of a simulation's schedules: hosts with folders, and a task's reads there.

They are production's ``StateCache`` on files, with the links that production's driver sends. Every read of a
task is compared with the history at its base version, whichever task wrote the cache and however late.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from simulation.invariants import History, live, require
from simulation.plays.world import TaskLostError, World
from support.faulty import Backwards
from tidegate.base.local_dir import LocalDir
from tidegate.committers.coordinator import Coordinator
from tidegate.errors import SnapshotExpiredError, StoreUnavailableError, WalGapError, WalUnavailableError
from tidegate.keys.groups import groups_of, key_group
from tidegate.sinks.cache.buffer.buffer import Buffer
from tidegate.sinks.cache.buffer.limits import BufferLimits
from tidegate.sinks.cache.buffer.pressure import QUIET
from tidegate.sinks.cache.cache import CacheSpec, StateCache
from tidegate.sinks.cache.in_flight import InFlightVersions, VersionFrames
from tidegate.sinks.cache.links import link_of
from tidegate.sinks.cache.pieces import Pieces
from tidegate.sinks.cache.state_at import StateAt, read_changes
from tidegate.sinks.rules.layout import payloads
from tidegate.sinks.store import Store
from tidegate.spark.staging.links import StateLinks
from tidegate.wal.log import Log
from tidegate.wal.staging.acks import Ack
from tidegate.wal.staging.spec import StageSpec

HOSTS = 2
BYTES_MAX = 100_000
MEMORY_BYTES_MAX = 10_000
"""A small limit, so that some pieces are on a disk, and are spilled and loaded."""


class StateHosts:
    """The hosts of one schedule's tasks, each with a folder that all its tasks share."""

    def __init__(self, world: World, history: History, keys: Sequence[bytes]) -> None:
        self._world, self._history, self._keys = world, history, keys
        self._folder = Path(tempfile.mkdtemp(prefix="tidegate-simulated-"))
        self._locals: list[LocalDir] = []
        self._memories: list[LocalDir] = []
        self._pieces: list[Pieces] = []
        self.hits = 0
        self._links: dict[str, StateLinks] = {}

    def close(self) -> None:
        """Remove the folders."""
        for local in (*self._locals, *self._memories):
            local.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def told(self, driver: Coordinator) -> CacheSpec:
        """Return what a driver sends to the tasks of its next barrier."""
        state = driver.folded
        starts = {name: at.start for name, at in state.tables.items()}
        links = self._links.setdefault(driver.writer, StateLinks(driver)).at_last()
        known = links.links, starts, state.key_groups, BYTES_MAX, links.behind
        return CacheSpec(state.last_version, *known, state.decided_at_us, state.first_start)

    def opened(
        self, spec: StageSpec, told: CacheSpec, task: int, parallelism: int, run: str, log: Log
    ) -> StateTask:
        """Open the cache in one run of a task, on one of the hosts; sometimes a file is lost there."""
        if not self._locals:
            self._locals, self._memories = (
                [
                    LocalDir(str(self._folder / f"{kind}-{number}"), "n", spec.namespace, lambda: 0.0)
                    for number in range(HOSTS)
                ]
                for kind in ("host", "memory")
            )
            limits = BufferLimits(MEMORY_BYTES_MAX)
            self._pieces = [
                Pieces(partial(Buffer, memory, [local], limits), QUIET)
                for local, memory in zip(self._locals, self._memories, strict=True)
            ]
        chance = self._world.chance
        kinds = ("state/*", "units/*/*.memory", "units/*/*.disk")
        files = sorted(path for kind in kinds for path in self._folder.rglob(kind) if path.is_file())
        if files and chance.random() < 0.05:
            chance.choice(files).unlink()
        host = task % HOSTS if chance.random() < 0.8 else chance.randrange(HOSTS)
        here = self._locals[host], self._pieces[host]
        groups = groups_of(task, parallelism, spec.key_groups)

        def changes(versions: Sequence[VersionFrames]) -> Iterator[tuple[str, int, Any]]:
            return read_changes(Backwards(log), versions, groups)

        return StateTask(self, StateCache(*here, told, groups, run, spec.tables, changes), spec, told, groups)

    def check(
        self, cache: StateCache, table: str, told: CacheSpec, at_us: int, groups: range, state: StateAt
    ) -> None:
        """Read all keys of the task in a table; I1: the base version holds the same, as of that time."""
        keys = [key for key in self._keys if key_group(key, told.key_groups) in groups]
        if not keys:
            return
        numbers = pa.array([key_group(key, told.key_groups) for key in keys], pa.int32())
        rows = pa.record_batch([numbers, pa.array(keys, pa.binary())], ["g", "k"])

        def ask(missing: Any) -> Any:
            start = told.starts.get(table, told.first_start)
            return state.get_stored(table, start, missing)

        try:
            values = payloads(cache.read(table, rows, ask), at_us).to_pylist()
        except (SnapshotExpiredError, StoreUnavailableError, WalUnavailableError, WalGapError) as error:
            raise TaskLostError(str(error)) from error
        found = {key: value for key, value in zip(keys, values, strict=True) if value is not None}
        content = live(self._history.rows[told.base_version], at_us).get(table, {})
        expected = {key: content[key] for key in keys if key in content}
        what = f"a task read {found} of {table} at version {told.base_version}, it holds {expected}"
        require("I1", found == expected, what)


class StateTask:
    """One run of a staging task and its cache."""

    def __init__(
        self, hosts: StateHosts, cache: StateCache, spec: StageSpec, told: CacheSpec, groups: range
    ) -> None:
        self._hosts, self._cache, self._spec, self._told, self._groups = hosts, cache, spec, told, groups

    def read(self, store: Store, in_flight: InFlightVersions, log: Log) -> None:
        """Read every table's state."""
        state = StateAt(store, self._told.base_version, in_flight, lambda: Backwards(log), self._groups)
        for table in self._spec.tables:
            self._hosts.check(self._cache, table, self._told, self._spec.at_us, self._groups, state)

    def watch(self, batch: Any) -> None:
        """Take a batch of changes that is written into frames."""
        for number, table in enumerate(self._spec.tables):
            self._cache.wrote(table, batch.filter(pc.equal(batch["t"], number)))

    def keep(self, ack: Ack) -> None:
        """Keep the changes: the frames are durable."""
        of = self._spec.namespace, self._spec.attempt, self._told.base_version + 1
        self._cache.keep(link_of(*of, self._groups, ack.frames))
        self._hosts.hits += self._cache.counts.hits
