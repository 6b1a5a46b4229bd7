"""The cache of state under its monitor: what frees memory, and what comes back into it."""

import struct

import numpy as np
import pyarrow as pa
import pytest

from tidegate.base.local_dir import LocalDir
from tidegate.options.state_spill import StateSpill
from tidegate.sinks.cache.buffer.buffer import Buffer
from tidegate.sinks.cache.buffer.limits import BufferLimits
from tidegate.sinks.cache.buffer.policy import ContainerMemory
from tidegate.sinks.cache.buffer.pressure import QUIET
from tidegate.sinks.cache.cache import CacheSpec, StateCache
from tidegate.sinks.cache.links import Link
from tidegate.sinks.cache.pieces import Pieces
from tidegate.sinks.rules.layout import Stored, pack, payloads

KEY_GROUPS = 4
BYTES = 1 << 20
HOUR_US = 3_600_000_000


class Host:
    """One host whose tasks have all key groups, version by version; a dictionary is the store."""

    def __init__(self, folder, memory_bytes, bands):
        self.local, memory = (LocalDir(str(folder / name), "flights", "u1") for name in ("disk", "memory"))
        self.buffer = Buffer(memory, [self.local], BufferLimits(memory_bytes, 8 * BYTES, bands=bands))
        self.container = None
        self.pieces = Pieces(lambda: self.buffer, QUIET._replace(container=lambda: self.container))
        self.store, self.asked = {}, []
        self.links = ()
        self.close = lambda: [local.close() for local in (self.local, memory)]

    def commit(self, version, written=None, read=None, starts=None, at_us=0):
        """One version: keys to read and values to write, by table. Returns the read values and the counts."""
        tables = {*(written or {}), *(read or {})}
        starts = dict.fromkeys(("large", "hot", "sessions"), 0) | (starts or {})
        spec = CacheSpec(version - 1, self.links, starts, KEY_GROUPS, BYTES, decided_at_us=at_us)
        cache = StateCache(self.local, self.pieces, spec, range(KEY_GROUPS), f"run{version}", tables)
        found = {name: cache.read(name, rows_of(keys), self._ask) for name, keys in (read or {}).items()}
        for name, values in (written or {}).items():
            cache.wrote(name, rows_of(values, values.values()))
            self.store |= values
        link = Link(version, 0, KEY_GROUPS, f"token{version}")
        cache.keep(link)
        self.links = (link,)
        return found, cache.counts

    def _ask(self, rows):
        keys = rows["k"].to_pylist()
        self.asked += keys
        return pa.array([self.store.get(key) for key in keys], pa.binary())

    def tiers(self):
        return {"disk" if note.account.disk_bytes else "memory" for note in self.buffer.notes().values()}


def rows_of(keys, values=()):
    groups = pa.array([key[-1] % KEY_GROUPS for key in keys], pa.int32())
    columns = {"g": groups, "k": pa.array(list(keys), pa.binary())}
    return pa.record_batch(columns | ({"v": pa.array(list(values), pa.binary())} if values else {}))


def values_of(name, number, value):
    return {b"%s-%04d" % (name, key): value for key in range(number)}


@pytest.fixture
def host(tmp_path):
    made = []

    def make(memory_bytes=BYTES, **bands):
        made.append(Host(tmp_path, memory_bytes, StateSpill(**bands)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_what_a_removed_table_leaves_is_filled_by_hot_state(host):
    one = host(memory_bytes=200_000)
    large, hot = values_of(b"large", 400, b"+" + b"x" * 400), values_of(b"hot", 400, b"+" + b"h" * 200)
    one.commit(1, {"large": large})
    one.commit(2, {"hot": hot})
    assert one.tiers() == {"memory", "disk"}
    moved = []
    for version in range(3, 8):  # the table is emptied: its start is another
        _, counts = one.commit(version, read={"hot": hot}, starts={"large": 3})
        moved.append(dict(counts.moved))
    assert one.tiers() == {"memory"}
    assert {reason for each in moved for reason in each} == {"room"}
    assert one.asked == []


def test_expired_rows_are_merged_into_markers_and_free_memory(host):
    one = host()
    expiring = values_of(b"old", 300, pack(Stored(b"x" * 400, HOUR_US)))
    lasting = values_of(b"new", 300, pack(Stored(b"y" * 400, 10 * HOUR_US)))
    _, before = one.commit(1, {"sessions": expiring})
    _, counts = one.commit(2, {"sessions": lasting}, at_us=HOUR_US)
    assert before.cache_bytes < counts.cache_bytes < 1.3 * before.cache_bytes
    found, counts = one.commit(3, read={"sessions": {**expiring, **lasting}}, at_us=HOUR_US)
    assert payloads(found["sessions"], HOUR_US + 1).to_pylist() == [None] * 300 + [b"y" * 400] * 300
    assert one.asked == []
    assert (counts.hits, counts.absent) == (300, 300)


def test_rows_that_expire_after_the_base_versions_time_are_kept(host):
    """A decision's time, not a clock's: another driver may have decided at an earlier time."""
    one = host()
    expiring = values_of(b"old", 300, pack(Stored(b"x" * 400, HOUR_US)))
    one.commit(1, {"sessions": expiring})
    one.commit(2, {"sessions": values_of(b"new", 300, b"+" + b"y" * 400)}, at_us=HOUR_US - 1)
    found, _ = one.commit(3, read={"sessions": expiring}, at_us=HOUR_US - 1)
    assert set(found["sessions"].to_pylist()) == {b"e" + struct.pack(">q", HOUR_US) + b"x" * 400}


def test_requests_count_by_key_group(host):
    one = host(memory_bytes=100_000)
    one.commit(1, {"large": values_of(b"large", 400, b"+" + b"x" * 400)})
    asked = [key for key in values_of(b"large", 40, b"") if key[-1] % KEY_GROUPS == 3]
    one.commit(2, read={"large": asked})
    rates = one.buffer.rates.read()
    assert [rates.mean(group, group + 1) for group in range(KEY_GROUPS)] == pytest.approx(
        [0, 0, 0, 0.3 * len(asked)]
    )


def test_a_full_container_is_in_the_counts(host):
    one = host()
    one.commit(1, {"large": values_of(b"large", 400, b"+" + b"x" * 400)})
    one.container = ContainerMemory(99_000_000, 100_000_000)
    _, counts = one.commit(2, {"large": values_of(b"large", 1, b"+1")})
    assert counts.moved.keys() == {"container"}
    assert counts.moved["container"] > 100_000
    assert one.tiers() == {"disk"}
    assert np.isclose(one.buffer.used_bytes("disk"), counts.moved["container"], rtol=0.1)
