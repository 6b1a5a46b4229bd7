"""Packed batches against the driver's own encoding of the same rows, byte for byte."""

import io
import itertools
import struct

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

pytest.importorskip("cassandra")

from cassandra import ConsistencyLevel
from cassandra.protocol import BatchMessage, ProtocolHandler
from cassandra.query import BatchType, Statement

from tidegate.sinks.cassandra.client import batch as cassandra_batch
from tidegate.sinks.cassandra.client.batch import (
    BATCH_BYTES,
    BATCH_ROWS,
    SMALL_BYTES,
    Packed,
    PackedBatch,
    Protocol,
    bigint,
    bound,
    routing_key,
    rows,
    rows_of_groups,
    single,
    statement,
)

QUERY, OTHER = b"0123456789abcdef", b"another"
SPACE, TABLE, GROUP, VERSION = b"\x07" * 16, "tâble".encode(), b"\0\0\0\x05", bigint(7)
PARTITION = (SPACE, TABLE, GROUP)
DECIDED_AT_US = 1_700_000_000_000_001
QUORUM = ConsistencyLevel.LOCAL_QUORUM

some_bytes = st.binary(max_size=40)
some_rows = st.lists(st.tuples(some_bytes, some_bytes), max_size=30)


def in_arrow(content, before, after):
    """An Arrow array, as a slice of a larger one."""
    whole = pa.array([b"x" * 5] * before + list(content) + [b"y"] * after, pa.binary())
    return whole.slice(before, len(content))


def packed(found, with_values=True, before=0, after=0):
    """What the library sends for these rows."""
    keys, values = ([row[at] for row in found] for at in (0, 1))
    head = statement(QUERY, 6 if with_values else 5) + bound(*PARTITION)
    in_values = in_arrow(values, after, before) if with_values else None
    return list(rows(head, in_arrow(keys, before, after), bound(VERSION), in_values))


def params(found, with_values=True):
    """What the driver is given for the same."""
    return [
        (True, QUERY, [*PARTITION, key, VERSION, *([value] if with_values else [])]) for key, value in found
    ]


def body(message, protocol_version):
    file = io.BytesIO()
    message.send_body(file, protocol_version)
    return file.getvalue()


def by_the_driver(queries, protocol_version):
    message = BatchMessage(BatchType.UNLOGGED, queries, QUORUM, timestamp=DECIDED_AT_US)
    return ProtocolHandler.encode_message(
        message, 3, protocol_version, None, allow_beta_protocol_version=False
    )


def by_us(content, protocol_version):
    """As a session does it with a ``PackedBatch``."""
    batch = PackedBatch("tidegate", PARTITION, content, DECIDED_AT_US, QUORUM)
    assert batch.is_idempotent == (content.weight <= SMALL_BYTES)
    assert (batch.keyspace, batch.routing_key) == ("tidegate", routing_key(PARTITION))
    message = BatchMessage(batch.batch_type, batch._statements_and_parameters, batch.consistency_level)
    return Protocol.encode_message(message, 3, protocol_version, None, allow_beta_protocol_version=False)


@pytest.mark.parametrize("protocol_version", [4, 5])
@pytest.mark.parametrize("with_values", [True, False])
@given(found=some_rows, before=st.integers(0, 3), after=st.integers(0, 3))
def test_the_same_bytes_as_the_drivers(protocol_version, with_values, found, before, after):
    batches = packed(found, with_values, before, after)
    assert [content.statements for content in batches] == ([len(found)] if found else [])
    for content in batches:
        theirs = by_the_driver(params(found, with_values), protocol_version)
        assert by_us(content, protocol_version) == theirs
        assert content.weight == len(content.body)


@pytest.mark.parametrize("protocol_version", [4, 5])
@settings(max_examples=50)
@given(found=some_rows, bytes_=st.integers(1, 300), at_once=st.integers(1, 7))
def test_cut_by_bytes_and_by_rows(protocol_version, found, bytes_, at_once):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cassandra_batch, "BATCH_BYTES", bytes_)
        patch.setattr(cassandra_batch, "BATCH_ROWS", at_once)
        batches = packed(found)
    assert [content.statements for content in batches] == greedy(found, bytes_, at_once)
    left = iter(found)
    for content in batches:
        some = list(itertools.islice(left, content.statements))
        assert by_us(content, protocol_version) == by_the_driver(params(some), protocol_version)


@pytest.mark.parametrize("with_values", [True, False])
@settings(max_examples=60)
@given(
    found=some_rows,
    groups=st.lists(st.integers(0, 2**15 - 1), min_size=30, max_size=30),
    bytes_=st.integers(1, 300),
    at_once=st.integers(1, 7),
)
def test_many_key_groups_at_once_are_what_each_is_alone(with_values, found, groups, bytes_, at_once):
    of_rows = np.array(groups[: len(found)], np.int64) // 2**13 * 2**13  # some of them next to each other
    keys, values = (in_arrow([row[at] for row in found], 1, 1) for at in (0, 1))
    given_values = values if with_values else None
    head = statement(QUERY, 6 if with_values else 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cassandra_batch, "BATCH_BYTES", bytes_)
        patch.setattr(cassandra_batch, "BATCH_ROWS", at_once)
        together = [
            (group, list(some))
            for group, some in rows_of_groups(
                head + bound(SPACE, TABLE), of_rows, keys, bound(VERSION), given_values
            )
        ]
        alone, at = [], 0
        for group, some in itertools.groupby(of_rows.tolist()):
            count = len(list(some))
            of_group = bound(SPACE, TABLE, struct.pack(">i", group))
            cut = None if given_values is None else values.slice(at, count)
            alone.append((group, list(rows(head + of_group, keys.slice(at, count), bound(VERSION), cut))))
            at += count
    assert together == alone


def greedy(found, bytes_, at_once):
    """How many rows go into each batch: as many as fit, and at least one."""
    counts, weight = [], 0
    for row in found:
        more = packed([row])[0].weight
        if not counts or weight + more > bytes_ or counts[-1] == at_once:
            counts, weight = [*counts, 0], 0
        counts[-1], weight = counts[-1] + 1, weight + more
    return counts


def test_a_batch_is_as_large_as_it_may_be():
    found = [(b"%06d" % n, b"v" * 100) for n in range(2_000)]
    row = packed(found[:1])[0].weight
    batches = packed(found)
    fits = BATCH_BYTES // row
    assert [content.statements for content in batches[:-1]] == [fits] * (len(found) // fits)
    small = [(b"", b"")] * (BATCH_ROWS + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cassandra_batch, "BATCH_BYTES", 2**30)
        assert [content.statements for content in packed(small)] == [BATCH_ROWS, 1]


def test_a_row_larger_than_a_batch_is_one_of_its_own():
    found = [(b"a", b"1"), (b"b", b"x" * BATCH_BYTES), (b"c", b"2"), (b"d", b"3")]
    assert [content.statements for content in packed(found)] == [1, 1, 2]


@pytest.mark.parametrize("protocol_version", [4, 5])
@given(values=st.lists(some_bytes, max_size=5))
def test_one_statement_and_two_kinds_together(protocol_version, values):
    packed_one = single(statement(OTHER, len(values)), *values)
    assert packed_one.statements == 1
    both = Packed(2, packed_one.body + packed([(b"k", b"v")])[0].body)
    theirs = by_the_driver([(True, OTHER, values), *params([(b"k", b"v")])], protocol_version)
    assert by_us(both, protocol_version) == theirs


@given(parts=st.lists(some_bytes, min_size=2, max_size=4))
def test_the_routing_key_is_the_drivers(parts):
    theirs = Statement()
    theirs.routing_key = list(parts)
    assert routing_key(tuple(parts)) == theirs.routing_key


def test_other_messages_pass_as_they_are():
    queries = params([(b"k", b"v")])
    message = BatchMessage(BatchType.UNLOGGED, queries, QUORUM, timestamp=DECIDED_AT_US)
    ours = Protocol.encode_message(message, 3, 4, None, allow_beta_protocol_version=False)
    assert ours == by_the_driver(queries, 4)
