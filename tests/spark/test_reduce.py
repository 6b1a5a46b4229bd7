"""Reducers: state across batches, nulls, NaN, escapes, times, two tables."""

from __future__ import annotations

import decimal
import itertools

import pytest

from tidegate.errors import BadRecordError
from tidegate.spark.calls import reduce

pytestmark = pytest.mark.spark


def test_first_and_last_with_equal_order_by_do_not_depend_on_the_rows_order_t44(stream):
    """Ties are settled by the values, so that any replay has the same winner."""
    flights = stream("k string, o int, s string")
    rows = [{"k": "a", "o": 1, "s": text} for text in "cab"]

    def each(txn, batch):
        txn.reduce("firsts", batch, key="k", reducers={"s": "first"}, order_by="o")
        txn.reduce("lasts", batch, key="k", reducers={"s": "last"}, order_by="o")

    flights.commit(flights.sink().each(each), rows)
    assert flights.rows("firsts") == {"a": {"s": "a"}}
    assert flights.rows("lasts") == {"a": {"s": "c"}}


@pytest.mark.parametrize("ansi", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_sum_that_overflows_is_a_bad_record_and_nothing_is_decided(stream, conf, ansi):
    """In the batch itself, and of state and batch; ANSI must not make a difference."""
    conf("spark.sql.ansi.enabled", str(ansi).lower())
    flights = stream("k string, n bigint")
    big = 2**62
    flights.add([{"k": "a", "n": big}], [{"k": "b", "n": 1}])
    sink = flights.sink()

    def check(rows, batch_id):
        if batch_id == 0:
            sink.each(lambda txn, rows: txn.reduce("sums", rows, key="k", reducers={"n": "sum"}))(rows, 0)
            return
        for case, more in (("batch", [("c", 2 * big - 1), ("c", 1)]), ("state", [("b", 1), ("a", big)])):
            extra = rows.sparkSession.createDataFrame(more, "k string, n bigint")
            with pytest.raises(BadRecordError, match=r"sums.*'?n'?.*decimal\(38,0\)") as caught:
                sink.each(lambda txn, _, e=extra: txn.reduce("sums", e, key="k", reducers={"n": "sum"}))(
                    rows, 1
                )
            assert "sum" in str(caught.value), case
            assert flights.decided() == 1, case
        sink.each(lambda txn, rows: txn.reduce("sums", rows, key="k", reducers={"n": "sum"}))(rows, 1)

    flights.in_batch(check)
    assert flights.rows("sums") == {"a": {"n": big}, "b": {"n": 1}}


@pytest.mark.one_in(2)
@pytest.mark.both_ways
def test_minus_zero_keeps_its_sign_whatever_the_order_of_the_rows(stream):
    """It equals 0.0, so that any order of the rows, or of partitions, must decide for the same one."""
    flights = stream("k string, o int, d double, f float")
    batches = [
        [
            {"k": key, "o": place, "d": number, "f": number}
            for key, numbers in batch.items()
            for place, number in enumerate(numbers)
        ]
        for batch in (
            {"a": [-0.0], "b": [0.0, -0.0], "c": [-0.0, 0.0], "d": [-0.0, -1.5, 1.5], "e": [0.0]},
            {"a": [0.0], "e": [-0.0]},
        )
    ]

    def write(txn, rows):
        for reducer in ("min", "max", "first", "last"):
            order = "o" if reducer in ("first", "last") else None
            spread = rows.where("o = 1").union(rows.where("o <> 1"))
            txn.reduce(reducer, spread, "k", {"d": reducer, "f": reducer}, order_by=order)

    flights.commit(flights.sink(parallelism=2).each(write), *batches)
    found = {
        (name, key): {repr(number) for number in row.values()}
        for name in ("min", "max", "first", "last")
        for key, row in flights.rows(name).items()
    }
    assert found == {
        ("min", "a"): {"-0.0"}, ("max", "a"): {"0.0"}, ("first", "a"): {"-0.0"}, ("last", "a"): {"0.0"},
        ("min", "b"): {"-0.0"}, ("max", "b"): {"0.0"}, ("first", "b"): {"0.0"}, ("last", "b"): {"-0.0"},
        ("min", "c"): {"-0.0"}, ("max", "c"): {"0.0"}, ("first", "c"): {"-0.0"}, ("last", "c"): {"0.0"},
        ("min", "d"): {"-1.5"}, ("max", "d"): {"1.5"}, ("first", "d"): {"-0.0"}, ("last", "d"): {"1.5"},
        ("min", "e"): {"-0.0"}, ("max", "e"): {"0.0"}, ("first", "e"): {"0.0"}, ("last", "e"): {"-0.0"},
    }  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.both_ways
def test_sums_that_overflow_are_set_aside_and_the_others_are_summed(stream):
    """The quarantine has the batch's own sum, also one that no type has."""
    largest, one = decimal.Decimal("9" * 36 + ".99"), decimal.Decimal("0.01")
    sums = stream("k string, m decimal(38,2), n bigint")
    batches = [
        [{"k": "a", "m": largest, "n": 2**63 - 1}, {"k": "b", "m": one, "n": 1}],
        [{"k": "a", "m": one, "n": 0}, {"k": "b", "m": one, "n": 1}],
        [
            {"k": "a", "m": -one, "n": 1},
            *[{"k": "c", "m": largest, "n": 1}] * 2,
            {"k": "b", "m": -one, "n": 1},
        ],
    ]
    call = {"m": "sum", "n": "sum"}
    sink = sums.sink(parallelism=2, on_bad_record="quarantine")
    sums.commit(sink.each(lambda txn, rows: txn.reduce("sums", rows, "k", call)), *batches)
    expected = {"a": {"m": largest, "n": 2**63 - 1}, "b": {"m": one, "n": 3}}
    assert sums.rows("sums") == expected
    refused = {(row["key"], row["cause"], row["value"]) for row in sums.rows("_quarantine").values()}
    assert refused == {
        (
            b"a",
            "the sum of field m of this batch and the state at version 1 does not fit decimal(38,2)",
            b'{"m":0.01,"n":0}',
        ),
        (
            b"a",
            "the sum of field n of this batch and the state at version 2 does not fit bigint",
            b'{"m":-0.01,"n":1}',
        ),
        (
            b"c",
            "the sum of field m of this batch and the state at version 2 does not fit decimal(38,2)",
            b'{"m":1%s.98,"n":2}' % (b"9" * 36),
        ),
    }


def test_a_key_with_more_rows_than_a_sum_may_have_is_refused(stream, monkeypatch):
    """So no part of a sum can overflow."""
    monkeypatch.setattr(reduce, "SUM_ROWS_MAX", 2)
    rows = [{"k": "a", "of many rows": 1}] * 3 + [{"k": "b", "of many rows": 1}] * 2
    sums = stream("k string, `of many rows` int")
    sink = sums.sink(on_bad_record="quarantine")
    sums.commit(sink.each(lambda txn, batch: txn.reduce("t", batch, "k", {"of many rows": "sum"})), rows)
    assert sums.rows("t") == {"b": {"of many rows": 2}}
    (refused,) = sums.rows("_quarantine").values()
    assert (refused["key"], refused["cause"]) == (b"a", "a batch with a sum has at most 2 rows of one key")


DECIMALS = (
    "decimal(38,0)",
    "decimal(38,10)",
    "decimal(38,18)",
    "decimal(38,38)",
    "decimal(29,29)",
    "decimal(29,0)",
)
SUMMED = ("tinyint", "smallint", "int", "bigint", "decimal(28,7)", *DECIMALS)


def limits_of(kind):
    """The greatest value of a type, its least one, and one unit."""
    if not kind.startswith("decimal"):
        bits = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}[kind]
        return 2**bits - 1, -(2**bits), 1
    digits, scale = map(int, kind[8:-1].split(","))
    exact = decimal.Context(prec=40)
    greatest = decimal.Decimal(10**digits - 1).scaleb(-scale, exact)
    return greatest, greatest.copy_negate(), decimal.Decimal(1).scaleb(-scale, exact)


@pytest.mark.both_ways
def test_sums_are_the_same_in_every_order_of_the_rows(stream):
    """Each order passes the limits of the type somewhere, and all end within them."""
    names = {f"c{place}": kind for place, kind in enumerate(SUMMED)}
    limits = {name: limits_of(kind) for name, kind in names.items()}
    cells = {name: [most, one, least, most, -one, None] for name, (most, least, one) in limits.items()}
    orders = list(itertools.permutations(range(6)))[::17]
    rows = [
        {"k": number, "o": place, **{name: cells[name][pick] for name in names}}
        for number, order in enumerate(orders)
        for place, pick in enumerate(order)
    ]
    sums = stream("k int, o int, " + ", ".join(f"{name} {kind}" for name, kind in names.items()))
    call = dict.fromkeys(names, "sum")
    sink = sums.sink(parallelism=2)
    sums.commit(sink.each(lambda txn, batch: txn.reduce("t", batch, "k", call, order_by="o")), rows)
    with decimal.localcontext(prec=60):
        expected = {name: 2 * most + least for name, (most, least, _) in limits.items()}
    assert sums.rows("t") == dict.fromkeys(range(len(orders)), expected)
