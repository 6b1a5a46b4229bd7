"""Tables whose columns change: each kind of change with its result, at the version and at older ones."""

from __future__ import annotations

import logging
from decimal import Decimal

import pytest

from tidegate.errors import ConfigError

SCHEMA = "k string, n bigint, x double"


def rows_of(*numbers):
    return [{"k": f"k{n}", "n": n, "x": n / 4} for n in numbers]


def upserts(*columns, table="t"):
    """A sink's function that upserts other columns in each batch."""

    def each(txn, rows):
        txn.upsert(table, rows.selectExpr("k", *columns[txn.batch_id]), key="k")

    return each


BIG = 2**40


@pytest.mark.parametrize("commit", ["sync", "pipelined"])
def test_columns_widen_and_older_versions_stay(stream, commit):
    wide = stream(SCHEMA)
    sink = wide.sink(commit=commit)
    first = ("CAST(n AS int) i", "CAST(x AS float) f", "CAST(x AS decimal(6,2)) d", "CAST(n AS int) j")
    second = ("n + 1099511627776 AS i", "x / 3 AS f", "CAST(x AS decimal(12,4)) d", "CAST(n AS double) j")
    wide.commit(sink.each(upserts(first, second, first)), rows_of(1, 2), rows_of(2), rows_of(3))
    sink.close()
    one = {"i": 1, "f": 0.25, "d": Decimal("0.25"), "j": 1}
    two = {"i": 2, "f": 0.5, "d": Decimal("0.50"), "j": 2}
    assert wide.rows("t", 1) == {"k1": one, "k2": two}
    assert {type(value) for value in wide.rows("t", 1)["k1"].values()} == {int, float, Decimal}
    widened = {"i": BIG + 2, "f": 0.5 / 3, "d": Decimal("0.5000"), "j": 2.0}
    assert wide.rows("t", 2) == {"k1": one, "k2": widened}
    three = {"i": 3, "f": 0.75, "d": Decimal("0.75"), "j": 3}
    assert wide.rows("t") == {"k1": one, "k2": widened, "k3": three}
    with wide.gate() as gate, gate.snapshot(version=3) as snapshot:
        types = {column.name: column.type for column in snapshot.table("t").schema().value}
        assert types == {"i": "bigint", "f": "double", "d": "decimal(12,4)", "j": "double"}
        frame = snapshot.table("t").scan().to_arrow().sort_by("k")
        assert frame["i"].to_pylist() == [1, BIG + 2, 3]
        assert frame["d"].to_pylist() == [Decimal("0.2500"), Decimal("0.5000"), Decimal("0.7500")]


def test_columns_are_added_at_any_depth(stream):
    deep = stream(SCHEMA)
    first = ("named_struct('a', n) s", "array(named_struct('a', n)) l", "map('m', named_struct('a', n)) m")
    second = (
        "named_struct('b', x, 'a', n) s",
        "array(named_struct('a', n, 'b', array(named_struct('c', x)))) l",
        "map('m', named_struct('a', n, 'b', k)) m",
        "x",
    )
    deep.commit(deep.sink().each(upserts(first, second, first)), rows_of(1, 2), rows_of(2), rows_of(3))
    assert deep.rows("t", 1)["k1"] == {"s": {"a": 1}, "l": [{"a": 1}], "m": {"m": {"a": 1}}}
    assert deep.rows("t")["k1"] == {
        "s": {"a": 1, "b": None},
        "l": [{"a": 1, "b": None}],
        "m": {"m": {"a": 1, "b": None}},
        "x": None,
    }
    assert deep.rows("t")["k2"] == {
        "s": {"a": 2, "b": 0.5},
        "l": [{"a": 2, "b": [{"c": 0.5}]}],
        "m": {"m": {"a": 2, "b": "k2"}},
        "x": 0.5,
    }
    assert deep.rows("t")["k3"]["s"] == {"a": 3, "b": None}


def test_a_column_that_is_left_out_is_null_and_stays_reserved(stream, caplog):
    dropped = stream(SCHEMA)

    def each(txn, rows):
        match txn.batch_id:
            case 0:
                txn.upsert("t", rows, key="k")
            case 1:
                txn.upsert("t", rows.select("k", "n"), key="k")
            case 2:
                with pytest.raises(ConfigError, match="column x: double here, this call writes string"):
                    txn.upsert("t", rows.selectExpr("k", "n", "string(x) x"), key="k")
                txn.upsert("t", rows, key="k")
            case _:
                txn.replace("t", rows.selectExpr("k", "n", "string(x) x"), key="k")

    with caplog.at_level(logging.WARNING, "tidegate"):
        dropped.commit(dropped.sink().each(each), rows_of(1, 2), rows_of(2), rows_of(3), rows_of(4))
    assert "this upsert leaves out x, which the table has" in caplog.text
    assert dropped.rows("t", 2) == {"k1": {"n": 1, "x": 0.25}, "k2": {"n": 2, "x": None}}
    assert dropped.rows("t", 3)["k3"] == {"n": 3, "x": 0.75}
    assert dropped.rows("t") == {"k4": {"n": 4, "x": "1.0"}}


def test_a_renamed_column_keeps_its_rows(stream):
    people = stream(SCHEMA)
    sink = people.sink()
    columns = ("n", "x"), ("n AS number", "x"), ("n", "x"), ("x",)

    def each(txn, rows):
        if txn.batch_id == 2:
            with pytest.raises(ConfigError, match="column n: renamed to number here, this call writes n"):
                upserts(*columns)(txn, rows)
        elif txn.batch_id == 3:
            txn.patch("t", rows.selectExpr("k", "x * 2 AS x"), key="k")
        elif txn.batch_id == 4:
            txn.replace("t", rows, key="k")
        else:
            upserts(*columns)(txn, rows)

    people.commit(sink.each(each), rows_of(1, 2))
    assert sink.rename_column("t", "n", "number") == 2
    assert sink.rename_column("t", "n", "number") is None, "it may be repeated"
    people.commit(sink.each(each), rows_of(2), rows_of(5), [{"k": "k1", "n": None, "x": 8.0}])
    assert people.rows("t", 1) == {"k1": {"n": 1, "x": 0.25}, "k2": {"n": 2, "x": 0.5}}
    assert people.rows("t", 2) == {"k1": {"number": 1, "x": 0.25}, "k2": {"number": 2, "x": 0.5}}
    assert people.rows("t") == {"k1": {"number": 1, "x": 16.0}, "k2": {"number": 2, "x": 0.5}}
    people.commit(sink.each(each), rows_of(7))
    assert people.rows("t") == {"k7": {"n": 7, "x": 1.75}}, "a replace frees the name"
    for column, message in {"k": "fixed for life", "N": "there is none of this name", "n": "in use"}.items():
        with pytest.raises(ConfigError, match=message):
            sink.rename_column("t", column, "x")
    sink.close()


@pytest.mark.parametrize("commit", ["sync", "pipelined"])
def test_the_state_of_reducers_follows_a_widening_and_a_rename(stream, commit):
    sums = stream(SCHEMA)
    sink = sums.sink(commit=commit)

    def each(txn, rows):
        kind, total = {0: ("int", "n"), 1: ("bigint", "n"), 2: ("int", "total")}[txn.batch_id]
        wide = rows.selectExpr("'all' AS k", f"n AS {total}", f"CAST(n AS {kind}) * 1 AS m", "x AS c")
        txn.reduce("t", wide, key="k", reducers={total: "sum", "m": "max", "c": "count"})

    sums.commit(sink.each(each), rows_of(1, 2), rows_of(BIG))
    assert sink.rename_column("t", "n", "total") == 3
    sums.commit(sink.each(each), rows_of(5))
    sink.close()
    assert sums.rows("t", 1) == {"all": {"n": 3, "m": 2, "c": 2}}
    assert sums.rows("t") == {"all": {"total": BIG + 8, "m": BIG, "c": 4}}


def test_the_sequence_of_captured_changes_widens(stream):
    def each(txn, rows):
        kind = ("int", "bigint", "int")[txn.batch_id]
        changes = rows.selectExpr("k", f"CAST(n AS {kind}) lsn", "x", "IF(x < 0, 'd', 'u') op")
        if txn.batch_id == 2:
            with pytest.raises(ConfigError, match="sequence_by: lsn here, this call has x"):
                txn.apply_changes("t", changes, key="k", sequence_by="x", op_column="op")
        txn.apply_changes("t", changes, key="k", sequence_by="lsn", op_column="op")

    people = stream(SCHEMA)
    people.commit(
        people.sink().each(each),
        [{"k": "k1", "n": 1, "x": 1.0}, {"k": "k2", "n": 2, "x": -1.0}],
        [{"k": "k1", "n": BIG, "x": 2.0}],
        [{"k": "k1", "n": 5, "x": 3.0}, {"k": "k2", "n": 1, "x": 4.0}],
    )
    assert people.rows("t", 1) == {"k1": {"lsn": 1, "x": 1.0}}
    assert people.rows("t") == {"k1": {"lsn": BIG, "x": 2.0}}, "older changes write nothing"


def test_newer_by_follows_a_widening_and_a_rename(stream):
    """A late row won, since no row has the column by its new name. One of the narrower type failed."""
    seats = stream(SCHEMA)
    sink = seats.sink()
    columns = "n AS at", "CAST(n AS int) since"

    def each(txn, rows):
        at = columns[txn.batch_id]
        txn.upsert("t", rows.selectExpr("k", at, "x"), key="k", newer_by=at.split()[-1])

    seats.commit(sink.each(each), [{"k": "k1", "n": BIG, "x": 1.0}])
    assert sink.rename_column("t", "at", "since") == 2
    seats.commit(sink.each(each), [{"k": "k1", "n": 7, "x": 3.0}, {"k": "k2", "n": 7, "x": 3.0}])
    assert seats.rows("t") == {"k1": {"since": BIG, "x": 1.0}, "k2": {"since": 7, "x": 3.0}}
    sink.close()


def test_a_renamed_column_orders_no_captured_changes(stream):
    """Its rows have another name than its deletes would: late changes would win."""
    people = stream(SCHEMA)
    sink = people.sink()

    def each(txn, rows):
        if txn.batch_id == 0:
            txn.upsert("t", rows.withColumnRenamed("n", "lsn"), key="k")
        elif txn.batch_id == 1:
            with pytest.raises(ConfigError, match="tidegate schema rename t position lsn"):
                txn.apply_changes("t", rows.withColumnRenamed("n", "position"), "k", sequence_by="position")

    people.commit(sink.each(each), rows_of(1, 2))
    sink.rename_column("t", "lsn", "position")
    people.commit(sink.each(each), rows_of(1))
    sink.close()
