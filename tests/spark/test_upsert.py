"""Upserts and deletes against plain dictionaries: which change of a key wins, and what each version shows.

I1 Atomic: version n shows exactly the batches up to n, of every table.
"""

from __future__ import annotations

import copy
import json
import random

import pytest

pytestmark = pytest.mark.spark

SCHEMA = "k string, n int, o int, x string, op int, gone boolean, b binary"
PLAIN = ("k", "n", "o", "x", "op", "gone")
TABLES = ("ordered", "in_order", "composite", "blobs", "mixed")


def random_batch(chance, size):
    return [
        {
            "k": chance.choice(["", "a", "b", "ä ", "N14228", "c.d"]),
            "n": chance.randrange(3),
            "o": chance.choice([None, 1, 1, 2, 3]),
            "x": chance.choice([None, "", "x", 'q"\\', "ü\n", "zz"]),
            "op": chance.randrange(3),
            "gone": chance.choice([None, False, False, True]),
            "b": chance.choice([b"", b"\x00\xff", b"abc"]),
        }
        for _ in range(size)
    ]


def but(row, *left_out):
    return {name: row[name] for name in PLAIN if name not in left_out}


def stored(value):
    """The value's bytes: equal order_by is settled by the larger (T44)."""
    return b"+" + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def rank(*values):
    """Spark's order of rows: nulls first."""
    return tuple((value is not None, value or 0) for value in values)


def follow(tables, batch):
    """What one batch does to the tables, row by row, without tidegate."""
    for row in sorted(batch, key=lambda r: (rank(r["o"]), b"-" if r["gone"] else stored(but(r, "k")))):
        if row["gone"]:
            tables["ordered"].pop(row["k"], None)
        else:
            tables["ordered"][row["k"]] = but(row, "k")
    for row in sorted(batch, key=lambda r: (rank(r["op"], r["o"]), stored(but(r, "k", "n")))):
        tables["composite"][row["k"], row["n"]] = but(row, "k", "n")
    for row in batch:
        tables["blobs"][row["k"]] = row["b"]
        if row["gone"]:
            tables["in_order"].pop(row["k"], None)
        else:
            tables["in_order"][row["k"]] = but(row, "k")
    for call in range(3):
        for row in batch:
            if row["op"] == call and call == 1:
                tables["mixed"].pop(row["k"], None)
            elif row["op"] == call:
                tables["mixed"][row["k"]] = but(row, "k")


def write(txn, rows):
    plain = rows.select(*PLAIN)
    txn.upsert("ordered", plain, key="k", order_by="o", delete_when="gone")
    txn.upsert("in_order", plain, key="k", delete_when="gone")
    txn.upsert("composite", plain, key=["k", "n"], order_by=["op", "o"])
    txn.upsert("blobs", rows, key="k", value="b")
    txn.upsert("mixed", plain.where("op = 0"), key="k")
    txn.delete("mixed", plain.where("op = 1"), key="k")
    txn.upsert("mixed", plain.where("op = 2"), key="k")


@pytest.mark.one_in(2)
@pytest.mark.both_ways
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_random_batches_into_several_tables_are_what_a_dictionary_says_i1_t44(stream, seed):
    chance = random.Random(seed)
    batches = [random_batch(chance, size) for size in (40, 3, 1, 25)]
    expected = [{name: {} for name in TABLES}]
    for batch in batches:
        expected.append(copy.deepcopy(expected[-1]))
        follow(expected[-1], batch)
    flights = stream(SCHEMA)
    flights.commit(flights.sink(key_groups=7, parallelism=3).each(write), *batches)
    assert flights.version() == len(batches)
    for version in range(1, len(batches) + 1):
        for table in TABLES:
            assert flights.rows(table, version) == expected[version][table], (seed, version, table)


def test_one_table_form_makes_one_version_per_batch_i1_i2(stream):
    flights = stream("tailnum string, dest string, hour int, cancelled boolean")

    def row(tail, dest, hour, cancelled=False):
        return {"tailnum": tail, "dest": dest, "hour": hour, "cancelled": cancelled}

    sink = flights.sink(table="aircraft", key="tailnum", order_by="hour", delete_when="cancelled")
    ran = flights.commit(
        sink,
        [row("N1", "IAH", 5), row("N1", "MIA", 4), row("N2", "ORD", 1)],
        [row("N2", "ORD", 2, cancelled=True), row("N2", "ORD", 1), row("N3", "BOS", 1)],
    )
    assert ran.batches == [0, 1]
    assert flights.version() == flights.decided() == sink.last_commit.version == 2
    assert {k: v["dest"] for k, v in flights.rows("aircraft", 1).items()} == {"N1": "IAH", "N2": "ORD"}
    assert {k: v["dest"] for k, v in flights.rows("aircraft").items()} == {"N1": "IAH", "N3": "BOS"}


def test_one_table_form_with_a_composite_key_and_a_column_of_bytes(stream):
    flights = stream("origin string, flight int, body string")
    sink = flights.sink(table="legs", key=["origin", "flight"], value="body")
    flights.commit(
        sink, [{"origin": "EWR", "flight": 1545, "body": "ü"}, {"origin": "", "flight": -1, "body": ""}]
    )
    assert flights.rows("legs") == {("EWR", 1545): "ü".encode(), ("", -1): b""}


def test_columns_may_have_the_names_that_staging_uses(stream):
    """Columns named like the ones of a change, dots and back-ticks in names, keys in capitals."""
    names = ["g", "t", "k", "v", "c", "o", "o0_0", "a.b", "Q`r", "_0"]
    flights = stream(", ".join(f"`{name.replace('`', '``')}` string" for name in names))
    row = {name: f"={name}" for name in names}

    def each(txn, rows):
        txn.upsert("one", rows, key="k", order_by=["o0_0", "a.b"])
        txn.upsert("two", rows, key=["a.b", "Q`r"], order_by="v")
        txn.delete("two", rows.where("k = ''"), key=["a.b", "Q`r"])
        txn.reduce("three", rows, key="g", reducers={"k": "last", "o": "max", "v": "count", "a.b": "first"})
        txn.reduce("four", rows, key=["o", "Q`r"], reducers={"g": "min", "t": "max"}, order_by="c")

    flights.commit(flights.sink().each(each), [row], [row])
    assert flights.rows("one") == {"=k": {n: v for n, v in row.items() if n != "k"}}
    assert flights.rows("two") == {("=a.b", "=Q`r"): {n: row[n] for n in names if n not in ("a.b", "Q`r")}}
    assert flights.rows("three") == {"=g": {"k": "=k", "o": "=o", "v": 2, "a.b": "=a.b"}}
    assert flights.rows("four") == {("=o", "=Q`r"): {"g": "=g", "t": "=t"}}
