"""Frames: they come back as they were, their bytes do not drift, and a wrong one is named, never applied."""

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import CorruptError
from tidegate.wal import frame as f
from tidegate.wal.record import FrameRef, checksum

RUNS = [
    (0, 0, [(b"a", b"+1"), (b"b", b"-")]),
    (0, 1, [(b"", b"+")]),
    (7, 0, [(b"\xff\0", b"+\0"), (b"\xff\1", b"+" + b"x" * 300)]),
]


def header_of(runs=RUNS, **changes):
    fields = {
        "namespace": "u1",
        "attempt": "a1",
        "names": ("flights", "alerts"),
        "groups": tuple(group for group, _, _ in runs),
        "tables": tuple(table for _, table, _ in runs),
        "rows": tuple(len(rows) for _, _, rows in runs),
    }
    return f.FrameHeader(**fields | changes)


def encoded(runs=RUNS, header=None):
    """A frame and its receipt."""
    header = header or header_of(runs)
    rows = [row for _, _, rows in runs for row in rows]
    keys, values = (pa.array([row[at] for row in rows], pa.binary()) for at in (0, 1))
    content = f.encode_frame(header, keys, values)
    return content, f.frame_ref("s:5:1", content, header)


def resealed(head, body, expected=None):
    """Frame bytes around any header and body, with every checksum right; what an insider could write."""
    rest = len(head).to_bytes(4, "big") + head + body
    content = f.MAGIC + checksum(rest) + rest
    ref = expected or encoded()[1]
    return content, msgspec.structs.replace(ref, bytes=len(content), checksum=content[4:12].hex())


def parts(content):
    """A frame's header and body."""
    end = f.BODY_AT + int.from_bytes(content[f.HEADER_AT : f.BODY_AT], "big")
    return content[f.BODY_AT : end], content[end:]


def plain(runs):
    return [(run.group, run.table, run.keys.to_pylist(), run.values.to_pylist()) for run in runs]


NAMES = ("flights", "alerts")
PLAIN = [
    (group, NAMES[table], [key for key, _ in rows], [value for _, value in rows])
    for group, table, rows in RUNS
]


def test_a_frame_comes_back_run_by_run():
    content, ref = encoded()
    assert plain(f.decode_frame(content, ref, "a1", "here")) == PLAIN
    assert (ref.changes, ref.bytes, ref.address) == (5, len(content), "s:5:1")


ROWS = st.lists(st.tuples(st.binary(max_size=5), st.binary(max_size=20)), min_size=1, max_size=4)


@given(st.lists(st.tuples(st.integers(0, 32_767), st.integers(0, 1), ROWS), min_size=1, max_size=5))
def test_any_rows_come_back(runs):
    content, ref = encoded(runs)
    found = plain(f.decode_frame(content, ref, "a1", "here"))
    assert found == [
        (group, NAMES[table], [key for key, _ in rows], [value for _, value in rows])
        for group, table, rows in runs
    ]


def test_the_head_of_a_frame_does_not_drift():
    """The Arrow part is Arrow's own format; what stands before it is ours."""
    head, body = parts(encoded()[0])
    assert head.hex() == (
        "86a96e616d657370616365a27531a7617474656d7074a26131a56e616d657392a7666c6967687473"
        "a6616c65727473a667726f75707393000007a67461626c657393000100a4726f777393020102"
    )
    assert encoded()[0][:4] == b"TGF1"
    assert encoded()[0][4:12] == checksum(encoded()[0][12:])
    with pa.ipc.open_stream(body) as reader:
        assert reader.schema == f.schema()
        assert reader.read_all().num_rows == 5


def test_every_flipped_bit_is_refused_and_the_place_named():
    """T21."""
    content, ref = encoded([(0, 0, [(b"a", b"+1")])])
    for at in range(len(content)):
        for bit in (1, 128):
            damaged = bytearray(content)
            damaged[at] ^= bit
            with pytest.raises(CorruptError, match=r"file s at 5.*cannot be applied"):
                f.decode_frame(bytes(damaged), ref, "a1", "file s at 5")
    for count in range(0, len(content), 7):
        with pytest.raises(CorruptError, match="not the frame of"):
            f.decode_frame(content[:count], ref, "a1", "here")
    with pytest.raises(CorruptError):
        f.decode_frame(content + b"\0", ref, "a1", "here")


def test_a_whole_frame_of_another_attempt_is_refused():
    """T3: what counts is named by the manifest, never what lies there."""
    content, ref = encoded()
    with pytest.raises(CorruptError, match="attempt a1, not a2"):
        f.decode_frame(content, ref, "a2", "here")


@pytest.mark.parametrize("changes", [{"groups": (0, 0, 6)}, {"tables": (0, 1, 1)}, {"rows": (1, 2, 2)}])
def test_an_index_that_was_not_acked_is_refused(changes):
    content, ref = encoded()
    with pytest.raises(CorruptError, match="index is not the one"):
        f.decode_frame(content, msgspec.structs.replace(ref, **changes), "a1", "here")


def test_another_whole_frame_in_the_same_place_is_refused():
    content, _ = encoded([(0, 0, [(b"a", b"+1")])])
    _, ref = encoded([(0, 0, [(b"a", b"+2")])])
    with pytest.raises(CorruptError, match="checksum"):
        f.decode_frame(content, ref, "a1", "here")


# -- hostile bytes behind a right checksum (T49) --------------------------------------------------


def other_body(schema, *batches):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def batch(*columns):
    return pa.record_batch([pa.array(column, pa.binary()) for column in columns], schema=f.schema())


FIVE = [b"k"] * 5
BODIES = {
    "empty": b"",
    "not Arrow": b"not Arrow at all",
    "no batch": other_body(f.schema()),
    "another schema": other_body(
        pa.schema([("key", pa.string())]), pa.record_batch([pa.array(["x"])], names=["key"])
    ),
    "too few rows": other_body(f.schema(), batch(FIVE[1:], FIVE[1:])),
    "a null key": other_body(f.schema(), batch([*FIVE[1:], None], FIVE)),
    "a null value": other_body(f.schema(), batch(FIVE, [*FIVE[1:], None])),
}


@pytest.mark.parametrize("body", BODIES)
def test_a_body_that_is_not_the_promised_batch_is_refused(body):
    head, _ = parts(encoded()[0])
    content, ref = resealed(head, BODIES[body])
    with pytest.raises(CorruptError, match="here: the frame"):
        f.decode_frame(content, ref, "a1", "here")


@pytest.mark.parametrize(
    "head",
    [b"", b"\xc1", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", msgspec.msgpack.encode({"namespace": "u1"})],
)
def test_a_header_that_is_none_is_refused(head):
    _, body = parts(encoded()[0])
    content, ref = resealed(head, body)
    with pytest.raises(CorruptError, match="cannot be read"):
        f.decode_frame(content, ref, "a1", "here")


def test_a_header_that_claims_more_than_there_is_is_refused():
    content, ref = encoded()
    for length in (len(content), 2**32 - 1):
        rest = length.to_bytes(4, "big") + content[f.BODY_AT :]
        bad = f.MAGIC + checksum(rest) + rest
        lying = msgspec.structs.replace(ref, checksum=bad[4:12].hex())
        with pytest.raises(CorruptError, match=f"claims {length} bytes"):
            f.decode_frame(bad, lying, "a1", "here")


@pytest.mark.parametrize(
    "changes",
    [
        {"tables": (0, 2, 0)},
        {"tables": (0, -1, 0)},
        {"rows": (-1, 3, 3)},
        {"rows": (2, 3)},
        {"groups": (0,)},
        {"names": ()},
    ],
)
def test_an_index_that_makes_no_sense_is_refused_even_if_it_was_acked(changes):
    header = header_of(**changes)
    content, _ = encoded()
    ref = FrameRef("s:5:1", 0, "", header.groups, header.tables, header.rows)
    content, ref = resealed(msgspec.msgpack.encode(header), parts(content)[1], ref)
    with pytest.raises(CorruptError, match="here"):
        f.decode_frame(content, ref, "a1", "here")


@given(st.data())
def test_a_changed_byte_behind_right_checksums_is_refused_or_harmless(data):
    head, body = parts(encoded()[0])
    whole = bytearray(head + body)
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    content, ref = resealed(bytes(whole[: len(head)]), bytes(whole[len(head) :]))
    try:
        runs = f.decode_frame(content, ref, "a1", "here")
    except CorruptError:
        return
    assert [len(run.keys) for run in runs] == [2, 1, 2]


@given(st.binary(max_size=200))
def test_hostile_bytes_end_in_an_error_that_says_so(content):
    head, body = parts(encoded()[0])
    for given_head, given_body in ((content, body), (head, content), (content, b"")):
        bad, ref = resealed(given_head, given_body)
        with pytest.raises(CorruptError):
            f.decode_frame(bad, ref, "a1", "here")
    for bad in (content, f.MAGIC + content):
        ref = FrameRef("s:5:1", len(bad), bad[4:12].hex(), (), (), ())
        with pytest.raises(CorruptError):
            f.decode_frame(bad, ref, "a1", "here")


@pytest.mark.parametrize("count", range(16))
def test_a_frame_too_short_for_its_own_head_is_refused(count):
    rest = b"\0" * max(count - 12, 0)
    content = (f.MAGIC + checksum(rest) + rest)[:count]
    ref = FrameRef("s:5:1", len(content), content[4:12].hex(), (), (), ())
    with pytest.raises(CorruptError):
        f.decode_frame(content, ref, "a1", "here")
