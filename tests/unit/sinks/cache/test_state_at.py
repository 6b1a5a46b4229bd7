"""State at a version that is decided and not visible: a read gives what a dictionary has there.

The schedules are those of the cache, here without one: attempts that come to nothing, tasks that run twice,
tables that are emptied, while up to three versions are in flight and some become visible during a read.
"""

import pyarrow as pa
import pytest

from support.cache.world import KEY_GROUPS, KEYS, TABLES, World
from tidegate.errors import CorruptError
from tidegate.keys.groups import groups_of, key_group
from tidegate.sinks.cache import in_flight
from tidegate.sinks.cache.in_flight import InFlightVersions
from tidegate.sinks.cache.state_at import StateAt
from tidegate.sinks.rules.layout import payloads


@pytest.fixture
def made(tmp_path):
    """A world of 20 versions."""
    world = World(tmp_path, 7, bytes_max=0)
    while len(world.versions) < 20:
        starts = frozenset(TABLES[:1]) if world.chance.random() < 0.2 else frozenset()
        world.decide(*world.stage(len(world.versions) - 1, world.rows(), starts, reads=False))
    yield world
    world.close()


def keys_in(groups):
    keys = [key for key in KEYS if key_group(key, KEY_GROUPS) in groups]
    numbers = pa.array([key_group(key, KEY_GROUPS) for key in keys], pa.int32())
    return pa.record_batch([numbers, pa.array(keys, pa.binary())], ["g", "k"])


def test_each_read_is_of_the_base_version_i1(made):
    for base_version in range(20):
        base = made.versions[base_version]
        for task in range(3):
            groups = groups_of(task, 3, KEY_GROUPS)
            state, rows = made.state(base_version, groups), keys_in(groups)
            for table in TABLES:
                found = payloads(state.get_stored(table, base.starts.get(table, 0), rows))
                expected = payloads(made.stored(base, table, rows["k"].to_pylist()))
                assert found.to_pylist() == expected.to_pylist(), (base_version, table)


class Counted:
    """A log that counts the blobs it reads, and may keep some back."""

    where = "the log"

    def __init__(self, log, kept_back=()):
        self.log, self.read_blobs, self.kept_back = log, 0, kept_back

    def read(self, addresses):
        for blob in self.log.read([one for one in addresses if one not in self.kept_back]):
            self.read_blobs += 1
            yield blob


def test_frames_are_read_once_and_only_those_of_the_tasks_key_groups(made):
    frames = tuple(made.versions[number].frames for number in (18, 19))
    groups, log = range(2), Counted(made.log)
    store = made.state(19, groups).store
    state = StateAt(store, 19, InFlightVersions(17, frames), lambda: log, groups)
    rows = keys_in(groups)
    for table in TABLES:
        state.get_stored(table, made.versions[19].starts.get(table, 0), rows)
    touched = [ref for one in frames for ref in one.frames if any(g in groups for g in ref.groups)]
    assert log.read_blobs == len(touched) < sum(len(one.frames) for one in frames)


def test_a_frame_that_the_log_does_not_return_is_an_error(made):
    frames = tuple(made.versions[number].frames for number in (18, 19))
    log = Counted(made.log, kept_back=[frames[1].frames[0].address])
    state = StateAt(
        made.state(19, range(8)).store, 19, InFlightVersions(17, frames), lambda: log, range(KEY_GROUPS)
    )
    with pytest.raises(CorruptError, match="the log returned nothing for"):
        state.get_stored("sums", 0, keys_in(range(KEY_GROUPS)))


def test_the_largest_part_of_a_task_has_to_fit(made, monkeypatch):
    versions = InFlightVersions(18, (made.versions[19].frames,))
    largest = max(versions.bytes_of(groups_of(task, 4, KEY_GROUPS)) for task in range(4))
    monkeypatch.setattr(in_flight, "FRAMES_BYTES_MAX", largest)
    assert versions.fit(4, KEY_GROUPS)
    assert not versions.fit(1, KEY_GROUPS)
    monkeypatch.setattr(in_flight, "FRAMES_BYTES_MAX", largest - 1)
    assert not versions.fit(4, KEY_GROUPS)
