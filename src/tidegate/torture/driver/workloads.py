"""Workloads with a known truth: the changes of batch b to each table are a function of the seed and b.

A workload is one table of its own. Most batches describe an operation on the present rows: move an amount
between two accounts, append to a list, add to a counter. ``rows_after`` turns that into rows, given the state
that a driver read one version before. A judge that has only the seed needs no state of the store.
"""

from __future__ import annotations

import json
import operator
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidegate.torture.history.events import Change

State = Mapping[str, Any]
"""One table: values by key."""

ACCOUNTS, BALANCE = 8, 100
MARKERS, LISTS, CHURNED, COUNTERS, REPLACED = 8, 6, 12, 6, 9
STATEFUL = frozenset({"bank", "lists", "counters"})
"""Tables whose rows are computed from those of the version before."""
VALUE = "v"
"""The column of values in tables that Spark writes: a JSON text."""
OTHER_ROWS = 1_000_003
"""The first number of a replay with other rows: none of its numbers is one of the first try's."""


def bank(chance: random.Random, batch: int) -> Change:
    """Transfer between accounts: the sum over all accounts never changes."""
    if batch == 0:
        return Change(table="bank", rows={f"a{number}": {"balance": BALANCE} for number in range(ACCOUNTS)})
    moved = dict.fromkeys((f"a{number}" for number in range(ACCOUNTS)), 0)
    for _ in range(4):
        source, target = chance.sample(sorted(moved), 2)
        amount = chance.randrange(1, 20)
        moved[source] -= amount
        moved[target] += amount
    reduce = {key: {"balance": amount} for key, amount in moved.items() if amount}
    return Change(table="bank", reduce=reduce, reducers={"balance": "sum"})


def marker(chance: random.Random, batch: int) -> Change:
    """Set every key to the number of the batch: two numbers in one snapshot are two versions."""
    number = batch + OTHER_ROWS * chance.randrange(1, 1_000)
    return Change(table="marker", rows=dict.fromkeys((f"m{index}" for index in range(MARKERS)), number))


def lists(chance: random.Random, batch: int) -> Change:
    """Append to lists that only grow: a lost batch leaves a gap, a doubled one an item twice."""
    keys = chance.sample(range(LISTS), 3)
    return Change(table="lists", append={f"l{key}": [[batch, chance.randrange(1_000)]] for key in keys})


def churn(chance: random.Random, batch: int) -> Change:
    """Delete keys and put them back: an old row that is resurrected has an old number."""
    rows: dict[str, Any] = {}
    for index in range(CHURNED):
        match chance.randrange(3):
            case 0:
                rows[f"d{index}"] = None
            case 1:
                rows[f"d{index}"] = {"batch": batch, "chance": chance.randrange(1_000)}
            case _:
                pass
    rows[f"d{batch % CHURNED}"] = {"batch": batch, "chance": -1}
    return Change(table="churn", rows=rows)


def counters(chance: random.Random, batch: int) -> Change:  # noqa: ARG001 - as all workloads
    """Reduce a sum, a smallest and a largest number per key, from the state one version before."""
    reduce: dict[str, dict[str, Any]] = {}
    for index in chance.sample(range(COUNTERS), 4):
        value = chance.randrange(-500, 500)
        reduce[f"c{index}"] = {"events": 1, "least": value, "most": value}
    return Change(table="counters", reduce=reduce, reducers={"events": "sum", "least": "min", "most": "max"})


def replaced(chance: random.Random, batch: int) -> Change:
    """Empty the table and write all of it, in every second batch; in the others change some of its rows."""
    keys = chance.sample(range(REPLACED), 5 if batch % 2 == 0 else 2)
    rows = {f"r{key}": {"batch": batch, "rank": rank} for rank, key in enumerate(keys)}
    return Change(table="replaced", replace=batch % 2 == 0, rows=rows)


WORKLOADS: dict[str, Callable[[random.Random, int], Change]] = {
    "bank": bank,
    "marker": marker,
    "lists": lists,
    "churn": churn,
    "counters": counters,
    "replaced": replaced,
}
"""Workloads by name, which is the table's too."""


def changes_of(names: Iterable[str], seed: str, batch: int, salt: int = 0) -> list[Change]:
    """Compute the changes of a batch, table by table; ``salt`` selects other rows, as a replay may have."""
    return [WORKLOADS[name](random.Random(f"{seed}-{batch}-{salt}-{name}"), batch) for name in names]


def derived_of(names: Iterable[str]) -> dict[str, str]:
    """Map derived tables to their bases: the number of rows by value. Drivers with Spark declare them."""
    return {f"{name}_values": name for name in names}


# -- from changes to rows ------------------------------------------------------------------------------


def keys_read(change: Change) -> list[str]:
    """Return the keys whose values are needed to compute the change's rows."""
    return sorted({*change.append, *change.reduce} - change.rows.keys())


def rows_after(change: Change, state: State) -> dict[bytes, bytes | None]:
    """Compute the rows of one change as a driver stages them, given the values one version before."""
    before: State = {} if change.replace else state
    after: dict[str, Any] = dict(change.rows)
    for key, items in change.append.items():
        after[key] = [*(after.get(key, before.get(key)) or []), *items]
    for key, values in change.reduce.items():
        after[key] = _reduced(after.get(key, before.get(key)), values, change.reducers)
    return {key.encode(): None if value is None else encoded(value) for key, value in after.items()}


REDUCERS: dict[str, Callable[[Any, Any], Any]] = {"sum": operator.add, "min": min, "max": max}
"""The judge has its own, so that neither hides a defect of the other."""


def _reduced(before: Any, values: Mapping[str, Any], reducers: Mapping[str, str]) -> dict[str, Any]:
    row = dict(before or {})
    for column, value in values.items():
        row[column] = REDUCERS[reducers[column]](row[column], value) if column in row else value
    return row


def encoded(value: Any) -> bytes:
    """Encode a value as it is stored."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def decoded(content: bytes | str) -> Any:
    """Decode the JSON text of a value."""
    return json.loads(content)
