"""Random schedules of versions, tasks and hosts with a cache of state; a dictionary is the store."""

from __future__ import annotations

import dataclasses
import itertools
import random
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tidegate.base.local_dir import LocalDir
from tidegate.errors import SnapshotExpiredError
from tidegate.keys.groups import groups_of, key_group
from tidegate.sinks.cache.buffer.buffer import Buffer
from tidegate.sinks.cache.buffer.limits import BufferLimits
from tidegate.sinks.cache.buffer.pressure import QUIET
from tidegate.sinks.cache.cache import CacheSpec
from tidegate.sinks.cache.in_flight import (
    NOT_BEHIND,
    Behind,
    EarlierLinks,
    InFlightVersions,
    VersionFrames,
    frames_of,
)
from tidegate.sinks.cache.links import links_at
from tidegate.sinks.cache.pieces import Pieces
from tidegate.sinks.cache.state_at import StateAt
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.layout import payloads
from tidegate.spark.state import cache as cached_state
from tidegate.spark.state.cache import CachedState, CachePlace
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal import memory_log
from tidegate.wal.manifest import Component, Manifest
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.record import TableAt
from tidegate.wal.staging.changelog import stage_task
from tidegate.wal.staging.spec import StageSpec

UUID = "0123456789abcdef" * 2
TABLES = ("airports", "sums")
KEYS = tuple(b"k%d" % number for number in range(40))
KEY_GROUPS = 8
HOSTS = 3

Rows = dict[str, dict[bytes, Any]]


@dataclasses.dataclass
class Version:
    """A decided version as the store has it."""

    content: dict[str, dict[bytes, bytes | None]]
    starts: dict[str, int]
    first_start: int = 0
    links: tuple[Any, ...] = ()
    frames: VersionFrames | None = None
    behind: Behind = NOT_BEHIND


class World:
    """The log, a store that knows every version, hosts with their folders, and the driver's part."""

    def __init__(
        self, folder: Path, seed: int, *, bytes_max: int = 100_000, memory_bytes: int = 1 << 20
    ) -> None:
        self.chance = random.Random(seed)
        self.completion = random.Random(seed)
        self.ids = itertools.count()
        self.folder, self.bytes_max = folder, bytes_max
        self.log = MemoryLog(f"state-cache-{seed}", "flights")
        self.log.create()
        self.versions = [Version({name: {} for name in TABLES}, {})]
        self.locals = [
            LocalDir(str(folder / f"host-{n}"), "flights", UUID, lambda: 0.0) for n in range(HOSTS)
        ]
        self.memories = [LocalDir(str(folder / f"memory-{n}"), "flights", UUID) for n in range(HOSTS)]
        limits = BufferLimits(memory_bytes, 1 << 24)
        self.pieces = {
            local: Pieces(partial(Buffer, memory, [local], limits), QUIET)
            for local, memory in zip(self.locals, self.memories, strict=True)
        }
        self.counts: Counter[str] = Counter()
        self.parallelism = 3

    def new_id(self) -> str:
        return f"{next(self.ids):08x}"

    def close(self) -> None:
        for local in {*self.locals, *self.memories}:
            local.close()
        memory_log.forget(f"state-cache-{self.log.where.split('-')[-1].split()[0]}")

    # -- what a driver does -----------------------------------------------------------------------

    def stage(
        self,
        base_version: int,
        rows: Rows,
        starts: Collection[str] = frozenset(),
        *,
        drops: Collection[str] = frozenset(),
        reads: bool = True,
        parallelism: int | None = None,
        cached: bool = True,
    ) -> tuple[Manifest, Version]:
        """One attempt on top of a version; its manifest, and what the version would hold."""
        chance, base = self.chance, self.versions[base_version]
        if parallelism is None and chance.random() < 0.15:
            self.parallelism = chance.randint(1, 5)
        parallelism = parallelism or self.parallelism
        attempt = self.new_id()
        spec = StageSpec(
            UUID, attempt, TABLES, (("binary",),) * 2, 300, 100, 1000, KEY_GROUPS, None, 1, (0, 0)
        )
        place = CachePlace(
            (),
            "",
            CacheSpec(
                base_version,
                base.links,
                base.starts,
                KEY_GROUPS,
                self.bytes_max,
                base.behind,
                first_start=base.first_start,
            ),
            0,
        )
        acks: list[Any] = []
        written: Rows = {name: {} for name in TABLES}
        for task in range(parallelism):
            for twin in range(
                2 if chance.random() < 0.1 else 1
            ):  # the first one's ack is lost, with other rows
                mine = {
                    name: {k: v + b"-%d" % twin if v else v for k, v in of.items()}
                    for name, of in rows.items()
                }
                ack = self.task(spec, place, mine, base, task, parallelism, reads=reads, cached=cached)
            acks.append(ack)
            for name, of in mine.items():
                groups = groups_of(task, parallelism, KEY_GROUPS)
                written[name] |= {k: v for k, v in of.items() if key_group(k, KEY_GROUPS) in groups}
        gone = {*starts, *drops}
        content = {name: {**({} if name in gone else base.content[name]), **written[name]} for name in TABLES}
        component = Component(parallelism, {str(ack.task): ack.frames for ack in acks})
        new_starts = {
            name: base_version + 1 if name in starts else base.starts.get(name, base.first_start)
            for name in TABLES
            if name not in drops and (name in base.starts or written[name] or not base_version)
        }
        ats = {name: TableAt("", start) for name, start in new_starts.items()}
        manifest = Manifest(
            UUID, attempt, base_version + 1, KEY_GROUPS, TABLES, {}, ats, {"flights": {"sink": component}}, ""
        )
        return manifest, Version(content, new_starts, base_version + 1 if drops else base.first_start)

    def task(
        self,
        spec: StageSpec,
        place: CachePlace,
        rows: Rows,
        base: Version,
        task: int,
        parallelism: int,
        *,
        reads: bool,
        cached: bool,
    ) -> Any:
        local = self.chance.choice(self.locals) if self.chance.random() < 0.05 else self.locals[task % HOSTS]
        cache = None
        if cached and reads and self.chance.random() < 0.3:
            self.first_stage(spec, place, base, task, parallelism, local)
        if cached:
            cache = self.cache(spec, place, task, parallelism, local, TABLES if reads else ())
        barrier = ArrowBarrier(self.log, rows, batch("q", 0), KEY_GROUPS, parallelism, batch_rows=7)
        groups = groups_of(task, parallelism, KEY_GROUPS)
        state = self.state(place.spec.base_version, groups)

        def merge(changes: Any) -> list[Any]:
            if cache is not None and reads:
                self.look(cache.before(state), base, changes)
            return [changes]

        named: dict[str, Any] = {"task": task, "task_attempt": self.new_id(), "host": "host"}
        watch = None if cache is None else cache.watch
        ack = stage_task(barrier.batches(task), spec, self.log, **named, merge=merge, watch=watch)
        if cache is None:
            return ack
        ack = cache.keep(ack)
        assert ack.state is not None
        self.counts += Counter(hits=ack.state.hits, absent=ack.state.absent, misses=ack.state.misses)
        assert ack.state.cache_bytes <= self.bytes_max
        return ack

    def cache(
        self,
        spec: StageSpec,
        place: CachePlace,
        task: int,
        parallelism: int,
        local: LocalDir,
        reads: Sequence[str],
    ) -> CachedState:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cached_state, "local_dirs", lambda *_: [local])
            patch.setattr(cached_state, "host_pieces", lambda *_: self.pieces[local])
            return CachedState(place, spec, task, parallelism, self.new_id(), reads, self.any_order)

    def first_stage(
        self,
        spec: StageSpec,
        place: CachePlace,
        base: Version,
        task: int,
        parallelism: int,
        local: LocalDir,
    ) -> None:
        """A run in front of the task, here or on another host, which reads and leaves it what it read."""
        at = self.chance.choice(self.locals) if self.chance.random() < 0.2 else local
        cache = self.cache(spec, place, task, parallelism, at, TABLES)
        mine = groups_of(task, parallelism, KEY_GROUPS)
        keys = [(g, t, k) for k in KEYS for t in (0, 1) if (g := key_group(k, KEY_GROUPS)) in mine]
        if keys:
            columns = list(zip(*keys, strict=True))
            read = cache.before(self.state(place.spec.base_version, mine))
            self.look(read, base, pa.record_batch(columns, ["g", "t", "k"]))
        if self.chance.random() < 0.9:  # else it was killed
            cache.hand_over()

    def state(self, base_version: int, groups: range) -> StateAt:
        """The state for a task: up to three versions are in flight; some become visible meanwhile."""
        visible = max(0, base_version - self.completion.choice([0, 0, 1, 2, 3]))
        frames = [one.frames for one in self.versions[visible + 1 : base_version + 1]]
        in_flight = InFlightVersions(visible, tuple(one for one in frames if one is not None))

        def get_stored(at: ReadAt, keys: Sequence[bytes]) -> Any:
            assert at.start <= at.version
            if at.version < base_version and self.completion.random() < 0.3:
                raise SnapshotExpiredError("retired")
            return self.stored(self.versions[at.version], at.table, keys)

        def pointer() -> Any:
            return SimpleNamespace(visible=self.completion.randint(base_version, base_version + 2))

        store: Any = SimpleNamespace(get_stored=get_stored, pointer=pointer, where="the store")
        return StateAt(store, base_version, in_flight, self.any_order, groups)

    def any_order(self) -> Any:
        """The log, whose blobs come in any order."""

        def read(addresses: Sequence[str]) -> list[Any]:
            blobs = list(self.log.read(addresses))
            self.completion.shuffle(blobs)
            return blobs

        return SimpleNamespace(read=read, where=self.log.where)

    def stored(self, base: Version, table: str, keys: Sequence[bytes]) -> Any:
        found = [base.content[table].get(key) for key in keys]
        return pa.array([None if one is None else b"+" + one for one in found], pa.binary())

    def look(self, read: Callable[..., Any], base: Version, changes: Any) -> None:
        """Some keys that are written, and some that are only read, of one table."""
        table = self.chance.choice(TABLES)
        keys = {
            (g, k)
            for g, t, k in zip(*(changes[n].to_pylist() for n in "gtk"), strict=True)
            if TABLES[t] == table
        }
        groups = {g for g, _ in keys}
        keys |= {
            (g, k) for k in KEYS if (g := key_group(k, KEY_GROUPS)) in groups and self.chance.random() < 0.3
        }
        if not keys:
            return
        columns = [pa.array([g for g, _ in keys], pa.int32()), pa.array([k for _, k in keys], pa.binary())]
        rows = pa.record_batch(columns, ["g", "k"])
        found = read(table, base.starts.get(table, base.first_start), rows).to_pylist()
        expected = payloads(self.stored(base, table, [k for _, k in keys])).to_pylist()
        assert found == expected, (table, sorted(keys), found, expected)

    def decide(self, manifest: Manifest, version: Version) -> None:
        number, last = len(self.versions), self.versions[-1]
        version.links, version.frames = links_at(manifest, last.links), frames_of(manifest)
        version.behind = last.behind
        if version.frames.frames:
            then, now = EarlierLinks(number - 1, last.links), EarlierLinks(number, version.links)
            version.behind = last.behind.followed(then, now, version.frames)
        self.versions.append(version)

    # -- what happens -----------------------------------------------------------------------------

    def rows(self) -> Rows:
        chance, mark = self.chance, self.new_id().encode()
        rows: Rows = {name: {} for name in TABLES}
        for name in TABLES:
            for key in chance.sample(KEYS, chance.choice([0, 3, 10, len(KEYS)])):
                rows[name][key] = None if chance.random() < 0.2 else mark + b"x" * chance.choice([0, 1, 50])
        return rows

    def step(self) -> None:
        chance, last = self.chance, len(self.versions) - 1
        dice = chance.random()
        if dice < 0.12:  # an attempt that comes to nothing
            self.stage(last, self.rows(), reads=chance.random() < 0.8)
        elif dice < 0.18:  # an older driver's tasks, which know what held then
            self.stage(chance.randint(max(0, last - 3), last), self.rows())
        elif dice < 0.24:
            self.decide(*self.stage(last, {name: {} for name in TABLES}))
        elif dice < 0.26:  # decided by tasks without a cache: turned off, or another program
            self.decide(*self.stage(last, self.rows(), cached=False))
        elif dice < 0.3:
            self.decide(*self.stage(last, self.rows(), frozenset([chance.choice(TABLES)])))
        elif dice < 0.33:
            dropped = chance.choice(TABLES)
            rows = self.rows() if chance.random() < 0.5 else {name: {} for name in TABLES}
            self.decide(*self.stage(last, rows | {dropped: {}}, drops=frozenset([dropped])))
        elif dice < 0.4:
            self.decide(*self.stage(last, self.rows(), reads=False))
        elif dice < 0.48:
            self.lose()
        elif dice < 0.6:  # a small batch, by one task: the other hosts' caches are behind
            rows = {name: dict(list(of.items())[:2]) for name, of in self.rows().items()}
            self.decide(*self.stage(last, rows, parallelism=1))
        else:
            self.decide(*self.stage(last, self.rows()))

    def files(self) -> list[Path]:
        return [path for path in self.folder.rglob("shared/state/*") if path.is_file()] + self.units()

    def units(self, what: str = "*-*.*") -> list[Path]:
        """Files of the pieces; of those on a disk, "*.disk"."""
        return list(self.folder.rglob(f"shared/buffer/units/*/{what}"))

    def lose(self) -> None:
        """Something in the folder is gone, or damaged."""
        chance, files = self.chance, self.files() + self.units("note")
        if not files:
            return
        path = chance.choice(files)
        match chance.randrange(7):
            case 0:
                path.unlink()
            case 1:
                shutil.rmtree(path.parent)
            case 2:
                path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])
            case 3:  # another version's, task's, table's or host's, whole as it is
                alike = [other for other in files if other.suffix == path.suffix]
                path.write_bytes(chance.choice(alike).read_bytes())
            case _:
                content = bytearray(path.read_bytes())
                content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
                path.unlink()
                path.write_bytes(content)
        self.counts["lost"] += 1
