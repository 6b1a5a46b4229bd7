"""txn.patch: some columns are set, the others keep what they hold at the base version."""

from __future__ import annotations

import datetime
import decimal

import pytest

from tidegate.errors import BadRecordError, ConfigError

pytestmark = pytest.mark.spark

UTC = datetime.timezone.utc
SCHEMA = "k string, o int, n int, s string, d decimal(10,3), l array<struct<t:timestamp>>"


def row(k, **columns):
    return {"o": 0, "n": None, "s": None, "d": None, "l": None, "k": k, **columns}


@pytest.mark.both_ways
def test_only_the_columns_given_are_set_whatever_the_types_of_the_others(stream):
    """A null given is a null set; what is absent is made; what is deleted or expired is absent."""
    rich = {
        "n": 1,
        "s": 'ü"\\',
        "d": decimal.Decimal("1E-3"),
        "l": [{"t": datetime.datetime(2023, 1, 2, tzinfo=UTC)}],
    }

    def each(txn, rows):
        match txn.batch_id:
            case 0:
                txn.upsert("t", rows.drop("o"), "k")
            case 1:
                txn.patch("t", rows.select("k", "n"), "k")
            case 2:
                txn.delete("t", rows, "k")
            case 3:
                txn.patch("t", rows.selectExpr("k", "s", "o AS added"), "k")

    batches = [
        [row("a", **rich), row("b", **rich), row("c", **rich)],
        [row("a", n=2), row("b"), row("new", n=3)],
        [row("c")],
        [row("a", s="x", o=7), row("c", s="y")],
    ]
    flights = stream(SCHEMA)
    flights.commit(flights.sink(parallelism=2).each(each), *batches)
    nulls = dict.fromkeys(rich)
    assert flights.rows("t", 2) == {
        "a": {**rich, "n": 2}, "b": {**rich, "n": None}, "c": rich, "new": {**nulls, "n": 3}
    }  # fmt: skip
    assert flights.rows("t") == {
        "a": {**rich, "n": 2, "s": "x", "added": 7},
        "b": {**rich, "n": None, "added": None},
        "c": {**nulls, "s": "y", "added": 0},
        "new": {**nulls, "n": 3, "added": None},
    }


def test_of_several_rows_of_a_key_the_last_counts_whole_t44(stream):
    def each(txn, rows):
        if txn.batch_id == 0:
            txn.upsert("by_o", rows.select("k", "n", "s"), "k")
        else:
            txn.patch("by_o", rows.select("k", "o", "n"), "k", order_by="o")

    flights = stream(SCHEMA)
    patches = [row("a", o=2, n=None), row("a", o=1, n=5), row("b", o=1, n=6), row("b", o=1, n=7)]
    flights.commit(flights.sink().each(each), [row("a", n=1, s="x")], patches)
    assert flights.rows("by_o") == {
        "a": {"n": None, "s": "x", "o": 2},
        "b": {"n": 7, "s": None, "o": 1},
    }


def test_patches_that_cannot_be(stream):
    flights = stream(SCHEMA)
    flights.add([row("a", n=1, s="x")], [row("a", s="y" * 60)])
    sink = flights.sink(value_bytes_max=50)

    def check(rows, batch_id):
        if batch_id == 0:
            sink.each(
                lambda t, r: (t.upsert("t", r.select("k", "n", "s"), "k"), t.upsert("b", r, "k", value="s"))
            )(rows, 0)
            return
        for patch, error, message in (
            (
                lambda t, r: t.patch("t", r.selectExpr("k", "s AS n"), "k"),
                ConfigError,
                r"column n: int here, this call writes string",
            ),
            (lambda t, r: t.patch("b", r.select("k", "s"), "k"), ConfigError, "bytes values of"),
            (
                lambda t, r: t.patch("t", r.select("k", "s"), "k"),
                BadRecordError,
                r"table t, key 'a': its value takes",
            ),
        ):
            with pytest.raises(error, match=message):
                sink.each(patch)(rows, batch_id)
            assert flights.decided() == 1
        sink.each(lambda t, r: t.patch("t", r.select("k"), "k"))(rows, batch_id)

    flights.in_batch(check)
    assert flights.rows("t") == {"a": {"n": 1, "s": "x"}}
