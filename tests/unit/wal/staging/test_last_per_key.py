"""Rows sorted by place alone: each key's changes come side by side, in order; the last one stays."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import BadRecordError
from tidegate.wal.staging import last_per_key as last_change
from tidegate.wal.staging.changelog import as_changes, stage_task
from tidegate.wal.staging.last_per_key import groups_and_tables, last_of_each_key, last_per_key, place_of
from tidegate.wal.staging.quarantine import accepted
from tidegate.wal.staging.spec import CHANGES, StageSpec

FULL = pa.schema(
    [*CHANGES, ("place", pa.int64()), ("c", pa.int32()), ("o0", pa.int64()), ("o1", pa.float64())]
)

KEYS = st.sampled_from([b"a", b"b", b"c"])
"""Few, of few hashes: many changes of a key, and several keys of one place."""
ROWS = st.lists(
    st.tuples(
        st.integers(0, 2),  # key group
        st.integers(0, 1),  # table
        KEYS,
        st.integers(0, 1),  # call
        st.none() | st.integers(-2, 2),
        st.none() | st.sampled_from([-1.5, 0.0, 2.5, float("nan")]),
        st.binary(max_size=2).map(lambda value: b"+" + value),
    ),
    max_size=60,
)
CUTS = st.lists(st.integers(0, 60), max_size=6)


def batch(rows):
    """Rows of (g, t, k, call, o0, o1, v), as Spark gives them: with a place, of one bit of the key's hash."""
    columns = {
        "g": [row[0] for row in rows],
        "t": [row[1] for row in rows],
        "k": [row[2] for row in rows],
        "v": [row[6] for row in rows],
        "place": [place(row) for row in rows],
        "c": [row[3] for row in rows],
        "o0": [row[4] for row in rows],
        "o1": [row[5] for row in rows],
    }
    return pa.record_batch([pa.array(columns[f.name], f.type) for f in FULL], schema=FULL)


def place(row):
    return place_of(row[0], row[1], (row[2] or b"\0")[0] % 2)


def split(rows, cuts):
    ends = sorted({0, len(rows), *(at % (len(rows) + 1) for at in cuts)})
    return [batch(rows[start:end]) for start, end in itertools.pairwise(ends)]


def by_place(rows, chance):
    """In order of their places, and in none within."""
    return sorted(chance.sample(rows, len(rows)), key=place)


def rank(row):
    """What Spark sorts a key's changes by: nulls first, NaN last."""
    number = (row[4] is not None, row[4] or 0)
    nan = row[5] is not None and np.isnan(row[5])
    real = (row[5] is not None, nan, 0 if nan or row[5] is None else row[5])
    return row[3], number, real, row[6]


def model(rows):
    best = {}
    for row in rows:
        key = row[:3]
        if key not in best or rank(row) >= rank(best[key]):
            best[key] = row
    return {key: row[6] for key, row in best.items()}


def found_in(batches):
    rows = [tuple(row[name] for name in ("g", "t", "k", "v")) for one in batches for row in one.to_pylist()]
    return {row[:3]: row[3] for row in rows}, [row[:2] for row in rows], len(rows)


@given(ROWS, CUTS, st.randoms(use_true_random=False), st.sampled_from([1, 3, 20_000]))
def test_the_last_by_call_order_and_value_wins_wherever_batches_end(rows, cuts, chance, held):
    most, last_change.WAITING_ROWS_MAX = last_change.WAITING_ROWS_MAX, held
    try:
        kept = list(last_per_key(split(by_place(rows, chance), cuts)))
    finally:
        last_change.WAITING_ROWS_MAX = most
    values, runs, count = found_in(kept)
    assert values == model(rows)
    assert count == len(values), "each key once"
    assert runs == sorted(runs), "key group by key group, table by table"
    assert all(one.schema == CHANGES for one in kept)


def test_what_is_in_order_already_goes_by_as_it_is():
    rows = [(0, 0, b"%d" % n, 0, 1, None, b"+1") for n in (2, 1, 3)]
    plain = [batch([row]).select(CHANGES.names) for row in rows]
    assert list(last_per_key(plain)) == plain


@pytest.mark.parametrize("rows, value_bytes", [(100, 0), (20_000, 1_000)])
def test_one_hot_key_is_not_held_in_memory(monkeypatch, rows, value_bytes):
    """I11: of a million changes of one key few wait for the others, and fewer if they are large."""
    monkeypatch.setattr(last_change, "WAITING_ROWS_MAX", rows)
    monkeypatch.setattr(last_change, "WAITING_BYTES_MAX", 100 * 1_000)
    most = 0

    def last(batches, superseded=None):
        nonlocal most
        for one in batches:
            most = max(most, one.num_rows)
            yield from last_of_each_key([one])

    def given_rows():
        for number in range(200):
            yield batch(
                [
                    (0, 0, b"k", 0, number * 50 + at, None, b"+%d" % (number * 50 + at) + b" " * value_bytes)
                    for at in range(50)
                ]
            )

    monkeypatch.setattr(last_change, "last_of_each_key", last)
    (kept,) = last_per_key(given_rows())
    assert kept["v"].to_pylist() == [b"+9999" + b" " * value_bytes]
    assert 90 < most <= 200


def spec(quarantine):
    tables = ("t", "_quarantine") if quarantine else ("t",)
    types = (("string",),) * len(tables)
    return StageSpec("n", "a", tables, types, 1_000, 100, 100, 4, 1 if quarantine else None)


class Nowhere:
    """A log that keeps nothing."""

    def stage(self, segment, blobs):
        return [segment for _ in blobs]


def test_a_refused_row_that_would_have_lost_is_refused_all_the_same(monkeypatch):
    """Also where losers do not wait."""
    monkeypatch.setattr(last_change, "WAITING_ROWS_MAX", 1)
    rows = [(0, 0, b"k", 0, 1, None, None), (0, 0, b"k", 0, 2, None, b"+")]
    given_batches = [batch(rows)]
    of = spec(quarantine=False)
    ack = stage_task(given_batches, of, Nowhere(), task=0, task_attempt="0", host="h")
    assert ack.refusal is not None
    assert ack.refusal.error == BadRecordError.__name__
    assert "its value is null" in ack.refusal.message


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
def test_refused_rows_go_behind_their_key_group(cut):
    rows = [
        (1, 0, None, 0, 7, 1.0, b"+lost"),
        (1, 0, b"b", 0, 5, 1.0, b"+1"),
        (1, 0, b"b", 0, 3, 1.0, b"+0"),
        (2, 0, b"a", 0, 3, 1.0, b"+2"),
    ]
    given_batches = [batch(part) for part in (rows[:cut], rows[cut:]) if part]
    kept = last_per_key(accepted(as_changes(given_batches), spec(quarantine=True)))
    values, runs, _ = found_in(kept)
    assert runs == [(1, 0), (1, 1), (2, 0)]
    assert values[1, 0, b"b"] == b"+1"


def test_a_place_tells_its_key_group_and_its_table():
    """-1 is the table of marks."""
    places = np.array([place_of(0, 0), place_of(32_767, 3, 2**32 - 1), place_of(5, 0xFFFF, 9)], np.int64)
    groups, tables = groups_and_tables(places)
    assert groups.tolist() == [0, 32_767, 5]
    assert tables.tolist() == [0, 3, -1]
