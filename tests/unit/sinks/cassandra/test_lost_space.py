"""A retirement while the store loses its namespace and is rebuilt in another space, seen without a server."""

import datetime
import os
import types
import uuid

import msgspec
import pytest

from tidegate.errors import StoreLostError
from tidegate.sinks.cassandra.client.settings import CONSISTENCY
from tidegate.sinks.cassandra.namespace import HERE, Written
from tidegate.sinks.cassandra.store import CassandraStore
from tidegate.sinks.records import Identity
from tidegate.sinks.rules.reads import encode
from tidegate.testing.store.harness import KEY_GROUPS, entry, runs_of, stamp
from tidegate.wal.frame import Chunk
from tidegate.wal.record import TableAt
from tidegate.wal.value_flags import DELETE

ANNOUNCED, BASE = 10, 5
"""The horizon that an older driver announced, and that of the rebuilt store, which keeps more versions."""
AT = datetime.datetime(2026, 11, 24)  # noqa: DTZ001 - as the driver gives it
ENTRY = msgspec.structs.replace(
    entry(ANNOUNCED), tables={"t": TableAt("schema-1", start=ANNOUNCED, expires=True)}
)
RUNS = runs_of({"t": {b"key": b"value"}})


class Cluster:
    """A session of a cluster with one namespace. ``deletes``: the spaces in which something was deleted."""

    local_dc = "dc"

    def __init__(self):
        self.deletes = set()
        self.create(ANNOUNCED)

    def create(self, horizon):
        self.space, self.horizon = uuid.uuid4(), horizon

    def rows(self, name, *values, level):
        if name == "find":
            content = Identity("u", "n", KEY_GROUPS), Written(CONSISTENCY, "dc")
            return [(self.space, *(encode(each).decode() for each in content), HERE)]
        if values[0] != self.space:
            return []
        if name == "pointer":
            return [(20, "", 2, "w", self.horizon, None, None, None, None, AT)]
        if name == "catalog":
            return [(encode(ENTRY).decode(), AT)]
        return []

    def has_tables(self):
        return True

    def prepared(self, name):
        return types.SimpleNamespace(query_id=name.encode())

    def replicas(self, key):
        return frozenset({"node"})

    def bind(self, name, values, level):
        return types.SimpleNamespace(routing_key=values[1].bytes)

    def each(self, requests):
        self.deletes |= {uuid.UUID(bytes=_space_in(batch.routing_key)) for batch, _ in requests}
        return []

    def write(self, name, *values, level):
        self.deletes |= {value for value in values if isinstance(value, uuid.UUID)}

    def decide(self, *steps, level, again=False):
        return (True,)


def _space_in(routing_key):
    return routing_key if len(routing_key) == 16 else routing_key[2:18]


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def store(cluster):
    store = CassandraStore("cassandra://c/k", "n")
    store._space._session, store._space._pid = cluster, os.getpid()
    assert store.pointer().horizon == ANNOUNCED
    return store


def rebuild(cluster, store):
    """Lose the namespace, create it again with more versions, and let another thread of the store see it."""
    cluster.create(BASE)
    with pytest.raises(StoreLostError):
        store.pointer()
    assert store.pointer().horizon == BASE


def test_an_announced_version_is_retired(cluster, store):
    assert store.retire(stamp(ANNOUNCED), {}, [Chunk(0, RUNS)])
    assert cluster.deletes == {cluster.space}


def test_nothing_that_a_rebuilt_store_keeps_is_retired(cluster, store):
    """I8: versions 5 to 9 are readable there, and rows of them would be missing without a refusal."""
    rebuild(cluster, store)
    assert not store.retire(stamp(ANNOUNCED), {}, [Chunk(0, RUNS)])
    assert cluster.deletes == set()


def test_a_retirement_during_a_rebuild_ends_in_the_lost_space(cluster, store):
    lost = cluster.space

    def changes():
        yield Chunk(0, RUNS)
        rebuild(cluster, store)
        yield Chunk(1, RUNS)

    store.retire(stamp(ANNOUNCED), {}, changes())
    assert cluster.deletes == {lost}


def test_an_expiry_check_during_a_rebuild_ends_in_the_lost_space(cluster, store, monkeypatch):
    lost, pages = cluster.space, cluster.rows

    def rows(name, *values, level):
        if name != "first_newest" or cluster.deletes or cluster.space != lost:
            return pages(name, *values, level=level)
        rebuild(cluster, store)
        return [(b"key", ANNOUNCED, DELETE, 1)]

    monkeypatch.setattr(cluster, "rows", rows)
    store.drop_expired(100)
    assert cluster.deletes == {lost}
