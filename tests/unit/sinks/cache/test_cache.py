"""The cache of state beside a dictionary: a read gives what the store has at the base version.

Random schedules of versions, attempts that are not decided, zombies, tasks that run twice, rescaling, hosts,
tables that are emptied, and a folder in which things are lost and damaged. What a task reads is compared
there and then with a plain model, the store.
"""

import os
from collections import Counter
from types import SimpleNamespace

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from support.cache.world import HOSTS, KEY_GROUPS, KEYS, TABLES, World
from tidegate.keys.groups import groups_of, key_group
from tidegate.sinks.cache import cache as state_cache
from tidegate.sinks.cache import in_flight, runs
from tidegate.sinks.cache import links as state_chain
from tidegate.sinks.cache.in_flight import NOT_BEHIND, EarlierLinks
from tidegate.sinks.cache.links import links_at
from tidegate.sinks.cache.lookup import hashes_of
from tidegate.sinks.cache.pieces import Pieces
from tidegate.spark.state import cache as cached_state
from tidegate.wal.manifest import Component


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


@pytest.mark.one_in(3)
@pytest.mark.parametrize("first", range(0, 12, 4))
def test_a_cache_never_answers_otherwise_than_the_store(world, first):
    counts = run(world, range(first, first + 4))
    print(counts)
    assert counts["hits"] > counts["misses"] / 2
    assert counts["absent"]
    assert counts["lost"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("bytes_max", [0, 3_000, 12_000])
def test_nor_with_little_room(world, bytes_max):
    counts = run(world, range(100, 103), bytes_max=bytes_max)
    assert bool(counts["hits"]) == bool(bytes_max)


@pytest.mark.one_in(3)
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


def test_nor_without_the_changes_since(world, monkeypatch):
    """The rule, broken: a cache that is behind is taken as it is."""
    monkeypatch.setattr(cached_state, "read_changes", lambda *_: iter(()))
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


def test_hosts_catch_up_with_small_batches_of_one_task(world, monkeypatch):
    """The task is on the first host. The others know the keys that it wrote, and all that they had."""
    one = world(1)
    one.chance = SimpleNamespace(random=lambda: 0.5, choice=lambda _: "sums", randint=lambda *_: 3)
    every = {"airports": {}, "sums": dict.fromkeys(KEYS, b"1")}
    for _ in range(2):
        one.decide(*one.stage(len(one.versions) - 1, every, parallelism=3))
    for key in KEYS[:5]:
        one.decide(*one.stage(len(one.versions) - 1, {"airports": {}, "sums": {key: b"2"}}, parallelism=1))
    one.counts.clear()
    one.decide(*one.stage(len(one.versions) - 1, every, parallelism=3))
    assert one.counts["misses"] == 0
    assert one.counts["hits"] == len(KEYS)


def test_a_cache_that_is_far_behind_is_read_from_the_store_again(world, monkeypatch):
    one = world(1)
    one.chance = SimpleNamespace(random=lambda: 0.5, choice=lambda _: "sums", randint=lambda *_: 3)
    every = {"airports": {}, "sums": dict.fromkeys(KEYS, b"1")}
    one.decide(*one.stage(0, every, parallelism=3))
    one.decide(*one.stage(1, {"airports": {}, "sums": {KEYS[0]: b"2"}}, parallelism=1))
    frames = one.versions[2].frames
    monkeypatch.setattr(in_flight, "CATCH_UP_BYTES_MAX", frames.frames[0].bytes - 1)
    followed = one.versions[1].behind.followed(
        EarlierLinks(1, one.versions[1].links), EarlierLinks(2, one.versions[2].links), frames
    )
    assert one.versions[2].behind.earlier
    assert followed == NOT_BEHIND


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_a_first_stage_reads_is_kept_by_the_task_on_its_host(world, monkeypatch, elsewhere):
    """An update's function reads there; what it does not change would be asked of the store for ever."""
    one = world(1)
    chance = SimpleNamespace(random=lambda: 0.5, choice=lambda _: "sums", randint=lambda *_: 1)
    hits = []

    def first_stage(spec, place, base, task, parallelism, local):
        groups = groups_of(task, parallelism, KEY_GROUPS)
        cache = one.cache(spec, place, task, parallelism, one.locals[1] if elsewhere else local, TABLES)
        columns = [
            pa.array([key_group(k, KEY_GROUPS) for k in KEYS], pa.int32()),
            pa.array(KEYS, pa.binary()),
        ]
        rows = pa.record_batch(columns, ["g", "k"])
        cache.before(one.state(place.spec.base_version, groups))("sums", base.starts["sums"], rows)
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


def test_instances_of_a_local_state_have_no_links(manifest):
    """They stage nothing: no task has their key groups."""
    (sink,) = manifest.topology["flights"].values()
    local = Component(5, {str(instance): () for instance in range(5)})
    topology = {"flights": {"sink": sink, "local.top": local}}
    assert links_at(msgspec.structs.replace(manifest, topology=topology)) == links_at(manifest)


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
