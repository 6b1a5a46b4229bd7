"""One task's change-log: the last change of each key, frames of the right size, refusals that name a row."""

import itertools
import uuid

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import BadRecordError, WalUnavailableError
from tidegate.wal.frame import decode_frame
from tidegate.wal.memory_log import MemoryLog, forget
from tidegate.wal.staging.changelog import ROW_BYTES, as_changes, cut, stage_task
from tidegate.wal.staging.last_per_key import last_per_key
from tidegate.wal.staging.spec import CHANGES, StageSpec
from tidegate.wal.staging.validate import refused

SPEC = StageSpec(
    namespace="u1",
    attempt="a1",
    tables=("flights", "alerts"),
    key_types=(("string",), ("binary",)),
    frame_bytes=900_000,
    key_bytes_max=100,
    value_bytes_max=1_000,
    key_groups=8,
)


def _checked(batches, of):
    return refused(as_changes(batches), of)


def spec(**changes):
    return msgspec.structs.replace(SPEC, **changes)


def batch(rows):
    """A batch of (group, table, key, value) rows."""
    columns = list(zip(*rows, strict=True)) or [()] * 4
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, CHANGES, strict=True)], schema=CHANGES
    )


def rows_of(batches):
    return [tuple(row.values()) for one in batches for row in one.to_pylist()]


def frames_of(batches, of=SPEC):
    """Per frame: its header, and its rows as (group, table, key, value)."""
    found = []
    for header, keys, values in cut(batches, of):
        runs = [
            (group, table)
            for group, table, rows in zip(header.groups, header.tables, header.rows, strict=True)
            for _ in range(rows)
        ]
        pairs = zip(runs, keys.to_pylist(), values.to_pylist(), strict=True)
        found.append((header, [(*run, key, value) for run, key, value in pairs]))
    return found


def split(rows, cuts):
    """The rows as batches, cut at these places."""
    places = sorted({0, len(rows), *(at % (len(rows) + 1) for at in cuts)})
    return [batch(rows[start:end]) for start, end in itertools.pairwise(places)]


KEYS = st.binary(max_size=2)
CHANGE = st.tuples(st.integers(0, 3), st.integers(0, 1), KEYS, st.binary(max_size=20).map(lambda v: b"+" + v))
SORTED = st.lists(CHANGE, max_size=40).map(lambda rows: sorted(rows, key=lambda row: row[:3]))
CUTS = st.lists(st.integers(0, 40), max_size=6)


# -- last per key -----------------------------------------------------------------------------


@given(SORTED, CUTS)
def test_the_last_change_of_a_key_wins_wherever_batches_end(rows, cuts):
    """T44, against a dict."""
    wanted = {row[:3]: row[3] for row in rows}
    found = rows_of(last_per_key(split(rows, cuts)))
    assert found == [(*key, value) for key, value in sorted(wanted.items())]


def test_no_batches_give_nothing():
    assert list(last_per_key([])) == []
    assert list(cut([], SPEC)) == []
    assert list(_checked([batch([]), batch([])], SPEC)) == []


def test_batches_are_taken_one_by_one():
    """I11: one batch and the row before it are all that is held."""
    taken = itertools.count()

    def source():
        for index in range(10):
            next(taken)
            yield batch([(index, 0, b"k", b"+")])

    stream = last_per_key(source())
    next(stream)
    assert next(taken) <= 2


# -- cutting ------------------------------------------------------------------------------------


@given(SORTED, CUTS, st.integers(1, 200))
def test_frames_hold_all_rows_in_order_and_keep_to_their_size(rows, cuts, frame_bytes):
    found = frames_of(split(rows, cuts), spec(frame_bytes=frame_bytes))
    assert [row for _, inside in found for row in inside] == rows
    for header, inside in found:
        size = sum(len(key) + len(value) + ROW_BYTES for _, _, key, value in inside)
        assert size <= frame_bytes or len(inside) == 1
        assert all(count > 0 for count in header.rows)
        runs = list(zip(header.groups, header.tables, strict=True))
        assert runs == [run for run, _ in itertools.groupby(row[:2] for row in inside)]
    for (_, one), (_, other) in itertools.pairwise(found):  # no frame ends early
        following = len(other[0][2]) + len(other[0][3]) + ROW_BYTES
        assert sum(len(key) + len(value) + ROW_BYTES for _, _, key, value in one) + following > frame_bytes


def test_the_header_says_whose_frame_it_is():
    ((header, _),) = frames_of([batch([(3, 1, b"k", b"+")])])
    assert (header.namespace, header.attempt, header.names) == ("u1", "a1", ("flights", "alerts"))
    assert (header.groups, header.tables, header.rows) == ((3,), (1,), (1,))


# -- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row,words",
    [
        ((0, 0, None, b"+the value"), ["flights", "key is null", "whose value takes 9 bytes"]),
        ((0, 1, b"k1", None), ["alerts", "k1", "value is null", "use delete"]),
        ((0, 0, b"k" * 101, b"+"), ["flights", "kkk", "key takes 101 bytes, 100 are", "make it smaller"]),
        ((0, 1, b"k2", b"+" + b"v" * 1_001), ["alerts", "k2", "value takes 1001 bytes, 1000"]),
        ((0, 0, b"\xff\xfe", b"+"), ["flights", r"\xff\xfe", "not valid UTF-8", "binary"]),
    ],
)  # fmt: skip
def test_a_row_that_is_refused_is_named_with_what_to_do(row, words):
    """T22, T43, T46."""
    good = [(0, 0, b"good", b"+"), (0, 1, b"\xff\xfe", b"+")]
    with pytest.raises(BadRecordError) as caught:
        list(_checked([batch(good), batch([good[0], row, good[1]])], SPEC))
    for word in [*words, "nothing was decided"]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "row",
    [
        (0, 0, b"", b"+"),  # the empty key
        (0, 0, b"k" * 100, b"+" + b"v" * 1_000),  # exactly at both limits
        (0, 0, "ключ".encode(), b"-"),
        (0, 1, b"\xff\xfe", b"+"),  # bytes in a binary key
        (0, 0, b"k", b"+\xff\xfe"),  # bytes in a value
    ],
)
def test_a_row_at_the_edge_is_taken(row):
    assert rows_of(_checked([batch([row])], SPEC)) == [row]


def test_of_a_key_of_several_columns_the_text_is_checked():
    rows = [(0, 0, b"1:\xff,1:7,", b"+")]
    for types in (("string", "int"), ("string", "binary")):
        with pytest.raises(BadRecordError):
            list(_checked([batch(rows)], spec(key_types=(types, ("binary",)))))
    assert rows_of(_checked([batch(rows)], spec(key_types=(("binary", "int"), ("binary",))))) == rows


@pytest.mark.parametrize(
    "types,row,said",
    [
        (
            ("int",),
            (0, 0, None, b'+{"n":5}'),
            "batch 7, table flights, a row without a key, whose value takes 7 bytes",
        ),
        (
            ("int",),
            (0, 0, None, b"+\xff"),
            "batch 7, table flights, a row without a key, whose value takes 1 bytes",
        ),
        (("int",), (0, 0, b"5", None), "batch 7, table flights, key 5: its value is null"),
        (("string", "int"), (0, 0, b"3:EWR,2:15,", None), "batch 7, table flights, key ('EWR', 15): its"),
        (("string",), (0, 0, b"\xff", b"+"), r"batch 7, table flights, key b'\xff': its key is not valid"),
    ],
)
def test_a_refusal_names_batch_table_and_row_as_a_reader_would_write_them(log, types, row, said):
    ack = staged(log, [batch([row])], spec(key_types=(types, ("binary",)), batch="batch 7"))
    assert ack.refusal is not None
    assert ack.refusal.message.startswith(said)
    assert "quarantine" in ack.refusal.message


def test_a_huge_value_is_not_put_into_the_message():
    with pytest.raises(BadRecordError) as caught:
        list(_checked([batch([(0, 0, None, b"+" + b"v" * 900)])], SPEC))
    assert len(str(caught.value)) < 400


def test_other_column_types_are_cast():
    given = pa.record_batch(
        {"g": pa.array([1], pa.int64()), "t": pa.array([0], pa.int8()), "k": ["key"], "v": [b"+"]}
    )
    assert rows_of(_checked([given], SPEC)) == [(1, 0, b"key", b"+")]


# -- the whole task -----------------------------------------------------------------------------


@pytest.fixture
def log():
    name = uuid.uuid4().hex
    log = MemoryLog(name, "n")
    log.create()
    yield log
    forget(name)


def staged(log, batches, of=SPEC, **more):
    return stage_task(batches, of, log, task=3, task_attempt="t7", host="h1", **more)


def applied(log, ack):
    """What an apply would see: all rows of the acked frames."""
    found = {blob.address: blob.content for blob in log.read([frame.address for frame in ack.frames])}
    return [
        (run.group, run.table, key, value)
        for frame in ack.frames
        for run in decode_frame(found[frame.address], frame, ack.attempt, frame.address)
        for key, value in zip(run.keys.to_pylist(), run.values.to_pylist(), strict=True)
    ]


@given(SORTED, CUTS, st.integers(1, 200))
def test_an_ack_names_all_that_was_staged(rows, cuts, frame_bytes):
    name = uuid.uuid4().hex
    log = MemoryLog(name, "n")
    log.create()
    utf8_or_not = spec(frame_bytes=frame_bytes, key_types=(("binary",), ("binary",)))
    ack = staged(log, split(rows, cuts), utf8_or_not)
    wanted = {(group, SPEC.tables[table], key): value for group, table, key, value in rows}
    assert sorted(applied(log, ack)) == sorted((*key, value) for key, value in wanted.items())
    assert (ack.attempt, ack.task, ack.task_attempt, ack.host) == ("a1", 3, "t7", "h1")
    assert ack.refusal is None
    assert ack.rows == len(wanted) == sum(frame.changes for frame in ack.frames)
    forget(name)


def test_a_task_without_rows_acks_without_frames(log):
    for batches in ([], [batch([])]):
        ack = staged(log, batches)
        assert (ack.frames, ack.rows, ack.refusal) == ((), 0, None)


def test_a_bad_row_comes_back_as_a_refusal(log):
    """Raised in a task it would be tried again by Spark, in vain."""
    rows = [(0, 0, b"%02d" % index, b"+") for index in range(20)]
    batches = [*(batch([row]) for row in rows), batch([(1, 0, None, b"+bad")])]
    ack = staged(log, batches, spec(frame_bytes=50))
    assert (ack.frames, ack.rows) == ((), 0)
    assert ack.refusal.error == "BadRecordError"
    assert "key is null" in ack.refusal.message


def test_an_error_of_the_log_is_raised():
    log = MemoryLog(uuid.uuid4().hex, "never-created")
    with pytest.raises(WalUnavailableError):
        staged(log, [batch([(0, 0, b"k", b"+")])])


def doubled(rows):
    values = [value + value[1:] for value in rows["v"].to_pylist()]
    return [rows.set_column(3, CHANGES.field("v"), pa.array(values, pa.binary()))]


def test_a_merge_sees_each_key_once_and_its_values_are_staged(log):
    rows = [(0, 0, b"a", b"+1"), (0, 0, b"a", b"+2"), (0, 0, b"b", b"+3")]
    ack = staged(log, split(rows, [1]), merge=doubled)
    assert applied(log, ack) == [(0, "flights", b"a", b"+22"), (0, "flights", b"b", b"+33")]


def test_what_a_merge_makes_is_checked_too(log):
    def too_long(rows):
        return [rows.set_column(3, CHANGES.field("v"), pa.array([b"+" + b"x" * 1_001], pa.binary()))]

    def null(rows):
        return [rows.set_column(3, CHANGES.field("v"), pa.array([None], pa.binary()))]

    for index, (merge, words) in enumerate([(too_long, "1001 bytes"), (null, "value is null")]):
        ack = staged(log, [batch([(0, 0, b"k", b"+")])], spec(attempt=f"a{index}"), merge=merge)
        assert words in ack.refusal.message


def test_a_merge_that_leaves_nothing_stages_nothing(log):
    ack = staged(log, [batch([(0, 0, b"k", b"+")])], merge=lambda rows: [rows.slice(0, 0)])
    assert (ack.frames, ack.rows, ack.refusal) == ((), 0, None)
