"""Bytes and texts from anywhere, also ones whose checksum fits: a typed error or a value, no other crash.

Bounded, and the same in every CI run. For longer: TIDEGATE_FUZZ=100000 in the environment.
"""

import contextlib
import datetime
import os
import struct

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tidegate.base.urls import redact
from tidegate.cli import app
from tidegate.errors import ConfigError, CorruptError, LineageError, TidegateError
from tidegate.keys.groups import decode_key
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints, parse_store
from tidegate.sinks.cache.buffer.note import decode_note
from tidegate.sinks.records import CatalogEntry
from tidegate.sinks.rules.layout import payload, payloads
from tidegate.sinks.rules.reads import decode
from tidegate.wal import frame, record
from tidegate.wal.file.format import parse_address, parse_decisions_header
from tidegate.wal.fold import Entry, View, fold, fold_all, last_batch_within, recent_version, replay_of
from tidegate.wal.frame import FrameHeader, decode_frame, encode_frame
from tidegate.wal.kafka.address import parse_address as parse_kafka_address
from tidegate.wal.record import FrameRef, decode_record

more = settings(max_examples=int(os.environ.get("TIDEGATE_FUZZ", "30")))
"""So many examples of each."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
TEXT = st.text(max_size=60)
URL_PIECES = st.lists(
    st.sampled_from(
        ["redis", "kafka", "sqlite", "://", ":", "/", "@", "=", ",", "?", "#", "%", "[", "]", "h"]
    )
    | st.text(max_size=6),
    max_size=12,
).map("".join)


def typed(call):
    """Either it works, or the error is one that users are told of."""
    with contextlib.suppress(TidegateError):
        call()


# -- the decision log -----------------------------------------------------------------------------------


def stamped(body: bytes) -> bytes:
    """A record around these bytes, with the head of a right one."""
    right = record.encode_record(
        record.Genesis(
            namespace="u", writer="w", epoch=0, prev_digest="", key_groups=8, name="n", created_at_us=1
        )
    )
    start = right.index(b"{")
    magic = right[: start - record.CHECKSUM_BYTES]
    return magic + record.checksum(body) + body


@more
@given(st.binary(max_size=300))
def test_records_of_any_bytes(content):
    typed(lambda: decode_record(content, "here"))
    typed(lambda: decode_record(stamped(content), "here"))


@more
@given(st.dictionaries(st.sampled_from(["kind", "namespace", "writer", "epoch", "version", "state"]), JSON))
def test_records_whose_checksum_fits(fields):
    typed(lambda: decode_record(stamped(msgspec.json.encode(fields)), "here"))


HEAD = {"namespace": "u", "writer": "w", "epoch": 1, "prev_digest": ""}
GENESIS = record.Genesis(**HEAD | {"epoch": 0}, key_groups=8, name="n", created_at_us=1)
STARTED = fold(None, GENESIS)
OPEN = record.Open(**HEAD, lineage="q")
OPENED = fold(STARTED, OPEN)
DECIDED = record.Decided(
    **HEAD | {"prev_digest": OPENED.digest},
    attempt="a",
    version=1,
    origin=record.BatchOrigin("q", 0, 0, "f"),
    base_version=0,
    manifest_address="at",
    manifest_digest="d",
    tables={"t": record.TableAt("s")},
    parallelism={"n": {"sink": 1}},
    source_offsets="",
    decided_at_us=1,
)
LOG = [GENESIS, OPEN, DECIDED, record.Summary(**HEAD, state=fold(OPENED, DECIDED))]


def places(part, at=()):
    """Where a value of a record's plain form stands."""
    yield at
    children = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for name, child in children:
        yield from places(child, (*at, name))


@more
@given(st.data())
def test_a_log_with_any_value_somewhere_in_a_record_is_folded_or_refused(data):
    """Its checksum fits. What is folded of it can be asked for anything, and summed up."""
    records = [msgspec.to_builtins(one) for one in LOG[data.draw(st.sampled_from([0, 0, 3])) :]]
    for plain in data.draw(st.lists(st.sampled_from(records), min_size=1, max_size=2)):
        *way, last = data.draw(st.sampled_from([place for place in places(plain) if place]))
        part = plain
        for name in way:
            part = part[name]
        part[last] = data.draw(JSON | st.integers(-(2**70), 2**70))
    with contextlib.suppress(CorruptError, ConfigError):
        bodies = [stamped(msgspec.json.encode(plain)) for plain in records]
        state = fold_all(View(), [Entry(at, at + 1, body) for at, body in enumerate(bodies)]).state
        assert 1 <= state.key_groups <= 32_768
        datetime.datetime.fromtimestamp(state.decided_at_us / 1e6, datetime.timezone.utc)
        summary = record.Summary(**HEAD, state=state)
        assert decode_record(record.encode_record(summary), "here") == summary
        with contextlib.suppress(LineageError):
            replay_of(state, record.BatchOrigin("q", 0, 0, "f"))
        for version in (0, 1, state.last_version):
            recent_version(state, version), last_batch_within(state, version)


def test_a_record_that_is_nested_without_end_is_no_crash():
    for body in (b"[" * 60_000, b'{"kind":' * 20_000, b'{"kind":"open","epoch":' + b"9" * 60_000 + b"}"):
        with pytest.raises(TidegateError):
            decode_record(stamped(body), "here")


# -- frames ---------------------------------------------------------------------------------------------


def around(rest: bytes) -> tuple[bytes, FrameRef]:
    content = frame.MAGIC + record.checksum(rest) + rest
    return content, FrameRef(
        "a", len(content), content[len(frame.MAGIC) : frame.HEADER_AT].hex(), (0,), (0,), (1,)
    )


@more
@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_frames_whose_checksum_fits(body, length):
    for rest in (body, struct.pack(">I", length) + body):
        content, ref = around(rest)
        typed(lambda content=content, ref=ref: decode_frame(content, ref, "a", "here"))


HEADER = FrameHeader("n", "a", ("t",), (0,), (0,), (1,))


@more
@given(st.integers(0, 400), st.integers(0, 255))
def test_frames_with_a_changed_byte_and_a_checksum_that_fits(at, byte):
    right = encode_frame(HEADER, pa.array([b"k"], pa.binary()), pa.array([b"+v"], pa.binary()))
    rest = bytearray(right[frame.HEADER_AT :])
    rest[at % len(rest)] = byte
    content, ref = around(bytes(rest))
    typed(lambda: decode_frame(content, ref, "a", "here"))


def test_a_frame_that_would_unfold_to_much_more_is_refused():
    """Frames are written plain; one that is compressed could claim any size."""
    large = pa.array([b"k"], pa.binary()), pa.array([bytes(50_000_000)], pa.binary())
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, frame.schema(), options=options) as writer:
        writer.write_batch(pa.record_batch(list(large), schema=frame.schema()))
    head = msgspec.msgpack.encode(HEADER)
    content, ref = around(struct.pack(">I", len(head)) + head + sink.getvalue().to_pybytes())
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(CorruptError, match="compressed"):
        decode_frame(content, ref, "a", "here")
    assert pa.default_memory_pool().max_memory() <= max(before, 120_000_000)


# -- stores ---------------------------------------------------------------------------------------------


@more
@given(st.binary(max_size=40), st.none() | st.integers(0, 2**60))
def test_stored_values_of_any_bytes(content, at_us):
    for call in (lambda: payload(content, at_us), lambda: payloads(pa.array([content], pa.binary()), at_us)):
        # A value that expires, and no time was given: the caller's mistake.
        with contextlib.suppress(*(() if at_us is not None else (ValueError,))):
            typed(call)


@more
@given(st.binary(max_size=100))
def test_what_stands_in_a_store_beside_the_rows(content):
    typed(lambda: decode("store", content, CatalogEntry))
    typed(lambda: decode("store", b"{" + content + b"}", CatalogEntry))
    decode_note(content)


@more
@given(
    st.binary(max_size=60),
    st.lists(st.sampled_from(["string", "binary", "int", "bigint", "date", "boolean"])),
)
def test_keys_of_any_bytes(key, types):
    typed(lambda: decode_key(key, types or ["string"]))


# -- what people give -----------------------------------------------------------------------------------


@more
@given(TEXT)
def test_addresses(text):
    typed(lambda: parse_address(text, "here"))
    typed(lambda: parse_kafka_address(text, "here"))
    typed(lambda: parse_decisions_header(text.encode(), "here"))


@more
@given(URL_PIECES)
def test_urls(text):
    typed(lambda: parse_store(text))
    typed(lambda: Endpoints.of("n", text, [text]))
    redact(text)


@more
@given(st.dictionaries(st.sampled_from(["key_groups", "parallelism", "max_lease_s", "wal_retain_s"]), JSON))
def test_options(given_options):
    typed(lambda: Options(**given_options))


WORDS = st.sampled_from(["get", "status", "--store", "--json", "--namespace", "n", "-", "="])


@more
@given(st.lists(WORDS | TEXT, max_size=6))
def test_command_lines(argv):
    """The last word is no option of any command: each is refused before it does anything."""
    done = CliRunner().invoke(app, [*(word.replace("\0", "") for word in argv), "--no-such-option"])
    assert done.exit_code in (0, 2), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
