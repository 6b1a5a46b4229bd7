"""Local state on real stores: instances read again what they wrote, over rescales, version by version."""

import itertools
import json
import os

import pytest

from tidegate.base.names import LOCAL
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Identity
from tidegate.spark.state.call_deadline import Deadline
from tidegate.spark.state.local_state import LocalWork, item_key, run_instance, table_of
from tidegate.spark.state.output_rows import OutputRows
from tidegate.spark.state.udf_runner import UdfRunner
from tidegate.testing.store.harness import EPOCH, KEY_GROUPS, get, put, scanned, stamp
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.staging.spec import StageSpec

TABLE = table_of("seen")
ITEMS = TableSchema((Column("instance", "int"), Column("item", "int")), (Column("value", "binary"),), "bytes")
ROWS = TableSchema((), (Column("n", "bigint"),))
TABLES = (LOCAL, TABLE)
KEY_TYPES = (("string", "int"), ("int", "int"))


def halves(state, n):
    return [state[part::n] for part in range(n)]


def joined(states):
    return [item for state in states for item in state]


def batch(store, version, parallelism, fn, redistribute):
    """One batch of all instances, published; how many rows it changed."""
    uuid = store.identity().uuid
    at_us = stamp(version - 1).decided_at_us
    sizes = (100_000, 200, 10_000)
    spec = StageSpec(uuid, f"a{version}", TABLES, KEY_TYPES, *sizes, KEY_GROUPS, at_us=at_us)
    starts = (0, 0) if version > 1 else (-1, -1)
    work = LocalWork(
        spec,
        0,
        "seen",
        redistribute,
        ITEMS,
        ROWS,
        {},
        version - 1,
        starts,
        "batch 7",
        300.0,
        parallelism,
        parallelism,
    )
    changes = {name: {} for name in TABLES}
    with Deadline(work.deadline_s) as deadline:
        for index in range(parallelism):
            calls = UdfRunner(spec, {}, OutputRows(index), deadline, lambda: None)
            for change in run_instance(work, fn, store, index, iter(()), calls):
                assert change.key not in changes[change.table], "two instances wrote one row"
                changes[change.table][change.key] = None if change.value == b"-" else change.value[1:]
    put(store, version, changes)
    return sum(map(len, changes.values()))


def lists(store, version):
    """The state at a version as it lies there; every row has to belong to it."""
    told = {
        int(key.split(b":")[-1].rstrip(b",")): json.loads(value)
        for key, value in scanned(store, LOCAL, version).items()
    }
    items = scanned(store, TABLE, version)
    found = []
    for index in range(len(told)):
        assert told[index]["parallelism"] == len(told)
        found.append([items.pop(item_key(index, place)) for place in range(told[index]["items"])])
    assert not items, "rows that belong to no list"
    return found


def follow(url, redistribute, **options):
    store = open_store(url, f"local-{os.urandom(4).hex()}", options)
    try:
        store.create(Identity(os.urandom(8).hex(), "suite", KEY_GROUPS))
        store.claim(EPOCH, "writer-1")
        steps = [2, 5, 3, 3, 1]
        for version, parallelism in enumerate(steps, 1):

            def add(instance, _rows, state, _emit, version=version):
                """Some items more, a long one and an empty one among them; the fourth batch adds none."""
                new = [b"%d.%d" % (version, instance.index), b"", b"long" * 1000] if version != 4 else []
                return [*state, *new[: instance.index + 1]]

            changed = batch(store, version, parallelism, add, redistribute)
            assert bool(changed) == (version != 4), "the state as given writes nothing"
        whole = [lists(store, version) for version in range(1, len(steps) + 1)]
        assert [len(found) for found in whole] == steps
        for version, (before, after) in enumerate(itertools.pairwise(whole), 2):
            left = joined(after)
            for item in joined(before):
                left.remove(item)  # ValueError: it was lost
            added = sum(min(index + 1, 3) for index in range(len(after)))
            assert len(left) == (added if version != 4 else 0)
        assert get(store, TABLE, [item_key(4, 0)], 3) == [None], "what a lost instance held is deleted"
    finally:
        store.drop()
        store.close()


@pytest.mark.parametrize("redistribute", ["split", (halves, joined)])
def test_local_state_on_redis_is_dealt_out_anew_and_nothing_is_lost_i1(redis, redistribute):
    follow(redis.url, redistribute)


def test_local_state_on_cassandra_is_dealt_out_anew_and_nothing_is_lost_i1(cassandra):
    follow(cassandra.url, "split", create=True, replication=1)
