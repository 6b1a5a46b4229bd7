"""Upserts and deletes: which change of a key wins, and what each version shows.

I1 Atomic: version n shows exactly the batches up to n, of every table.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.spark


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
