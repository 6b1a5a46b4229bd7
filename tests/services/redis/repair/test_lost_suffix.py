"""A server goes back to what it was at any earlier moment, under another id: what a failover leaves.

Random histories of batches, deletes, emptied tables, retirements and trims run against a real server.
After any write it may be put back to how it was after any earlier one, as a promoted replica is that
lagged. Whoever goes on (the same driver or a new one) has to end with every version that can be read
exactly as the batches make it, and a reader never sees anything else (I1, I3, I4, I10).
"""

import contextlib
import itertools
import random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.verify import verify
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import TidegateError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.sinks.redis.upkeep import merge
from tidegate.sinks.rules.reads import FILLED_FROM
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.open_log import open_log

KEY_GROUPS, TABLES, KEYS = 4, ("t", "u"), [b"k%d" % at for at in range(12)]
WRITES = {
    "claim",
    "publish",
    "put_schemas",
    "seal",
    "merge",
    "announce",
    "forget",
    "list_servers",
    "stamp",
    "",
}
OPTIONS = Options(key_groups=KEY_GROUPS, apply_deadline_s=5, decide_deadline_s=5, keep_versions=2)
names = itertools.count()


class LostError(Exception):
    """The driver's process dies with the server's last writes."""


class Moments:
    """Every state of the server, one after each call that writes, and the way back to them."""

    def __init__(self, server, store, keep_from, back_at, *, die, pointer_too):
        self.client = server.client(decode_responses=False)
        self.keep_from, self.back_at = keep_from, back_at
        self.die, self.pointer_too = die, pointer_too
        self.count, self.kept = 0, None
        calls = store._space.calls
        self._run, calls.run = calls.run, self._counted
        calls.one = lambda call: self._counted([call])[0]

    def _counted(self, calls, **more):
        """One call after the other: each is a moment."""
        replies = []
        for call in calls:
            replies += self._run([call], **more)
            if call.name in WRITES:
                self.written()
        return replies

    def written(self):
        self.count += 1
        if self.count == self.keep_from:
            self.kept = {key: self.client.dump(key) for key in self.client.scan_iter(count=1_000)}
        if self.count == self.back_at and self.kept is not None:
            self.back()
            if self.die:
                raise LostError

    def back(self):
        """The pointer lies on another server, or on this one: ``pointer_too``."""
        for key in self.client.scan_iter(count=1_000):
            if self.pointer_too or b"/" in key:
                self.client.delete(key)
        for key, content in self.kept.items():
            if self.pointer_too or b"/" in key:
                self.client.restore(key, 0, content)
        # It stands for another process: what tells that it is the same one goes.
        self.client.execute_command("DEBUG", "CHANGE-REPL-ID")
        for key in self.client.scan_iter("*:meta", count=1_000):
            self.client.hset(key, "processes", "")


def history(seed, versions):
    """Changes of every version, and the tables that each empties first."""
    chance = random.Random(seed)
    for version in range(1, versions + 1):
        rows = {
            table: {
                key: None if chance.random() < 0.3 else b"%d" % version
                for key in chance.sample(KEYS, chance.randint(0, 8))
            }
            for table in TABLES
            if chance.random() < 0.8
        }
        starts = frozenset(table for table in rows if chance.random() < 0.2)
        for table in starts:  # an emptied table gets rows, not deletes
            rows[table] = {key: value or b"new" for key, value in rows[table].items()}
        yield rows, starts


def expected(batches):
    """The tables after every version."""
    tables, found = {}, [{}]
    for rows, starts in batches:
        tables = {table: {} if table in starts else dict(of) for table, of in tables.items()}
        for table, changes in rows.items():
            of_table = tables.setdefault(table, {})
            of_table.update(changes)
            tables[table] = {key: value for key, value in of_table.items() if value is not None}
        found.append(tables)
    return found


def check_reader(where, states):
    """Every version that can be read is right; a typed refusal is right too. How many were right."""
    store, right = open_store(where.store, where.namespace), 0
    with contextlib.suppress(TidegateError), contextlib.closing(store):
        pointer = store.pointer()
        for entry in store.catalog():
            tables = {}
            for table in entry.tables:
                tables[table] = {}
                for group in range(KEY_GROUPS):
                    for rows in store.scan(entry.read_at(table), group):
                        tables[table] |= dict(
                            zip(*(column.to_pylist() for column in rows.columns), strict=True)
                        )
                found = store.get_many(entry.read_at(table), KEYS).to_pylist()
                assert found == [tables[table].get(key) for key in KEYS]
            assert tables == states[entry.version], (entry.version, pointer)
            right += 1
    return right


class Run:
    def __init__(self, url, seed, versions):
        name = f"n{next(names)}"
        self.where = Endpoints(name, f"memory://lost-{name}", url)
        self.batches = list(history(seed, versions))
        self.states = expected(self.batches)

    def driver(self):
        where = self.where
        log, store = open_log(where.wal, where.namespace), open_store(where.store, where.namespace)
        return Coordinator(where, log, store, OPTIONS)

    def go_on(self, driver, retire):
        """Open, replay what is left, retire now and then."""
        open_namespace(driver, "query")
        for number in range(driver.folded.last_version, len(self.batches)):
            rows, starts = self.batches[number]
            barrier = ArrowBarrier(driver.log, rows, batch("query", number), KEY_GROUPS, starts=starts)
            commit(driver, barrier)
            check_reader(self.where, self.states)
            if (number + retire) % 3:
                retire_up_to(driver.log, driver.store, driver.folded, OPTIONS, lambda: False)
            if (number + retire) % 4 == 0:
                driver.store.stamp(driver.store.pointer().visible)


@pytest.fixture
def server(private_redis):
    return private_redis(settings={"enable-debug-command": "local", "appendonly": "no"})


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10**6),
    versions=st.integers(2, 7),
    keep_from=st.integers(3, 90),
    lost=st.integers(1, 90),
    how=st.fixed_dictionaries({"die": st.booleans(), "pointer_too": st.booleans()}),
    retire=st.integers(0, 2),
    merge_rows=st.sampled_from([1, 2, 256]),
)
def test_whatever_a_server_lost_is_put_back(server, seed, versions, keep_from, lost, how, retire, merge_rows):
    server.client().flushall()
    run = Run(server.url, seed, versions)
    merge.MERGE_ROWS, before = merge_rows, merge.MERGE_ROWS
    try:
        driver = run.driver()
        moments = Moments(server, driver.store, keep_from, keep_from + lost, **how)
        with contextlib.suppress(LostError, TidegateError):
            run.go_on(driver, retire)
        check_reader(run.where, run.states)
        if moments.count < moments.back_at and moments.kept is not None:
            moments.back()  # at the end of all
            check_reader(run.where, run.states)
        another = run.driver()
        run.go_on(another, retire)
        # A rebuild of all keeps no version before FILLED_FROM.
        assert check_reader(run.where, run.states) >= (1 if versions == FILLED_FROM else min(2, versions))
        assert another.store.pointer().visible == versions
        assert not verify(another.log, another.store).findings
    finally:
        merge.MERGE_ROWS = before
