"""Derived tables through Spark: all calls, loads, the driver's small batches, and what is refused."""

from __future__ import annotations

import json
import random
from collections import Counter
from decimal import Decimal

import pytest
from pyspark.sql import functions

from support.cli import done
from tidegate.spark import Derived

pytestmark = pytest.mark.spark

SCHEMA = "id int, customer string, amount bigint, price decimal(10,2), open boolean, seq bigint, op string"
NAMES = ["ada", "bob", "\u00e9va", None]
CUSTOMERS = Derived(
    "customers",
    of="orders",
    key="customer",
    aggregates={"orders": "count", "total": ("sum", "amount"), "newest": ("last", "id", "seq")},
)
OPEN = Derived(
    "open",
    of="orders",
    key=["customer", "op"],
    where="open",
    aggregates={"spent": ("sum", "price"), "amounts": ("distinct", "amount"), "top": ("top", "price", 2)},
)
BOTH = [CUSTOMERS, OPEN]


def order(chance, seq=0):
    return {
        "id": chance.randrange(25),
        "customer": chance.choice(NAMES),
        "amount": chance.choice([None, *range(-3, 9)]),
        "price": chance.choice([None, Decimal("0.05"), Decimal("-12.30")]),
        "open": chance.choice([True, False, None]),
        "seq": seq + chance.randrange(6),
        "op": chance.choice(["u", "u", "d"]),
    }


def totals(orders):
    groups: dict = {}
    newest: dict = {}
    for key, row in orders.items():
        if row["customer"] is not None:
            groups.setdefault(row["customer"], []).append(row["amount"])
            if row["seq"] is not None:
                newest.setdefault(row["customer"], []).append((row["seq"], key))
    counts = {name: [a for a in amounts if a is not None] for name, amounts in groups.items()}
    return {
        name: {
            "orders": len(amounts),
            "total": sum(counts[name]) if counts[name] else None,
            "newest": max(newest[name])[1] if name in newest else None,
        }
        for name, amounts in groups.items()
    }


def spent(orders):
    groups: dict = {}
    for row in orders.values():
        if row["customer"] is not None and row["op"] is not None and row["open"] is True:
            groups.setdefault((row["customer"], row["op"]), []).append((row["price"], row["amount"]))
    kept = {key: sorted([p for p, _ in pairs if p is not None]) for key, pairs in groups.items()}
    return {
        key: {
            "spent": sum(prices) if prices else None,
            "amounts": len({amount for _, amount in groups[key]} - {None}),
            "top": prices[:-3:-1],
        }
        for key, prices in kept.items()
    }


def check(streams, first=1):
    last = streams.version()
    for version in range(first, last + 1):
        orders = streams.rows("orders", version)
        assert streams.rows("customers", version) == totals(orders), version
        assert streams.rows("open", version) == spent(orders), version
    assert verified(streams).startswith("nothing wrong")
    return last


def verified(streams):
    return done("verify", "--namespace", "flights", "--store", streams.store, *streams.log.words)


def adder():
    """A function that workers get whole: they have no module of tests."""
    names = ("customer", "amount", "price", "open", "seq", "op")

    def add(key, rows, state, emit):
        last = list(rows)[-1]
        emit("seen", 1, {"n": 1})
        return None if last["op"] == "d" else {**(state or {}), **{name: last[name] for name in names}}

    return add


KINDS = ["upsert", "delete_when", "both", "newer", "patch", "update", "replace", "upsert", "delete"]
VALUES = "customer string, amount bigint, price decimal(10,2), open boolean, seq bigint, op string"


def write(txn, rows):
    kind = KINDS[txn.batch_id % len(KINDS)]
    of = "orders", rows, "id"
    if kind == "upsert":
        txn.upsert(*of, order_by="seq")
    elif kind == "delete_when":
        txn.upsert(*of, order_by="seq", delete_when="op = 'd'")
    elif kind == "both":
        txn.upsert(*of, order_by="seq")
        txn.delete("orders", rows.filter("op = 'd'"), "id")
    elif kind == "newer":
        txn.upsert(*of, newer_by="seq")
    elif kind == "patch":
        txn.patch("orders", rows.select("id", "amount"), "id", order_by="amount")
    elif kind == "update":
        txn.update(*of, adder(), schema=VALUES, order_by="seq", outputs={"seen": ("id int", "n int")})
    elif kind == "replace":
        txn.replace(*of, order_by="seq")
    else:
        txn.delete("orders", rows.filter("op = 'd'"), "id")


@pytest.mark.both_ways
@pytest.mark.parametrize("commit", ["sync", "pipelined"])
def test_every_version_is_the_aggregation_of_its_base(stream, commit):
    chance, streams = random.Random(5), stream(SCHEMA)
    sink = streams.sink(parallelism=3, keep_versions=40, commit=commit, derived=BOTH)
    batches = [[order(chance, 3 * n) for _ in range(chance.choice([1, 5, 30]))] for n in range(11)]
    streams.commit(sink.each(write), *batches, batches[-1])  # the last file is delivered again
    sink.close()
    assert check(streams) == 12
    before: dict = {}
    for version, steps in steps_of(streams):
        now = streams.rows("customers", version)
        if KINDS[(version - 1) % len(KINDS)] == "replace":
            before = {}  # it begins without rows
        changed = sum(before.get(key) != now.get(key) for key in before.keys() | now.keys())
        step = steps["derive.customers"]
        assert changed <= step["rows"] <= len(before.keys() | now.keys()), version
        assert (step["tables"], step["frames"] > 0) == (["customers"], step["rows"] > 0)
        before = now


def steps_of(streams):
    """Each version's steps by name."""
    where = "--namespace", "flights", "--store", streams.store, *streams.log.words
    versions = json.loads(done("history", "--steps", "--json", *where))
    return [(each["version"], {step["name"]: step for step in each["steps"]}) for each in versions]


def test_apply_changes_and_loads_and_a_late_declaration(stream, spark):
    chance, streams = random.Random(6), stream(SCHEMA)

    def changes(txn, rows):
        txn.apply_changes("orders", rows, "id", sequence_by="seq", op_column="op")

    late = Derived("customers", of="orders", key="customer", aggregates={"orders": "count"})
    batches = [[order(chance, 2 * n) for _ in range(12)] for n in range(4)]
    options = {"parallelism": 2, "keep_versions": 40}
    streams.commit(streams.sink(**options).each(changes), *batches[:2])
    streams.commit(streams.sink(derived=[late], **options).each(changes), batches[2])  # builds it: version 3
    sink = streams.sink(derived=[CUSTOMERS], **options)
    streams.commit(sink.each(changes), batches[3], batches[2])  # dropped, built, and two batches
    rows = [{**order(chance), "id": 900 + n} for n in range(9)]
    frame = spark.createDataFrame(rows, SCHEMA).drop("op")
    sink.load({"orders": frame}, key="id", token="more")
    sink.load({"orders": frame.filter("id < 905")}, key="id", token="exactly", replace=True)
    sink.close()
    last = streams.version()
    assert last == 10
    for version in range(1, last + 1):
        with streams.gate() as gate, gate.snapshot(version=version) as snap:
            has = "customers" in snap.tables()
        assert has == (version not in (1, 2, 5)), version
        if has:
            counted = {name: row["orders"] for name, row in totals(streams.rows("orders", version)).items()}
            found = streams.rows("customers", version)
            assert {name: row["orders"] for name, row in found.items()} == counted
            assert version < 6 or found == totals(streams.rows("orders", version))


def one(key, who="ada", amount=5):
    return {"id": key, "customer": who, "amount": amount, "price": None, "open": True, "seq": 1, "op": "u"}


def refused(streams, sink, function, row, says):
    before = streams.decided()
    streams.add([row])
    ran = streams.run(sink.each(function))
    sink.close()
    assert says in str(ran.error), ran.error
    assert streams.decided() == before
    for file in sorted(streams.input.glob("*.parquet"))[-1:]:
        file.unlink()


def upsert(txn, rows):
    txn.upsert("orders", rows, "id", order_by="seq")


def test_what_a_version_cannot_keep_is_refused(stream):
    """Each in a restarted query, in turn. The next right batch continues."""
    streams = stream(SCHEMA)
    streams.commit(streams.sink(parallelism=2, derived=[CUSTOMERS]).each(upsert), [one(1), one(2, "bob")])

    def into(txn, rows):
        upsert(txn, rows)
        txn.upsert("customers", rows.selectExpr("customer", "1L AS orders", "amount AS total"), "customer")

    def drop(txn, rows):
        txn.upsert("other", rows, "id")
        txn.drop_table("orders")

    def bytes_instead(txn, rows):
        txn.replace("orders", rows.select("id", "op"), "id", value="op")

    def other_type(txn, rows):
        txn.replace("orders", rows.withColumn("amount", functions.lit(1.5)), "id")

    def too_large(txn, rows):
        upsert(txn, rows.withColumn("amount", functions.lit(2**63 - 1)))

    faults = [
        ({}, upsert, "this version writes orders by itself"),
        ({"derived": [CUSTOMERS]}, into, "writes into it"),
        ({"derived": [CUSTOMERS]}, drop, "drops the one"),
        ({"derived": [CUSTOMERS]}, bytes_instead, "have no columns"),
        ({"derived": [CUSTOMERS]}, other_type, "cannot be undone exactly"),
        ({"derived": [CUSTOMERS]}, too_large, "does not fit bigint"),
        ({"derived": [CUSTOMERS], "ttl": {"orders": "30 days"}}, upsert, "rows of table orders expire"),
        ({"derived": [CUSTOMERS], "ttl": {"customers": "30 days"}}, upsert, "rows of table customers expire"),
    ]
    streams.add([one(3)])
    for options, function, says in faults:
        sink = streams.sink(parallelism=2, **options)
        ran = streams.run(sink.each(function))
        sink.close()
        assert says in str(ran.error), (says, ran.error)
        assert streams.decided() == 1
    sink = streams.sink(parallelism=2, derived=[CUSTOMERS])
    ran = streams.run(sink.each(upsert))
    sink.close()
    assert ran.error is None
    assert streams.rows("customers") == totals(streams.rows("orders"))
    assert Counter(row["customer"] for row in streams.rows("orders").values()) == {"ada": 2, "bob": 1}


def test_a_version_that_changes_a_column_drops_its_derived_table_and_the_next_one_builds_it(stream):
    """The refused batch comes again with what the error proposes, and none of its rows is lost."""
    streams = stream(SCHEMA)

    def of_type(kind, *dropped):
        def function(txn, rows):
            txn.upsert("orders", rows.withColumn("seq", functions.col("seq").cast(kind)), "id")
            for name in dropped:
                txn.drop_table(name)

        return function

    def run(function):
        sink = streams.sink(parallelism=2, derived=[by_seq])
        ran = streams.run(sink.each(function))
        sink.close()
        return ran.error

    by_seq = Derived("by_seq", of="orders", key="seq", aggregates={"orders": "count"})
    streams.add([one(1), one(2)])
    assert run(of_type("int")) is None
    streams.add([one(3)])
    assert "txn.drop_table('by_seq'), too" in str(run(of_type("bigint")))
    assert streams.decided() == 1
    assert run(of_type("bigint", "by_seq")) is None
    streams.add([one(4)])
    assert run(of_type("bigint")) is None
    assert streams.rows("orders").keys() == {1, 2, 3, 4}
    assert streams.rows("by_seq") == {one(1)["seq"]: {"orders": 4}}
    assert verified(streams).startswith("nothing wrong")


def test_a_group_whose_key_is_too_long_is_no_row_to_set_aside(stream):
    streams = stream(SCHEMA)
    sink = streams.sink(parallelism=2, derived=[CUSTOMERS], on_bad_record="quarantine")
    streams.add([one(1, "x" * 40_000)])
    ran = streams.run(sink.each(upsert))
    sink.close()
    assert "table customers" in str(ran.error)
    assert "its key takes 40000 bytes, 32768 are allowed" in str(ran.error)
    assert "on_bad_record" not in str(ran.error)
