"""Timeouts of keyed state on servers, after a restore, a backup, and with a checkpoint made again.

Tables of fewer key groups are in all of them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from services.support.cassandra.server import CassandraServer
from services.support.redis.server import RedisServer
from support.cli import done, run
from tidegate.errors import LineageError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import the tests

SCHEMA = "k string, n bigint"
OPTIONS = {"table_key_groups": {"open": 8}, "keep_versions": 50, "allow_unsafe": True}


def add(key, rows, state, emit):
    return {"n": (state or {"n": 0})["n"] + sum(row["n"] for row in rows)}


def close(key, state, emit):
    emit("closed", key, state)


def write(txn, rows):
    outputs = {"closed": ("k string", "n bigint")}
    times = {"timeout": "10 min", "on_timeout": close}
    txn.update("open", rows, "k", add, schema="n bigint", outputs=outputs, **times)


def rows(**numbers):
    return [{"k": key, "n": n} for key, n in numbers.items()]


def words(place):
    return ["--store", place.store, "--namespace", "flights", *map(str, place.log.words)]


@pytest.fixture
def query(stream, pass_by):
    """A stream whose keys a to d began at minute 0, and of which b had a row at minute 6, in version 2."""
    place = stream(SCHEMA)
    yield from begun(place, pass_by)


def begun(place, pass_by, **options):
    place.commit(place.sink(parallelism=3, **OPTIONS, **options).each(write), rows(a=1, b=1, c=1, d=1))
    pass_by(6)
    place.commit(place.sink(parallelism=3, **OPTIONS, **options).each(write), rows(b=1))
    yield place


def one_batch(place, batch, **options):
    place.commit(place.sink(parallelism=2, **OPTIONS, **options).each(write), batch)


@pytest.fixture(params=["redis", "cassandra"])
def on_server(request, tmp_path):
    kind = {"redis": RedisServer, "cassandra": CassandraServer}[request.param]
    with kind(tmp_path / "server") as server:
        url = server.url if request.param == "cassandra" else f"redis://{server.address}"
        yield url, ({"create": True} if request.param == "cassandra" else {})


def test_each_key_times_out_once_on_a_server(stream, pass_by, on_server):
    place = stream(SCHEMA)
    place.store, options = on_server[0], {"store_options": on_server[1]}
    for _ in begun(place, pass_by, **options):
        pass_by(6)
        one_batch(place, [], **options)
        closed = {key: {"n": 1} for key in "acd"}
        assert (place.rows("open"), place.rows("closed")) == ({"b": {"n": 2}}, closed)
        pass_by(6)
        one_batch(place, rows(e=1), **options)
        assert (place.rows("open"), place.rows("closed")) == ({"e": {"n": 1}}, closed | {"b": {"n": 2}})
        assert len(place.rows("_due.open")) == 1
    done("drop", *words(place), "--yes", "--force")


def test_a_restored_version_has_its_own_due_times(query, pass_by):
    """Version 3 closed a, c and d. As of version 1 nothing is closed, and b has its first due time again."""
    pass_by(6)
    one_batch(query, [])
    assert query.rows("closed").keys() == set("acd")
    done("restore", "--to", "1", "--yes", *words(query))
    assert query.rows("closed") == {}
    assert query.rows("open") == {key: {"n": 1} for key in "abcd"}
    one_batch(query, [])
    assert query.rows("closed") == {key: {"n": 1} for key in "abcd"}
    assert query.rows("open") == query.rows("_due.open") == query.rows("_due_at.open") == {}


def test_a_checkpoint_that_was_made_again_keeps_due_times(query, pass_by):
    shutil.rmtree(query.checkpoint)
    for path in query.input.iterdir():
        path.unlink()
    pass_by(6)
    query.add([])
    ran = query.run(query.sink(parallelism=2, **OPTIONS).each(write))
    assert isinstance(ran.error, LineageError)
    done("adopt", "--checkpoint", query.checkpoint, "--yes", *words(query))
    one_batch(query, [])
    assert query.rows("closed") == {key: {"n": 1} for key in "acd"}
    assert query.rows("open") == {"b": {"n": 2}}


@pytest.mark.parametrize("way", ["continue", "new"])
def test_a_backup_has_due_times_and_tables_of_fewer_key_groups(query, pass_by, way):
    before = {table: query.rows(table) for table in ("open", "_due.open", "_due_at.open")}
    assert all(before.values())
    done("backup", query.folder / "backup", *words(query))
    shutil.rmtree(Path(query.store.removeprefix("sqlite://")))
    if way == "new":
        run("drop", *words(query), "--yes", "--force")
        shutil.rmtree(query.folder / "wal", ignore_errors=True)
    done("restore-from", query.folder / "backup", *words(query), "--yes")
    assert {table: query.rows(table) for table in before} == before
    pass_by(6)
    one_batch(query, [])
    assert query.rows("closed") == {key: {"n": 1} for key in "acd"}
    assert query.rows("open") == {"b": {"n": 2}}
