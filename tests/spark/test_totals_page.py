"""The functions of docs/totals.md, pasted as they stand but for the store: the wrong and the right one."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.only_log("file")]

PAGE = (Path(__file__).parents[2] / "docs" / "totals.md").read_text()
WRONG, DERIVED, BY_HAND = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def order(name, customer, amount, at):
    return {"order_id": name, "customer": customer, "amount": amount, "ordered_at": at}


FIRST = [order("a", "ada", 12, 1), order("b", "ada", 30, 2), order("c", "bob", 7, 3)]
CORRECTED = [
    order("a", "ada", 2, 4),
    order("a", "ada", 20, 5),
    order("c", "ada", 7, 6),
    order("d", None, 9, 6),
]
BATCHES = (FIRST, FIRST, CORRECTED, CORRECTED, [order("d", "cleo", None, 7)])


def recount(orders):
    """The totals of these stored orders; those without a customer take no part."""
    rows = [row for row in orders.values() if row["customer"] is not None]
    counts, amounts = Counter(row["customer"] for row in rows), Counter()
    for row in rows:
        amounts[row["customer"]] += row["amount"] or 0
    return {name: {"orders": counts[name], "amount": amounts[name]} for name in counts}


def numbers(totals):
    """A sum of nothing is null in a derived table, and 0 by hand."""
    return {name: {**row, "amount": row["amount"] or 0} for name, row in totals.items()}


def pasted(code, flights):
    code = code.replace("redis://cache:6379", flights.store).replace('"shop"', '"flights"')
    code = code.replace("kafka://broker:9092", flights.log.keywords["wal"])
    names = {"__name__": "__main__"}  # so that workers get the functions themselves
    exec(code, names)
    return names


@pytest.mark.parametrize("code", [DERIVED, BY_HAND], ids=["derived", "by hand"])
def test_orders_that_come_again_are_in_the_totals_once(stream, code):
    flights = stream("order_id string, customer string, amount bigint, ordered_at bigint")
    names = pasted(code, flights)
    if code == DERIVED:
        write, sink = names["write_orders"], names["orders_sink"]()
    else:
        write, sink = names["write"], flights.sink(parallelism=2, keep_versions=9)
    flights.commit(sink.each(write), *BATCHES)
    sink.close()
    for version in range(5 if code == DERIVED else 1, len(BATCHES) + 1):
        found = numbers(flights.rows("customers", version))
        assert found == recount(flights.rows("orders", version)), version
    assert flights.rows("customers") == {
        "ada": {"orders": 3, "amount": 57},
        "cleo": {"orders": 1, "amount": None if code == DERIVED else 0},
    }


def test_reduce_counts_them_again(stream):
    flights = stream("order_id string, customer string, amount bigint, ordered_at bigint")
    flights.commit(flights.sink().each(pasted(WRONG, flights)["write_wrong"]), FIRST, FIRST)
    assert flights.rows("customers")["ada"] == {"orders": 4, "amount": 84}
    assert recount(flights.rows("orders"))["ada"] == {"orders": 2, "amount": 42}
