"""What an apply sends to Cassandra, seen without a server."""

import struct
import types
import uuid

import pytest

from tidegate.sinks.cassandra import rows
from tidegate.sinks.cassandra.client.batch import bound, routing_key
from tidegate.sinks.cassandra.namespace import Highest
from tidegate.sinks.cassandra.rows import Rows
from tidegate.testing.store.harness import runs_of, stamp
from tidegate.wal.frame import Chunk

NODES = [frozenset({"one", "two"}), frozenset({"two", "three"})]


@pytest.fixture
def sent():
    """Batches by what they were sent for: rows, then notes."""
    return []


@pytest.fixture
def space(sent):
    def replicas(key):
        (group,) = struct.unpack(">i", key[-5:-1])
        return NODES[group % 2]

    return types.SimpleNamespace(
        made=types.SimpleNamespace(space=uuid.uuid4(), highest=Highest()),
        settings=types.SimpleNamespace(keyspace="k"),
        write_at=1,
        look=lambda: None,
        write=lambda *_: None,
        session=types.SimpleNamespace(
            prepared=lambda name: types.SimpleNamespace(query_id=name.encode()),
            each=lambda requests: sent.append([batch for batch, _ in requests]) or [],
            replicas=replicas,
        ),
    )


def partition(space, group):
    return space.made.space.bytes, b"t", struct.pack(">i", group)


def packed_of(batch):
    packed, _ = batch._statements_and_parameters
    return packed


def groups_in(batch, space, groups):
    """So many statements of each key group are in a batch."""
    found = {group: packed_of(batch).body.count(bound(*partition(space, group))) for group in groups}
    assert sum(found.values()) == packed_of(batch).statements
    return {group: statements for group, statements in found.items() if statements}


def test_each_large_batch_goes_to_the_replicas_of_its_own_partition_in_turns(monkeypatch, space, sent):
    monkeypatch.setattr("tidegate.sinks.cassandra.client.batch.BATCH_BYTES", 400)
    monkeypatch.setattr(rows, "TOGETHER_BYTES", 200)
    runs = runs_of({"t": {b"key-%d" % n: b"value" for n in range(60)}})
    Rows(space).apply(stamp(1), [Chunk(0, runs)])
    data, _notes = sent
    groups = {routing_key(partition(space, run.group)): run.group for run in runs}
    assert len(data) > 2 * len(runs) > 2
    for batch in data:
        assert list(groups_in(batch, space, groups.values())) == [groups[batch.routing_key]]
    first = [batch.routing_key for batch in data[: len(runs)]]
    assert len(set(first)) == len(runs), "one of each partition before the second of any"


@pytest.mark.parametrize("value_bytes", [10, 300, 3_000])
def test_small_batches_go_together_where_the_same_nodes_have_their_partitions(value_bytes, space, sent):
    runs = runs_of({"t": {b"key-%d" % n: b"v" * value_bytes for n in range(300)}}, key_groups=64)
    Rows(space).apply(stamp(1), [Chunk(0, runs)])
    data, _notes = sent
    groups, seen = [run.group for run in runs], []
    for batch in data:
        mine = groups_in(batch, space, groups)
        seen += mine
        assert routing_key(partition(space, next(iter(mine)))) == batch.routing_key
        if len(mine) > 1:
            assert len({NODES[group % 2] for group in mine}) == 1
            assert len(mine) <= rows.TOGETHER
            assert packed_of(batch).weight <= rows.TOGETHER_BYTES
    assert sorted(seen) == sorted(groups), "each key group once"
    assert sum(packed_of(batch).statements for batch in data) == 300
    together = len(data) < len(groups)
    assert together == (value_bytes < 3_000)
