"""What an apply sends to Cassandra, seen without a server."""

import struct
import types
import uuid

from tidegate.sinks.cassandra_batch import bound, routing_key
from tidegate.sinks.cassandra_rows import Rows
from tidegate.testing.store_harness import runs_of, stamp
from tidegate.wal.frame import Chunk


def test_each_batch_goes_to_the_replicas_of_its_own_partition_in_turns(monkeypatch):
    monkeypatch.setattr("tidegate.sinks.cassandra_batch.BATCH_BYTES", 400)
    sent = []
    space = types.SimpleNamespace(
        made=types.SimpleNamespace(space=uuid.uuid4()),
        settings=types.SimpleNamespace(keyspace="k"),
        merged=0,
        write_at=1,
        look=lambda: None,
        write=lambda *_: None,
        session=types.SimpleNamespace(
            prepared=lambda name: types.SimpleNamespace(query_id=name.encode()),
            each=lambda requests: sent.append([batch for batch, _ in requests]) or [],
        ),
    )
    runs = runs_of({"t": {b"key-%d" % n: b"value" for n in range(60)}})
    Rows(space).apply(stamp(1), [Chunk(0, runs)])
    data, _notes = sent
    partitions = {
        routing_key(parts): bound(*parts)
        for parts in [(space.made.space.bytes, b"t", struct.pack(">i", run.group)) for run in runs]
    }
    assert len(data) > 2 * len(runs) == 2 * len(partitions) > 2
    for batch in data:
        packed, _ = batch._statements_and_parameters
        assert packed.body.count(partitions[batch.routing_key]) == packed.statements
    first = [batch.routing_key for batch in data[: len(runs)]]
    assert len(set(first)) == len(runs), "one of each partition before the second of any"
