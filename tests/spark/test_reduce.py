"""Reducers against a plain model: state across batches, nulls, NaN, escapes, times, two tables."""

from __future__ import annotations

import datetime
import decimal
import itertools
import math
import random

import pytest

from tidegate.errors import BadRecordError
from tidegate.spark.calls import reduce

pytestmark = pytest.mark.spark

SCHEMA = (
    "k string, j int, o bigint, n bigint, i int, y tinyint, d double, f float, s string, b boolean,"
    " t timestamp, a date, w timestamp_ntz, x binary, m decimal(12,2), l decimal(38,20)"
)
UTC = datetime.timezone.utc
TEXTS = ["", "x", 'q"\\/', "ü\t\n\x01\x1f", "😀", "{}", "null"]
FLOATS = [0.5, -2.25, 1e300, 8.0, math.nan, math.inf, -math.inf]


def random_batch(chance, size, start):
    def maybe(values):
        return None if chance.random() < 0.3 else chance.choice(values)

    return [
        {
            "k": chance.choice(["a", "b", "", "ü"]),
            "j": chance.randrange(2),
            "o": start + place,
            "n": maybe([1, -5, 2**40]),
            "i": maybe([1, 2, -(2**31)]),
            "y": maybe([-128, 127, 1]),
            "d": maybe(FLOATS),
            "f": maybe([0.5, -2.25, 3.0]),
            "s": maybe(TEXTS),
            "b": maybe([True, False]),
            "t": maybe([datetime.datetime(2013, 1, d, 23, 59, 59, 999_999, UTC) for d in (1, 9, 30)]),
            "w": maybe([datetime.datetime(2013, 1, d, 2, 30) for d in (1, 9, 30)]),  # noqa: DTZ001
            "x": maybe([b"", b"\x00", b"\x00\xff", b"a"]),
            "m": maybe([decimal.Decimal(text) for text in ("0.01", "-9999999999.99", "0.00")]),
            "l": maybe([decimal.Decimal(10**17), decimal.Decimal("-1E-20")]),
            "a": maybe([datetime.date(1, 1, 1), datetime.date(2013, 1, 9), datetime.date(9999, 12, 31)]),
        }
        for place in range(size)
    ]


CALLS = {
    "sums": (
        ["k"],
        {"n": "sum", "i": "sum", "y": "sum", "d": "sum", "f": "sum", "m": "sum", "l": "sum"},
        None,
    ),
    "counts": (["k", "j"], {"n": "count", "s": "count", "b": "count", "t": "count"}, None),
    "mins": (
        ["k"],
        dict.fromkeys(["n", "i", "y", "d", "f", "s", "t", "a"], "min"),
        None,
    ),
    "maxs": (
        ["j"],
        dict.fromkeys(["n", "i", "y", "d", "f", "s", "t", "a"], "max"),
        None,
    ),
    "firsts": (["k"], dict.fromkeys(["n", "d", "f", "s", "b", "t", "a"], "first"), "o"),
    "lasts": (["k"], dict.fromkeys(["n", "d", "f", "s", "b", "t", "a"], "last"), None),
}

OTHER_CALLS = {
    "sums": (["k"], {"m": "sum", "l": "sum"}, None),
    "mins": (["k"], dict.fromkeys(["b", "w", "x", "m", "l"], "min"), None),
    "maxs": (["j"], dict.fromkeys(["b", "w", "x", "m", "l"], "max"), None),
    "lasts": (["k"], dict.fromkeys(["w", "x", "m"], "last"), "o"),
}


def combined(reducer, state, value):
    """One more value; NaN is above every number, as in Spark."""

    def rank(x):
        return (isinstance(x, float) and math.isnan(x), x)

    if reducer == "count":
        return (state or 0) + (value is not None)
    if value is None or state is None:
        return state if value is None else value
    match reducer:
        case "sum":
            exact = decimal.Context(prec=60)
            return exact.add(state, value) if isinstance(value, decimal.Decimal) else state + value
        case "min":
            return min(state, value, key=rank)
        case "max":
            return max(state, value, key=rank)
        case "first":
            return state
        case _:
            return value


def follow(tables, batch, calls):
    for table, (keys, reducers, _) in calls.items():
        for row in batch:
            key = row[keys[0]] if len(keys) == 1 else tuple(row[k] for k in keys)
            state = tables[table].setdefault(key, dict.fromkeys(reducers))
            for name, reducer in reducers.items():
                state[name] = combined(reducer, state[name], row[name])


def comparable(content):
    """NaN equals NaN here."""
    return {k: {n: str(x) if isinstance(x, float) else x for n, x in v.items()} for k, v in content.items()}


@pytest.mark.one_in(4)
@pytest.mark.both_ways
@pytest.mark.parametrize(
    "seed, calls", [(1, CALLS), pytest.param(2, CALLS, marks=pytest.mark.slow), (3, OTHER_CALLS)]
)
def test_random_batches_are_reduced_with_the_state_as_a_dictionary_would_i1(stream, seed, calls):
    def write(txn, rows):
        for table, (keys, reducers, order_by) in calls.items():
            txn.reduce(table, rows, key=keys, reducers=reducers, order_by=order_by)

    chance = random.Random(seed)
    batches = [random_batch(chance, size, 1000 * n) for n, size in enumerate((30, 1, 12))]
    flights = stream(SCHEMA)
    flights.commit(flights.sink(parallelism=2).each(write), *batches)
    expected = {name: {} for name in calls}
    for version, batch in enumerate(batches, start=1):
        follow(expected, batch, calls)
        for table in calls:
            found = comparable(flights.rows(table, version))
            assert found == comparable(expected[table]), (seed, version, table)


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
