"""A query with states and timeouts continues with other key groups, from its own checkpoint (I2)."""

from __future__ import annotations

import contextlib
import sys

import pytest
from pyspark import cloudpickle

import tidegate
from tidegate.base import failpoints
from tidegate.committers.operations.local_coordinator import coordinator_for
from tidegate.committers.transfer.rekey.move import finish, follow
from tidegate.errors import ConfigError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints, parse_store

pytestmark = [pytest.mark.spark, pytest.mark.slow]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import the tests

NEW = "moved"
KEYS = "abcdefgh"


def add(key, rows, state, emit):
    return {"n": (state or {"n": 0})["n"] + sum(row["n"] for row in rows)}


def close(key, state, emit):
    emit("closed", key, state)


def write(txn, rows):
    outputs = {"closed": ("k string", "n bigint")}
    txn.update("open", rows, "k", add, schema="n bigint", outputs=outputs, timeout="10 min", on_timeout=close)
    txn.reduce("sums", rows, "k", reducers={"n": "sum"})


def rows(**numbers):
    return [{"k": key, "n": n} for key, n in numbers.items()]


@pytest.fixture(autouse=True)
def disarmed():
    yield
    failpoints.arm(None)


@contextlib.contextmanager
def coordinators(place):
    where = [
        Endpoints.of(name, place.log.keywords["wal"], [parse_store(place.store)]) for name in ("flights", NEW)
    ]
    with coordinator_for(where[0]) as old, coordinator_for(where[1], Options(key_groups=48)) as new:
        yield old, new


def test_sums_and_due_times_survive_while_the_query_runs_and_a_batch_that_comes_again_counts_once(
    stream, pass_by
):
    place = stream("k string, n bigint")
    followed = []
    commit = place.sink(parallelism=2, key_groups=16).each(write)

    def each(batch_df, batch_id):
        commit(batch_df, batch_id)
        with coordinators(place) as (old, new):
            followed.append(follow(old, new).copied)

    place.commit(each, rows(**dict.fromkeys(KEYS, 1)))
    pass_by(6)
    place.commit(each, rows(a=1, b=1))
    assert followed == [1, 2]
    place.add(rows(a=5))
    failpoints.arm("commit.before_return=raise")
    assert place.run(place.sink(parallelism=2).each(write)).error  # visible, and Spark did not note it
    failpoints.arm(None)
    with coordinators(place) as (old, new):
        compared = finish(old, new, follow(old, new).source, lambda _, __: None)
    assert compared["sums"] == len(KEYS)
    assert isinstance(place.run(place.sink(parallelism=2).each(write)).error, ConfigError)
    moved = place.sink(parallelism=3, key_groups=48, namespace=NEW).each(write)
    place.run(moved)  # the batch comes again
    pass_by(6)
    place.commit(moved, rows(b=1))
    with tidegate.connect(place.store, NEW) as gate:
        assert {key: row["n"] for key, row in gate.table("sums").scan()} == dict.fromkeys(KEYS, 1) | {
            "a": 7,
            "b": 3,
        }
        assert {key: row["n"] for key, row in gate.table("open").scan()} == {"a": 7, "b": 3}
        assert {key for key, _ in gate.table("closed").scan()} == set("cdefgh")
        assert gate.version() == 5  # the copy, two followed, the last one, and one batch
