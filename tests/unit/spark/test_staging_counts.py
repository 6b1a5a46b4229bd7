"""The rows and bytes of each call, counted while a task's rows pass: as a recount in Python finds them."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidegate.spark.staging.work import InputCounter
from tidegate.wal.staging.acks import CallShare
from tidegate.wal.staging.last_per_key import PLACE
from tidegate.wal.staging.spec import CHANGES

CELLS = st.one_of(st.none(), st.binary(max_size=5))
ROWS = st.lists(st.tuples(st.integers(0, 3), CELLS, CELLS), max_size=9)


def batch_of(rows, *, named, placed):
    count = len(rows)
    columns = {
        "g": pa.array([0] * count, pa.int32()),
        "t": pa.array([0] * count, pa.int32()),
        "k": pa.array([key for _, key, _ in rows], pa.binary()),
        "v": pa.array([value for *_, value in rows], pa.binary()),
    }
    columns |= {"c": pa.array([call for call, *_ in rows], pa.int32())} if named else {}
    columns |= {PLACE: pa.array([0] * count, pa.int64())} if placed else {}
    return pa.record_batch(columns)


@given(st.lists(ROWS, max_size=3), st.booleans(), st.booleans())
def test_rows_and_bytes_of_each_call_equal_a_recount(batches, named, placed):
    counter = InputCounter()
    passed = list(counter.counted(batch_of(rows, named=named, placed=placed) for rows in batches))
    expected = {}
    for call, key, value in (row for rows in batches for row in rows):
        number = call if named else 0
        rows, size = expected.get(number, (0, 0))
        expected[number] = rows + 1, size + len(key or b"") + len(value or b"")
    assert {number: (share.rows, share.bytes) for number, share in counter.calls.items()} == expected
    assert counter.rows == sum(map(len, batches))
    for one in passed:
        assert placed or one.schema.names == CHANGES.names, (
            "rows in order are not sorted again, by their call"
        )


def test_seconds_and_ties_are_added_by_call():
    counter = InputCounter()
    counter.add_measures(1, 0.5, 2)
    counter.add_measures(1, 0.25, 1)
    counter.add_measures(0, 0.0, 0)
    assert [*counter.calls.values()] == [CallShare(1, 0, 0, 0.75, 3), CallShare(0)]
