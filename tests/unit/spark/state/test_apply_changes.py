"""apply_changes without Spark: every order and every cut into batches leaves the same rows."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import BadRecordError, ConfigError
from tidegate.spark.state.apply_changes import (
    ChangedTable,
    NewerTable,
    TieCounter,
    changed,
    deleted_table,
    newer,
    sequence_column,
)
from tidegate.spark.state.reduce import ReducedColumn
from tidegate.values.evolve import as_stored
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.staging.last_per_key import last_of_each_key
from tidegate.wal.staging.spec import CHANGES

SEQUENCE = (ReducedColumn("ts", "timestamp", "last"), ReducedColumn("lsn", "bigint", "last"))
TABLE = ChangedTable(0, "people", 0, 1, 0, SEQUENCE, ("string",))


class World:
    """Two tables in memory, as a store has them."""

    def __init__(self):
        self.tables = {"people": {}, deleted_table("people"): {}}
        self.ties = TieCounter([TABLE])

    def read(self, table, start, rows):
        return pa.array([self.tables[table].get(key) for key in rows["k"].to_pylist()], pa.binary())

    def apply(self, changes):
        ordered = [(0, 0, key, value) for key, _, value in sorted(changes)]  # by key, sequence and value
        columns = [pa.array(c, f.type) for c, f in zip(zip(*ordered, strict=True), CHANGES, strict=True)]
        all_rows = pa.record_batch(columns, CHANGES)
        batch = pa.concat_batches(list(last_of_each_key([all_rows], self.ties.superseded)))
        for _, table, key, value in zip(
            *(c.to_pylist() for c in changed(self.read, TABLE, batch, self.ties).columns), strict=True
        ):
            rows_of = self.tables[list(self.tables)[table]]
            if value == b"-":
                rows_of.pop(key, None)
            else:
                rows_of[key] = value[1:]


def change(key, day, lsn, name=None):
    sequence = {"ts": f"2026-01-{day:02}T00:00:00.000000Z", "lsn": lsn}
    row = sequence if name is None else {**sequence, "name": name}
    return key, (day, lsn), (b"-" if name is None else b"+") + json.dumps(row, separators=(",", ":")).encode()


def test_any_order_and_any_cut_into_batches_leaves_the_same_rows():
    """Ties among them: equal sequences of an upsert and a delete, and of two upserts."""
    for seed in range(60):
        chance = random.Random(seed)
        changes = [
            change(
                chance.choice([b"a", b"b"]),
                chance.randint(1, 3),
                chance.randint(1, 3),
                chance.choice([None, "x", "y"]),
            )
            for _ in range(chance.randint(1, 12))
        ]
        ends = []
        for _ in range(4):
            world, left = World(), chance.sample(changes, len(changes))
            left += chance.sample(changes, chance.randint(0, len(changes)))  # replays
            while left:
                size = chance.randint(1, len(left))
                world.apply(left[:size])
                left = left[size:]
            ends.append(world.tables["people"])
        assert all(end == ends[0] for end in ends), f"seed {seed}: {changes}"


def test_ties_of_a_row_and_a_delete_are_counted_however_they_are_cut_into_batches():
    tied = [change(b"a", 1, 1, "x"), change(b"a", 1, 1), change(b"b", 2, 1), change(b"b", 2, 1, "y")]
    others = [change(b"c", 1, 1, "x"), change(b"c", 1, 2), change(b"c", 1, 2), change(b"d", 1, 1, "x")]
    for of_batches in ([tied + others], [[one] for one in tied + others], [tied[:1] + others, tied[1:]]):
        world = World()
        for batch in of_batches:
            world.apply(batch)
        assert world.ties.counts == {0: 2}, of_batches


def test_a_late_change_of_what_was_deleted_loses_and_a_later_one_brings_it_back():
    world = World()
    world.apply([change(b"a", 2, 1, "x")])
    world.apply([change(b"a", 3, 1)])
    assert world.tables["people"] == {}
    world.apply([change(b"a", 2, 9, "late")])
    assert world.tables["people"] == {}
    world.apply([change(b"a", 3, 1, "tie: the delete wins")])
    assert world.tables["people"] == {}
    world.apply([change(b"a", 3, 2, "back")])
    assert json.loads(world.tables["people"][b"a"])["name"] == "back"


def test_what_loses_is_not_written_at_all():
    world = World()
    world.apply([change(b"a", 2, 1, "x")])
    key, _, value = change(b"a", 1, 1)
    rows = pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(([0], [0], [key], [value]), CHANGES, strict=True)], CHANGES
    )
    assert changed(world.read, TABLE, rows).num_rows == 0


@pytest.mark.parametrize("kind", ["double", "boolean", "decimal(10,2)", "array<int>"])
def test_sequences_that_have_no_agreed_order_are_refused(kind):
    with pytest.raises(ConfigError, match="sequence_by column s is"):
        sequence_column("people", Column("s", kind))


def test_a_sequence_that_python_has_not_in_what_is_held_is_told_with_its_key():
    """The table was written by upsert before, or the sequence of a delete lies beside."""
    for table in ("people", deleted_table("people")):
        world = World()
        world.tables[table][b"a"] = b'{"ts":"+12000-01-01T00:00:00.000Z","lsn":1}'
        with pytest.raises(BadRecordError, match=r"table people, key 'a': its row is .*years 1 to 9999"):
            world.apply([change(b"a", 1, 1, "x")])


# -- upserts with newer_by --------------------------------------------------------------------------

NEWER = NewerTable(0, "seats", 0, ReducedColumn("at", "bigint", "last"), ("string",))


def upserted(held, rows):
    """Apply one batch: of its rows of a key the last by (at, value), as staging takes them."""
    last = {key: (at, value) for key, at, value in sorted(rows)}
    batch = [(0, 0, key, b"+" + value) for key, (_, value) in last.items()]
    columns = [pa.array(c, f.type) for c, f in zip(zip(*batch, strict=True), CHANGES, strict=True)]
    stored = pa.array([held.get(key) for key in last], pa.binary())
    written = newer(stored, NEWER, pa.record_batch(columns, CHANGES))
    return held | {key: value[1:] for key, value in zip(*(written[n].to_pylist() for n in "kv"), strict=True)}


@given(st.data())
def test_any_order_of_newer_rows_and_any_cut_into_batches_leaves_the_same_rows(data):
    """Ties, and replays, among them."""
    key, at, seat = st.sampled_from([b"a", b"b"]), st.integers(1, 3), st.sampled_from(["x", "y"])
    row = st.builds(lambda k, n, s: (k, n, b'{"seat":"%s","at":%d}' % (s.encode(), n)), key, at, seat)
    rows = data.draw(st.lists(row, min_size=1, max_size=10))
    expected = {key: value for key, _, value in sorted(rows)}
    left = data.draw(st.permutations(rows + data.draw(st.lists(st.sampled_from(rows), max_size=5))))
    held = {}
    while left:
        size = data.draw(st.integers(1, len(left)))
        held, left = upserted(held, left[:size]), left[size:]
    assert held == expected


def test_a_stored_row_without_the_column_is_older_than_any():
    """Another call wrote it, or it is older than the column."""
    held = {b"a": b'{"seat":"x"}', b"b": b'{"seat":"x","at":null}'}
    new = b'{"seat":"y","at":-5}'
    assert upserted(held, [(b"a", -5, new), (b"b", -5, new)]) == {b"a": new, b"b": new}


def test_newer_by_is_found_by_its_field_and_of_the_tables_wider_type():
    table = TableSchema((Column("k", "string"),), (Column("since", "bigint", "at"),), "json_renamed")
    column = sequence_column("t", as_stored(Column("since", "int"), table), "newer_by")
    assert column == ReducedColumn("at", "bigint", "last")
    rows = pa.record_batch({"k": pa.array([b"k1"], pa.binary()), "v": pa.array([b'+{"at":7}'], pa.binary())})
    stored = pa.array([b'{"at":1099511627776}'], pa.binary())
    assert len(newer(stored, NewerTable(0, "t", 0, column, ("string",)), rows)) == 0


def test_the_command_that_renames_back_is_quoted():
    """A source may choose the name of a column; the command is pasted into a shell."""
    from tidegate.spark.calls.apply_changes import _renamed

    assert "(tidegate schema rename c 'at; id #' seq)" in str(_renamed("c", "at; id #", "seq"))
