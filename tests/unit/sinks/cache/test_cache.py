"""The cache of state beside a dictionary: a read gives what the store has at the base version.

Random schedules of versions, attempts that are not decided, zombies, tasks that run twice, rescaling, hosts,
tables that are emptied, and a folder in which things are lost and damaged. What a task reads is compared
there and then with a plain model, the store.
"""

import dataclasses
import itertools
import os
import random
import shutil
from collections import Counter
from functools import partial
from types import SimpleNamespace

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tidegate.base.local_dir import LocalDir
from tidegate.keys.groups import groups_of, key_group
from tidegate.sinks.cache import cache as state_cache
from tidegate.sinks.cache import links as state_chain
from tidegate.sinks.cache import runs
from tidegate.sinks.cache.buffer.buffer import Buffer
from tidegate.sinks.cache.buffer.limits import BufferLimits
from tidegate.sinks.cache.cache import CacheSpec
from tidegate.sinks.cache.links import links_at
from tidegate.sinks.cache.lookup import hashes_of
from tidegate.sinks.cache.pieces import Pieces
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


@dataclasses.dataclass
class Version:
    """A decided version as the store has it."""

    content: dict
    starts: dict
    links: tuple = ()


class World:
    """The log, a store that knows every version, hosts with their folders, and the driver's part."""

    def __init__(self, folder, seed, *, bytes_max=100_000, memory_bytes=1 << 20):
        self.chance = random.Random(seed)
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
            local: Pieces(partial(Buffer, memory, [local], limits))
            for local, memory in zip(self.locals, self.memories, strict=True)
        }
        self.counts = Counter()
        self.parallelism = 3

    def new_id(self):
        return f"{next(self.ids):08x}"

    def close(self):
        for local in {*self.locals, *self.memories}:
            local.close()
        memory_log.forget(f"state-cache-{self.log.where.split('-')[-1].split()[0]}")

    # -- what a driver does -----------------------------------------------------------------------

    def stage(self, base_version, rows, starts=frozenset(), *, reads=True, parallelism=None, cached=True):
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
            (), "", CacheSpec(base_version, base.links, base.starts, KEY_GROUPS, self.bytes_max), 0
        )
        acks, written = [], {name: {} for name in TABLES}
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
        content = {
            name: {**({} if name in starts else base.content[name]), **written[name]} for name in TABLES
        }
        component = Component(parallelism, {str(ack.task): ack.frames for ack in acks})
        new_starts = {name: base.starts.get(name, 0) for name in TABLES} | dict.fromkeys(
            starts, base_version + 1
        )
        ats = {name: TableAt("", start) for name, start in new_starts.items()}
        manifest = Manifest(
            UUID, attempt, base_version + 1, KEY_GROUPS, TABLES, {}, ats, {"flights": {"sink": component}}, ""
        )
        return manifest, Version(content, new_starts)

    def task(self, spec, place, rows, base, task, parallelism, *, reads, cached):
        local = self.chance.choice(self.locals) if self.chance.random() < 0.05 else self.locals[task % HOSTS]
        cache = None
        if cached and reads and self.chance.random() < 0.3:
            self.first_stage(spec, place, base, task, parallelism, local)
        if cached:
            cache = self.cache(spec, place, task, parallelism, local, TABLES if reads else ())
        barrier = ArrowBarrier(self.log, rows, batch("q", 0), KEY_GROUPS, parallelism, batch_rows=7)
        store = self.store(base)

        def merge(changes):
            if cache is not None and reads:
                self.look(cache.from_store(store), base, changes)
            return [changes]

        named = {"task": task, "task_attempt": self.new_id(), "host": "host"}
        watch = None if cache is None else cache.watch
        ack = stage_task(barrier.batches(task), spec, self.log, **named, merge=merge, watch=watch)
        if cache is None:
            return ack
        ack = cache.keep(ack)
        self.counts += Counter(hits=ack.state.hits, absent=ack.state.absent, misses=ack.state.misses)
        assert ack.state.cache_bytes <= self.bytes_max
        return ack

    def cache(self, spec, place, task, parallelism, local, reads):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cached_state, "local_dirs", lambda *_: [local])
            patch.setattr(cached_state, "host_pieces", lambda *_: self.pieces[local])
            return CachedState(place, spec, task, parallelism, self.new_id(), reads)

    def first_stage(self, spec, place, base, task, parallelism, local):
        """A run in front of the task, here or on another host, which reads and leaves it what it read."""
        at = self.chance.choice(self.locals) if self.chance.random() < 0.2 else local
        cache = self.cache(spec, place, task, parallelism, at, TABLES)
        mine = set(groups_of(task, parallelism, KEY_GROUPS))
        keys = [(g, t, k) for k in KEYS for t in (0, 1) if (g := key_group(k, KEY_GROUPS)) in mine]
        if keys:
            g, t, k = zip(*keys, strict=True)
            self.look(cache.from_store(self.store(base)), base, pa.record_batch([g, t, k], ["g", "t", "k"]))
        if self.chance.random() < 0.9:  # else it was killed
            cache.hand_over()

    def store(self, base):
        return SimpleNamespace(get_stored=lambda table, keys, *_: self.stored(base, table, keys))

    def stored(self, base, table, keys):
        found = [base.content[table].get(key) for key in keys]
        return pa.array([None if one is None else b"+" + one for one in found], pa.binary())

    def look(self, read, base, changes):
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
        found = read(table, base.starts.get(table, 0), rows).to_pylist()
        expected = payloads(self.stored(base, table, [k for _, k in keys])).to_pylist()
        assert found == expected, (table, sorted(keys), found, expected)

    def decide(self, manifest, version):
        version.links = links_at(manifest, self.versions[-1].links)
        self.versions.append(version)

    # -- what happens -----------------------------------------------------------------------------

    def rows(self):
        chance, mark = self.chance, self.new_id().encode()
        rows = {name: {} for name in TABLES}
        for name in TABLES:
            for key in chance.sample(KEYS, chance.choice([0, 3, 10, len(KEYS)])):
                rows[name][key] = None if chance.random() < 0.2 else mark + b"x" * chance.choice([0, 1, 50])
        return rows

    def step(self):
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
        elif dice < 0.4:
            self.decide(*self.stage(last, self.rows(), reads=False))
        elif dice < 0.48:
            self.lose()
        else:
            self.decide(*self.stage(last, self.rows()))

    def files(self):
        return [path for path in self.folder.rglob("shared/state/*") if path.is_file()] + self.units()

    def units(self, what="*-*.*"):
        """Files of the pieces; of those on a disk, "*.disk"."""
        return list(self.folder.rglob(f"shared/buffer/units/*/{what}"))

    def lose(self):
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


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Makes worlds; a piece of a cache is small, so that there are many."""
    monkeypatch.setattr(state_cache, "MEMORY_BYTES", 2_000)
    monkeypatch.setattr(state_cache, "PIECE_BYTES_MIN", 2_000)
    made = []

    def make(seed, **how):
        made.append(World(tmp_path / f"world-{seed}-{len(made)}", seed, **how))
        return made[-1]

    yield make
    for one in made:
        one.close()


def few_hashes(keys):
    """Many keys of one hash; over all of the hashes' range."""
    return (hashes_of(keys) % np.uint64(5)) << np.uint64(61)


def run(make, seeds, steps=40, **how):
    counts = Counter()
    for seed in seeds:
        print("seed", seed)
        world = make(seed, **how)
        for _ in range(steps):
            world.step()
        counts += world.counts
    return counts


@pytest.mark.parametrize("first", range(0, 12, 4))
def test_a_cache_never_answers_otherwise_than_the_store(world, first):
    counts = run(world, range(first, first + 4))
    print(counts)
    assert counts["hits"] > counts["misses"] / 2
    assert counts["absent"]
    assert counts["lost"]


@pytest.mark.parametrize("bytes_max", [0, 3_000, 12_000])
def test_nor_with_little_room(world, bytes_max):
    counts = run(world, range(100, 103), bytes_max=bytes_max)
    assert bool(counts["hits"]) == bool(bytes_max)


@pytest.mark.parametrize("memory_bytes", [0, 1_000, 10_000])
def test_nor_with_little_memory(world, memory_bytes):
    """Most pieces are on a disk, some are spilled or loaded between two tasks; they answer as well."""
    found, most = set(), 0
    counts = Counter()
    for seed in range(300, 303):
        one = world(seed, memory_bytes=memory_bytes)
        for _ in range(40):
            one.step()
            found |= {path.suffix for path in one.units()}
            for memory in one.memories:
                here = list(memory.path.rglob("*.memory"))
                most = max(most, sum(path.stat().st_size for path in here))
        counts += one.counts
    assert counts["hits"] > counts["misses"] / 2
    assert ".disk" in found
    assert bool(most) == bool(memory_bytes)
    assert most <= memory_bytes


def test_nor_when_many_keys_have_one_hash(world, monkeypatch):
    monkeypatch.setattr(runs, "hashes_of", few_hashes)
    counts = run(world, range(200, 204))
    assert counts["hits"] > counts["misses"] / 2


def test_any_run_of_the_version_is_not_good_enough(world, monkeypatch):
    """The rule, broken: an index is taken for its version and key groups, whoever made it."""

    def anyone(_namespace, _attempt, version, groups, _frames):
        return state_chain.Link(version, groups.start, groups.stop, "anyone")

    monkeypatch.setattr(state_chain, "link_of", anyone)
    monkeypatch.setattr(cached_state, "link_of", anyone)
    with pytest.raises(AssertionError, match=r"sums|airports"):
        run(world, range(12))


# -- what it is worth -----------------------------------------------------------------------------


def test_all_is_held_when_nothing_changes_and_nothing_is_lost(world):
    one = world(1)
    rows = {"airports": {}, "sums": dict.fromkeys(KEYS, b"1")}
    for _ in range(10):
        one.counts.clear()
        one.chance = SimpleNamespace(random=lambda: 0.5, choice=lambda _: "sums", randint=lambda *_: 4)
        one.decide(*one.stage(len(one.versions) - 1, rows))
        last = one.counts
    assert last["misses"] == 0
    assert last["hits"] == len(KEYS)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_a_first_stage_reads_is_kept_by_the_task_on_its_host(world, monkeypatch, elsewhere):
    """An update's function reads there; what it does not change would be asked of the store for ever."""
    one = world(1)
    chance = SimpleNamespace(random=lambda: 0.5, choice=lambda _: "sums", randint=lambda *_: 1)
    hits = []

    def first_stage(spec, place, base, task, parallelism, local):
        cache = one.cache(spec, place, task, parallelism, one.locals[1] if elsewhere else local, TABLES)
        columns = [
            pa.array([key_group(k, KEY_GROUPS) for k in KEYS], pa.int32()),
            pa.array(KEYS, pa.binary()),
        ]
        rows = pa.record_batch(columns, ["g", "k"])
        cache.from_store(one.store(base))("sums", base.starts["sums"], rows)
        hits.append(cache.reads().hits)
        cache.hand_over()

    one.chance = chance
    every = {"airports": {}, "sums": dict.fromkeys(KEYS, b"1")}
    one.decide(*one.stage(0, every, parallelism=1, cached=False))
    chance.random = lambda: 0.25  # in front of every task, at this host, without a twin
    monkeypatch.setattr(one, "first_stage", first_stage)
    monkeypatch.setattr(one, "look", lambda *_: None)
    for version in (1, 2, 3):
        one.decide(*one.stage(version, {"airports": {KEYS[0]: b"x"}, "sums": {}}, parallelism=1))
    assert hits == ([0, 0, 0] if elsewhere else [0, len(KEYS), len(KEYS)])


def test_it_holds_across_versions_without_changes(world):
    one = world(2)
    one.chance = SimpleNamespace(random=lambda: 0.5, choice=lambda _: "sums", randint=lambda *_: 2)
    rows = {"airports": {}, "sums": dict.fromkeys(KEYS, b"1")}
    one.decide(*one.stage(0, rows))
    nothing = {name: {} for name in TABLES}
    for _ in range(5):
        manifest, version = one.stage(len(one.versions) - 1, nothing, cached=False)
        one.decide(manifest, version)
    assert len(version.links) <= 2 * 3
    one.counts.clear()
    one.stage(len(one.versions) - 1, rows)
    assert one.counts["misses"] == 0


def test_after_a_rescale_what_the_host_has_serves_the_new_tasks(world, monkeypatch):
    one = world(3)
    one.locals = one.locals[:1] * HOSTS
    one.chance = SimpleNamespace(random=lambda: 0.5, choice=lambda _: "sums")
    rows = {"airports": {}, "sums": dict.fromkeys(KEYS, b"1")}
    for parallelism in (2, 7, 3, 1, 8, 2, 5):
        one.counts.clear()
        one.decide(*one.stage(len(one.versions) - 1, rows, parallelism=parallelism))
        assert one.counts["misses"] == 0 or len(one.versions) == 2, parallelism


def test_what_no_version_needs_is_deleted(world):
    one = world(4)
    sizes = []
    for _ in range(60):
        last = len(one.versions) - 1
        one.stage(last, one.rows())
        one.decide(*one.stage(last, one.rows(), parallelism=3))
        sizes.append(len(one.files()))
    # per host: two versions' indexes and pieces, and those of attempts on top of the last
    assert max(sizes[30:]) <= max(sizes[:30]) + 10
    assert sum(path.name.endswith(".index") for path in one.files()) <= 4 * 3 * 2


def test_a_folder_that_cannot_be_used_is_told_of_once_and_the_store_is_read(world, monkeypatch, caplog):
    one = world(5)
    one.chance = SimpleNamespace(random=lambda: 0.5, choice=lambda _: "sums", randint=lambda *_: 2)
    rows = {"airports": {}, "sums": dict.fromkeys(KEYS, b"1")}
    one.decide(*one.stage(0, rows))

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Pieces, "write", full)
        for _ in range(3):
            one.decide(*one.stage(len(one.versions) - 1, rows))
    assert one.counts["misses"] > 0
    told = [record.message for record in caplog.records if "full" in record.message]
    assert len(told) == HOSTS  # once for each folder


def test_behind_what_is_lost_nothing_older_is_taken(world):
    """What a lost run said last of a key, an older one does not know."""
    one = world(8)
    one.locals = one.locals[:1] * HOSTS
    one.chance = SimpleNamespace(random=lambda: 0.5, choice=lambda _: "sums")
    many = {"airports": {}, "sums": dict.fromkeys(KEYS, b"old" * 100)}
    one.decide(*one.stage(0, many, parallelism=1))
    one.decide(*one.stage(1, {"airports": {}, "sums": dict.fromkeys(KEYS[:20], b"new")}, parallelism=1))
    (piece,) = [path for path in one.units() if path.parent.name.startswith("2-")]
    piece.unlink()
    one.counts.clear()
    one.decide(*one.stage(2, many, parallelism=1))
    assert one.counts["misses"] == len(KEYS)


def test_a_whole_file_under_anothers_name_is_not_taken(world):
    """An older version's, put there by a copy of the folder: its pieces are there, and hold what was then."""
    one = world(9)
    one.locals = one.locals[:1] * HOSTS
    one.chance = SimpleNamespace(random=lambda: 0.5, choice=lambda _: "sums")
    many = {"airports": {}, "sums": dict.fromkeys(KEYS, b"old" * 100)}
    one.decide(*one.stage(0, many, parallelism=1))
    one.decide(*one.stage(1, {"airports": {}, "sums": dict.fromkeys(KEYS[:20], b"new")}, parallelism=1))
    older, newer = sorted(one.folder.rglob("*.index"))
    newer.write_bytes(older.read_bytes())
    one.counts.clear()
    one.decide(*one.stage(2, many, parallelism=1))
    assert one.counts["misses"] == len(KEYS)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only(world):
    one = world(6)
    rows = {"airports": {}, "sums": dict.fromkeys(KEYS, b"1")}
    one.decide(*one.stage(0, rows))
    for path in one.folder.rglob("shared/state"):
        path.chmod(0o500)
    one.decide(*one.stage(1, rows))


# -- the rule by itself -----------------------------------------------------------------------------


@pytest.fixture
def manifest(world):
    one = world(7)
    return one.stage(0, {"airports": {}, "sums": dict.fromkeys(KEYS, b"1")}, parallelism=2, cached=False)[0]


def test_links_are_of_exactly_the_frames_attempt_version_and_namespace(manifest):
    links = links_at(manifest)
    assert [link.groups for link in links] == [groups_of(task, 2, KEY_GROUPS) for task in range(2)]
    for field, other in (("attempt", "ffff"), ("version", 2), ("namespace", "f" * 32)):
        changed = links_at(msgspec.structs.replace(manifest, **{field: other}))
        assert not {link.token for link in changed} & {link.token for link in links}, field
    component = manifest.topology["flights"]["sink"]
    fewer = {task: frames[:-1] for task, frames in component.instances.items()}
    topology = {"flights": {"sink": msgspec.structs.replace(component, instances=fewer)}}
    changed = links_at(msgspec.structs.replace(manifest, topology=topology))
    assert not {link.token for link in changed} & {link.token for link in links}


def test_a_frame_that_another_instance_wrote_for_the_range_breaks_the_link(manifest):
    """Then the task's own frames are not all that changed there."""
    component = manifest.topology["flights"]["sink"]
    theirs = Component(1, {"0": component.instances["0"]})
    moved = msgspec.structs.replace(component, instances={**component.instances, "0": ()})
    alone = msgspec.structs.replace(manifest, topology={"flights": {"sink": moved}})
    both = msgspec.structs.replace(manifest, topology={"flights": {"emitted": theirs, "sink": moved}})
    own = {(link.first_group, link.end_group): link.token for link in links_at(alone)}
    found = {(link.first_group, link.end_group): link.token for link in links_at(both)}
    first = groups_of(0, 2, KEY_GROUPS)
    assert found[first.start, first.stop] != own[first.start, first.stop]
    second = groups_of(1, 2, KEY_GROUPS)
    assert found[second.start, second.stop] == own[second.start, second.stop]
