"""``ignore_nulls`` and ``keep_when``: columns that a row leaves as they are, against a plain model."""

from __future__ import annotations

import datetime
import itertools
import random

import pytest

import tidegate
from tidegate.errors import BadRecordError, ConfigError

pytestmark = pytest.mark.spark

UTC = datetime.timezone.utc
GONE, BYTES_GONE = "__unavailable", b"gone\x00\xff"
SCHEMA = (
    "id int, op string, at timestamp, pos bigint, status string, body string, image binary,"
    " tags array<string>, note string, size int, more map<string,int>, place struct<x:int,y:string>"
)
KEEP_WHEN = {"body": GONE, "image": BYTES_GONE, "tags": [GONE], "note": GONE}
IGNORE_NULLS = ["note", "size", "more", "place"]
COLUMNS = {
    "status": ["new", "paid", None],
    "body": [GONE, "text", "", None],
    "image": [BYTES_GONE, b"\x00", b"", None],
    "tags": [[GONE], ["a", None], [], None],
    "note": [GONE, None, "noted"],
    "size": [None, 0, 7],
    "more": [None, {}, {"a": 1}],
    "place": [None, {"x": None, "y": "here"}],
}


def stays(name, value):
    return (name in IGNORE_NULLS and value is None) or (name in KEEP_WHEN and value == KEEP_WHEN[name])


def random_changes(chance, keys, count):
    """Changes in the order of their sequences, which are unique for each key."""
    for number in range(count):
        at = datetime.datetime(2026, 1, 1, 0, 0, number // 5, tzinfo=UTC)
        cells = {name: chance.choice(values) for name, values in COLUMNS.items()}
        op = chance.choice("cuuuuud")
        yield {"id": chance.randrange(keys), "op": op, "at": at, "pos": number % 5, **cells}


class Model:
    """The rows and deletes that batches of changes leave."""

    def __init__(self):
        self.rows, self.deletes = {}, {}

    def apply(self, batch):
        for change in sorted(batch, key=lambda change: (change["at"], change["pos"])):
            key, sequence = change["id"], (change["at"], change["pos"])
            row = self.rows.get(key)
            if sequence <= self.deletes.get(key, sequence[:0]) or (
                row and sequence <= (row["at"], row["pos"])
            ):
                continue
            if change["op"] == "d":
                self.rows.pop(key, None)
                self.deletes[key] = sequence
                continue
            before = row or {}
            self.rows[key] = {"at": change["at"], "pos": change["pos"]} | {
                name: before.get(name) if stays(name, change[name]) else change[name] for name in COLUMNS
            }


def plain(rows):
    """As a reader has them."""
    return {key: dict(row) for key, row in rows.items()}


@pytest.mark.both_ways
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_changes_are_applied_column_by_column(stream, seed):
    """Batches overlap, as after a source's restart, and their rows come in any order."""
    chance = random.Random(seed)
    changes = list(random_changes(chance, keys=12, count=240))
    cuts = [0, 40, 90, 150, 240]
    batches = [changes[max(0, start - 15) : end] for start, end in itertools.pairwise(cuts)]
    model, expected = Model(), []
    for batch in batches:
        model.apply(batch)
        expected.append(plain(model.rows))
        chance.shuffle(batch)

    def each(txn, rows):
        txn.apply_changes(
            "t",
            rows,
            "id",
            sequence_by=["at", "pos"],
            op_column="op",
            ignore_nulls=IGNORE_NULLS,
            keep_when=KEEP_WHEN,
        )

    flights = stream(SCHEMA)
    flights.commit(flights.sink(parallelism=2, keep_versions=10).each(each), *batches)
    assert [flights.rows("t", version + 1) for version in range(len(batches))] == expected


@pytest.mark.both_ways
def test_a_patch_sets_the_last_other_value_of_each_column(stream):
    chance = random.Random(7)
    batches = [list(random_changes(chance, keys=8, count=40)) for _ in range(3)]
    rows, expected = {}, []
    for batch in batches:
        for change in batch:
            row = rows.setdefault(change["id"], dict.fromkeys(COLUMNS))
            row |= {name: change[name] for name in COLUMNS if not stays(name, change[name])}
            row["n"] = 5 * change["at"].second + change["pos"]
        expected.append({key: dict(row) for key, row in rows.items()})
        chance.shuffle(batch)

    def each(txn, batch):
        batch = batch.selectExpr("*", "int(5 * second(at) + pos) AS n").drop("op", "at", "pos")
        txn.patch("t", batch, "id", order_by="n", ignore_nulls=IGNORE_NULLS, keep_when=KEEP_WHEN)

    flights = stream(SCHEMA)
    flights.commit(flights.sink(parallelism=2, keep_versions=10).each(each), *batches)
    assert [flights.rows("t", version + 1) for version in range(len(batches))] == expected


def test_all_columns_may_be_ignored_and_each_bad_row_is_set_aside(stream):
    def each(txn, rows):
        rows = rows.select("id", "op", "pos", "body", "size")
        changes = {"sequence_by": "pos", "op_column": "op", "ignore_nulls": True}
        txn.apply_changes("changed", rows, "id", **changes)
        txn.patch("patched", rows.drop("op", "pos"), "id", ignore_nulls=True)

    flights = stream(SCHEMA)
    rows = [
        {"id": 1, "op": "c", "pos": 1, "body": "a"},
        {"id": 1, "op": "u", "pos": 2, "size": 5},
        {"id": 1, "op": "u", "pos": None, "size": 6},
        {"id": 1, "op": None, "pos": 3, "size": 7},
        {"id": None, "op": "u", "pos": 4, "size": 8},
        {},
        {"id": 2, "op": "d", "pos": 1},
        {"id": 3, "op": "c", "pos": 9, "body": "tied"},
        {"id": 3, "op": "d", "pos": 9},
    ]
    flights.commit(flights.sink(on_bad_record="quarantine").each(each), rows)
    assert flights.rows("changed") == {1: {"pos": 2, "body": "a", "size": 5}}
    assert flights.rows("_deleted.changed") == {2: {"pos": 1}, 3: {"pos": 9}}
    with tidegate.connect(flights.store, namespace="flights", wal=f"file://{flights.folder}/wal") as gate:
        assert [step.ties or 0 for step in gate.job(1)] == [1, 0]
    assert flights.rows("patched")[1] == {"body": "a", "size": 7}
    assert flights.rows("patched")[2] == {"body": None, "size": None}
    refused = [(row["table"], row["cause"]) for row in flights.rows("_quarantine").values()]
    assert sorted(cause for table, cause in refused if table == "changed") == [
        "its key is null",
        "its key, sequence_by and op_column are all null, as of a tombstone: a record whose value is null",
        "its op_column column op is null, so it cannot be ordered",
        "its sequence_by column pos is null, so it cannot be ordered",
    ]
    assert {cause for table, cause in refused if table == "patched"} == {"its key is null"}


WRONG = [
    ({"ignore_nulls": "pos"}, "ignore_nulls names pos, which is a column of the key"),
    ({"ignore_nulls": ["id"]}, "ignore_nulls names id"),
    ({"keep_when": {"op": "x"}}, "keep_when names op"),
    ({"ignore_nulls": "siez"}, "column 'siez' is missing.*did you mean"),
    ({"keep_when": "body"}, "must be the placeholder of each column"),
    ({"keep_when": {"size": "5"}}, "not of the type of column size, int"),
    ({"keep_when": {"size": 2**31}}, "not of the type of column size, int"),
    ({"keep_when": {"body": b"x"}}, "not of the type of column body, string"),
    ({"keep_when": {"tags": "x"}}, "not of the type of column tags"),
    ({"keep_when": {"more": {}}}, "name them in ignore_nulls"),
]


def test_what_does_not_fit_is_refused_at_once(stream):
    def each(txn, rows):
        for keywords, message in WRONG:
            with pytest.raises(ConfigError, match=message):
                txn.apply_changes("t", rows, "id", sequence_by="pos", op_column="op", **keywords)

    flights = stream(SCHEMA)
    flights.commit(flights.sink().each(each), [{"id": 1}])


def test_a_bad_row_fails_its_batch_with_its_column(stream):
    flights = stream(SCHEMA)
    flights.add([{"id": 1, "op": "u", "pos": None}])
    changes = {"sequence_by": "pos", "op_column": "op", "ignore_nulls": True}
    ran = flights.run(flights.sink().each(lambda txn, rows: txn.apply_changes("t", rows, "id", **changes)))
    assert isinstance(ran.error, BadRecordError)
    assert "key 1: its sequence_by column pos is null" in str(ran.error)
