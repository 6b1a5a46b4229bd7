"""Random histories against plain dictionaries, with none of the library's helpers.

The model keeps every row of every version for ever and answers reads by looking backwards; a
store must give the same answers for as long as the version can be read, whatever was applied
partly, repeated, sealed, published, retired, leased or sent late in between.
"""

import itertools
import shutil
import tempfile

import hypothesis.strategies as st
import pyarrow as pa
import pytest
import xxhash
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidegate.base.clock import Clock
from tidegate.errors import IncompleteError, SnapshotExpiredError, TidegateError
from tidegate.sinks.memory.store import MemoryStore, forget
from tidegate.sinks.records import CatalogEntry, Identity, ReadAt, Vacuumed
from tidegate.sinks.rules.leases import Lease
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.testing.store.harness import retire_version, stamp
from tidegate.wal.frame import Chunk, Run
from tidegate.wal.record import LoadOrigin, TableAt

GROUPS = 3
KEYS = [b"", b"\0", b"a", b"a\0", b"b", b"c", b"dd", b"\xff"]
TABLES = ["t", "T"]
GROUP = {key: xxhash.xxh64_intdigest(key, seed=42) % GROUPS for key in KEYS}
names = itertools.count()

value_of_a_row = st.binary(max_size=3) | st.tuples(st.binary(max_size=3), st.integers(0, 4))
"""A value alone stays; with a number it is shown at so many versions, its own the first."""
changes_of_a_version = st.dictionaries(
    st.tuples(st.sampled_from(TABLES), st.sampled_from(KEYS)), st.none() | value_of_a_row, max_size=8
)


class StandingClock(Clock):
    now = 10**15

    def now_us(self):
        return self.now


def at_us(version):
    return stamp(version).decided_at_us


def stored_as(value, version):
    if value is None:
        return b"-"
    if isinstance(value, bytes):
        return b"+" + value
    return b"e" + at_us(version + value[1]).to_bytes(8, "big") + value[0]


def shown_at(value, written, version):
    """What a reader of a version gets of a value that was written at another one."""
    if not isinstance(value, tuple):
        return value
    return value[0] if version < written + value[1] else None


class Decided:
    """One version: its changes, and its chunks (each one row, so that any part may be missing)."""

    def __init__(self, version, changes, emptied):
        self.version = version
        self.changes = changes
        self.emptied = emptied
        self.chunks = []
        for (table, key), value in sorted(changes.items()):
            stored = pa.array([stored_as(value, version)], pa.binary())
            run = Run(GROUP[key], table, pa.array([key], pa.binary()), stored)
            self.chunks.append(Chunk(len(self.chunks), [run]))
        self.applied = set()

    @property
    def counts(self):
        counts = {}
        for table, key in self.changes:
            of_group = counts.setdefault(GROUP[key], {})
            of_group[table] = of_group.get(table, 0) + 1
        return counts


class StoreMachine(RuleBasedStateMachine):
    def make(self, name):
        raise NotImplementedError

    @initialize()
    def create(self):
        self.clock = StandingClock()
        self.name = f"machine-{next(names)}"
        self.store = self.make(self.name)
        self.store.create(Identity("u", self.name, GROUPS))
        self.epoch = self.store.claim(1, "w")
        self.decided = []  # all versions, oldest first; at most the last one is not visible
        self.visible = self.horizon = self.retired = 0
        self.leases = {}
        self.published = {}

    # -- writing -------------------------------------------------------------------------------

    @precondition(lambda self: len(self.decided) == self.visible)
    @rule(changes=changes_of_a_version, emptied=st.sets(st.sampled_from(TABLES), max_size=1))
    def decide(self, changes, emptied):
        self.decided.append(
            Decided(len(self.decided) + 1, changes, emptied if len(self.decided) % 4 == 3 else set())
        )

    @precondition(lambda self: len(self.decided) == self.visible > 0)
    @rule(values=st.lists(value_of_a_row, min_size=len(KEYS) * len(TABLES), max_size=len(KEYS) * len(TABLES)))
    def decide_the_same_keys_again(self, values):
        keys = self.decided[-1].changes
        self.decided.append(Decided(len(self.decided) + 1, dict(zip(keys, values, strict=False)), set()))

    @precondition(lambda self: len(self.decided) > self.visible)
    @rule(chance=st.randoms(use_true_random=False))
    def apply_some(self, chance):
        version = self.decided[-1]
        for chunk in chance.sample(version.chunks, chance.randint(0, len(version.chunks))):
            self.store.apply(stamp(version.version), chunk)
            version.applied.add(chunk.ordinal)

    @precondition(lambda self: len(self.decided) > self.visible)
    @rule()
    def seal_too_early_or_not(self):
        version = self.decided[-1]
        if len(version.applied) == len(version.chunks):
            self.store.seal(stamp(version.version), version.counts)
        else:
            with pytest.raises(IncompleteError):
                self.store.seal(stamp(version.version), version.counts)

    @precondition(lambda self: len(self.decided) > self.visible)
    @rule(joined=st.booleans())
    def finish(self, joined):
        version = self.decided[-1]
        self.apply_and_seal(version)
        entry = self.entry(version)
        assert not self.store.publish(entry, self.epoch - 1)
        assert not self.store.publish(self.entry(Decided(version.version + 1, {}, set())), self.epoch)
        assert self.store.publish(entry, self.epoch)
        assert not self.store.publish(entry, self.epoch)
        self.visible += 1
        self.published[self.visible] = self.clock.now

    def apply_and_seal(self, version):
        for chunk in version.chunks:
            self.store.apply(stamp(version.version), chunk)
        self.store.seal(stamp(version.version), version.counts)

    @precondition(lambda self: self.visible)
    @rule(pick=st.integers(0, 10**6), seal=st.booleans())
    def come_late(self, pick, seal):
        """A zombie: any chunk of any published version, retired or not."""
        version = self.decided[pick % self.visible]
        for chunk in version.chunks[pick % 3 :: 2]:
            self.store.apply(stamp(version.version), chunk)
        if seal:
            self.store.seal(stamp(version.version), version.counts)

    @rule()
    def a_new_driver_claims(self):
        self.epoch = self.store.claim(self.epoch + 1, "w2")
        assert self.store.claim(self.epoch - 1, "w") == self.epoch

    # -- leases and retirement -----------------------------------------------------------------

    @rule(name=st.sampled_from("ab"), back=st.integers(0, 3), ttl=st.sampled_from([10, 1000]))
    def lease(self, name, back, ttl):
        version = max(0, self.visible - back)
        if version < self.horizon:
            with pytest.raises(SnapshotExpiredError):
                self.store.lease(Lease(name, version), ttl)
        else:
            self.store.lease(Lease(name, version), ttl)
            known = self.leases.get(name)
            taken = known[1] if known is not None and known[0] == version else self.clock.now
            self.leases[name] = (version, taken, self.clock.now + ttl * 10**6)

    @rule(name=st.sampled_from("ab"))
    def release(self, name):
        self.store.release(name)
        self.leases.pop(name, None)

    @rule(seconds=st.sampled_from([5, 11, 2000]))
    def time_goes_on(self, seconds):
        self.clock.now += seconds * 10**6

    @rule(
        back=st.integers(-1, 2),
        max_lease_s=st.sampled_from([None, 4, 12, 3000]),
        max_layers=st.sampled_from([None, 0, 1, 100]),
        keep_versions=st.sampled_from([None, 1, 2]),
    )
    def announce(self, back, max_lease_s, max_layers, keep_versions):
        def fresh(version):
            since = None if keep_versions is None else self.published.get(version + keep_versions)
            return max_lease_s is None or since is None or self.clock.now - since < max_lease_s * 10**6

        holding = [
            version
            for version, taken, until in self.leases.values()
            if until > self.clock.now
            and (max_lease_s is None or self.clock.now - taken < max_lease_s * 10**6)
            and (max_layers is None or version >= self.visible - max_layers)
            and fresh(version)
        ]
        self.horizon = max(self.horizon, min([self.visible - back, self.visible, *holding]))
        limits = {"max_lease_s": max_lease_s, "max_layers": max_layers, "keep_versions": keep_versions}
        assert self.store.announce(self.visible - back, **limits) == self.horizon
        for name, (version, _, until) in list(self.leases.items()):
            if version < self.horizon or until <= self.clock.now:
                del self.leases[name]
                if version < self.horizon:  # run out or revoked, and passed: refused from now on
                    with pytest.raises(SnapshotExpiredError):
                        self.store.lease(Lease(name, version), 1000)

    @rule(rows=st.sampled_from([1, 50, 1000]))
    def drop_expired(self, rows):
        assert self.store.drop_expired(rows) <= rows + len(KEYS) * len(TABLES)

    @rule()
    def look_at_leases(self):
        found = [(info.lease_id, info.version, info.age_s, info.expires_in_s) for info in self.store.leases()]
        assert sorted(found) == sorted(
            (name, version, (self.clock.now - taken) / 1e6, (until - self.clock.now) / 1e6)
            for name, (version, taken, until) in self.leases.items()
            if until > self.clock.now
        )

    @rule()
    def vacuum(self):
        would = self.store.vacuum(dry_run=True)
        assert self.store.vacuum() == would
        assert self.store.vacuum(dry_run=True) == Vacuumed()
        for name, (_, _, until) in list(self.leases.items()):
            if until <= self.clock.now:
                del self.leases[name]

    @precondition(lambda self: self.retired < self.horizon)
    @rule(torn=st.booleans())
    def retire(self, torn):
        version = self.decided[self.retired]
        if torn:
            retire_version(self.store, version.version, version.chunks[::2])
        else:
            retire_version(self.store, version.version, iter(version.chunks))
            self.retired += 1

    @rule()
    def reopen(self):
        self.store.close()
        self.store = self.make(self.name)

    @precondition(lambda self: self.horizon)
    @rule(pick=st.integers(0, 10**6))
    def retire_late(self, pick):
        """A zombie: what was at or below the horizon when it was sent."""
        version = self.decided[pick % self.horizon]
        retire_version(self.store, version.version, version.chunks[pick % 2 :: 2])

    # -- reading -------------------------------------------------------------------------------

    @rule(back=st.integers(-1, 4), asked=st.lists(st.sampled_from(KEYS), max_size=6))
    def read(self, back, asked):
        version = max(0, self.visible - back)
        for table in TABLES:
            start = self.start_of(table, version)
            if version > self.visible:
                with pytest.raises(TidegateError):
                    self.store.get_many(ReadAt(table, version, start), asked)
            elif version < self.horizon:
                with pytest.raises(SnapshotExpiredError):
                    self.store.get_many(ReadAt(table, version, start), asked)
                with pytest.raises(SnapshotExpiredError):
                    list(self.store.scan(ReadAt(table, version, start), 0))
            else:
                expected = self.expected(table, version)
                values = self.store.get_many(
                    ReadAt(table, version, start, at_us=at_us(version)), asked
                ).to_pylist()
                assert values == [expected.get(key) for key in asked]

    @invariant()
    def newest_and_oldest_are_whole(self):
        for version in {self.visible, self.horizon}:
            for table in TABLES:
                rows = {}
                for group in range(GROUPS):
                    start = self.start_of(table, version)
                    for batch in self.store.scan(ReadAt(table, version, start, at_us=at_us(version)), group):
                        rows |= zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)
                assert rows == self.expected(table, version)

    @invariant()
    def pointer_and_catalog_fit(self):
        pointer = self.store.pointer()
        assert (pointer.visible, pointer.horizon, pointer.epoch) == (self.visible, self.horizon, self.epoch)
        shown = [entry.version for entry in self.store.catalog()]
        assert shown == list(range(max(1, self.horizon), self.visible + 1))

    def teardown(self):
        for version in self.decided[self.horizon : self.visible] if hasattr(self, "store") else []:
            assert self.store.verify(stamp(version.version), version.counts) == []
        if hasattr(self, "store"):
            self.store.close()

    # -- the model -----------------------------------------------------------------------------

    def start_of(self, table, version):
        return max((v.version for v in self.decided[:version] if table in v.emptied), default=0)

    def expected(self, table, version):
        rows = {}
        for one in self.decided[:version]:
            if table in one.emptied:
                rows = {}
            for (changed, key), value in one.changes.items():
                if changed == table:
                    rows[key] = shown_at(value, one.version, version)
        return {key: value for key, value in rows.items() if value is not None}

    def entry(self, version):
        tables = {
            table: TableAt(
                "s",
                max(self.start_of(table, version.version), version.version * (table in version.emptied)),
                expires=True,
            )
            for table in TABLES
        }
        number = version.version
        return CatalogEntry(number, f"d{number}", "a", LoadOrigin("t"), at_us(number), tables, {})


class MemoryMachine(StoreMachine):
    def make(self, name):
        return MemoryStore("machine", name, self.clock)

    def teardown(self):
        super().teardown()
        forget("machine")


class SqliteMachine(StoreMachine):
    def __init__(self):
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="tidegate-machine-")

    def make(self, name):
        return SqliteStore(self.root, name, self.clock, timeout_s=20)

    def teardown(self):
        super().teardown()
        shutil.rmtree(self.root)


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=60, stateful_step_count=40)
TestSqliteMachine = SqliteMachine.TestCase
TestSqliteMachine.settings = settings(
    max_examples=12, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
