"""Random cases: the rows of two batches, and the calls that are made with them."""

from __future__ import annotations

import dataclasses
import datetime
import math
import random
from typing import Any

from differential.model import Row, Table, last_rows, reduced, without

UTC = datetime.timezone.utc
DDL = "k string, o int, i int, n bigint, d double, s string, at timestamp_ltz, y date, b binary, q boolean"
CELLS: dict[str, list[Any]] = {
    "k": ["", "a", "b", "ä ", "c.d", "1:"],
    "o": [0, 1, 2],
    "i": [None, -1, 0, 7],
    "n": [None, 2**40, -5],
    "d": [None, math.nan, -0.0, 0.0, -math.inf, 1.5],
    "s": [None, "", "z", 'q"\\/', "ü\t\n", "😀"],
    "at": [None, datetime.datetime(2024, 1, 1, 12, 0, 0, 1, UTC), datetime.datetime(1, 1, 2, tzinfo=UTC)],
    "y": [None, datetime.date(1, 1, 1), datetime.date(9999, 12, 31), datetime.date(1582, 10, 4)],
    "b": [None, b"", b"\x00\xff", b"a"],
    "q": [None, False, True],
}
SETTINGS: list[dict[str, str]] = [
    {},
    {"spark.sql.timestampType": "TIMESTAMP_NTZ"},
    {"spark.sql.session.timeZone": "America/New_York"},
    {"spark.sql.ansi.enabled": "false"},
    {"spark.sql.caseSensitive": "true", "spark.sql.legacy.timeParserPolicy": "LEGACY"},
    {"spark.sql.function.concatBinaryAsString": "true", "spark.sql.adaptive.enabled": "false"},
]
ORDERS = ["o", "i", "n", "d", "s", "at", "y", "b", "q"]
REDUCERS = {"i": ["sum", "min", "last"], "n": ["count", "max"], "d": ["min", "max"], "at": ["min", "max"]}
KINDS = ("upsert", "mixed", "replace", "reduce", "patch", "apply_changes")


@dataclasses.dataclass
class Case:
    """One kind of call for two batches of rows; ``columns`` are those that the rows of a batch have."""

    number: int
    kind: str
    settings: dict[str, str]
    batches: list[list[Row]]
    columns: list[list[str]]
    order_by: list[str]
    reducers: dict[str, str]

    @property
    def table(self) -> str:
        """The table of this case alone."""
        return f"t{self.number}"

    def write(self, txn: Any, rows: Any, batch: int) -> None:
        """Make the calls of a batch."""
        rows = rows.select(*self.columns[batch])
        match self.kind:
            case "mixed":
                txn.upsert(self.table, rows.where("o <> 1"), "k", order_by=self.order_by)
                txn.delete(self.table, rows.where("o = 1"), "k")
                txn.upsert(self.table, rows.where("o = 2"), "k", order_by=self.order_by)
            case "reduce":
                txn.reduce(self.table, rows, "k", self.reducers, order_by="o")
            case "apply_changes":
                txn.apply_changes(self.table, rows, "k", sequence_by="o")
            case kind:
                getattr(txn, kind)(self.table, rows, "k", order_by=self.order_by)

    def follow(self, before: Table, batch: int) -> Table:
        """Return the table after a batch, by the model."""
        rows = [{name: row[name] for name in self.columns[batch]} for row in self.batches[batch]]
        if self.kind == "reduce":
            return self._reduce(before, rows)
        if self.kind == "mixed":
            table = before | self._values([row for row in rows if row["o"] != 1])
            table = {key: values for key, values in table.items() if key not in self._deleted(rows)}
            return table | self._values([row for row in rows if row["o"] == 2])
        order = ["o"] if self.kind == "apply_changes" else self.order_by
        new = {
            key: [without(row, ["k"]) for row in tied] for key, tied in last_rows(rows, "k", order).items()
        }
        match self.kind:
            case "replace":
                return new
            case "patch":
                nothing = [dict.fromkeys(without(dict.fromkeys(self.columns[0]), ["k"]))]
                patched = {
                    key: [old | value for old in before.get(key, nothing) for value in values]
                    for key, values in new.items()
                }
                return before | patched
            case "apply_changes":
                for key, values in list(new.items()):
                    if key in before and before[key][0]["o"] > values[0]["o"]:
                        del new[key]
                    elif key in before and before[key][0]["o"] == values[0]["o"]:
                        new[key] = [*values, *before[key]]
        return before | new

    def _values(self, rows: list[Row]) -> Table:
        last = last_rows(rows, "k", self.order_by)
        return {key: [without(row, ["k"]) for row in tied] for key, tied in last.items()}

    def _deleted(self, rows: list[Row]) -> set[Any]:
        return {row["k"] for row in rows if row["o"] == 1}

    def _reduce(self, before: Table, rows: list[Row]) -> Table:
        table = dict(before)
        for key in {row["k"] for row in rows}:
            mine = [row for row in rows if row["k"] == key]
            (state,) = before.get(key, [None])
            table[key] = [reduced(state, mine, self.reducers, "o")]
        return table


def random_case(seed: int, number: int) -> Case:
    """Return the case of this number: the same for the same seed."""
    chance = random.Random(f"{seed}/{number}")
    kind, names = chance.choice(KINDS), list(CELLS)
    columns = [["k", "o", *chance.sample(names[2:], chance.randint(1, len(names) - 2))]]
    later = columns[0] if kind != "patch" else ["k", *chance.sample(columns[0][1:], len(columns[0]) // 2)]
    usable = [name for name in ORDERS if name in columns[0] and name in later]
    reducers = {name: chance.choice(of) for name, of in REDUCERS.items() if name in columns[0]}
    if kind == "reduce" and not reducers:
        kind = "upsert"
    if kind == "reduce" and "last" in reducers.values():
        reducers = {name: "max" if of == "last" else of for name, of in reducers.items()}
    order = chance.sample(usable, chance.randint(1, len(usable))) if usable else ["k"]
    batches = [
        [{name: chance.choice(cells) for name, cells in CELLS.items()} for _ in range(chance.randint(0, 25))]
        for _ in range(2)
    ]
    return Case(number, kind, chance.choice(SETTINGS), batches, [columns[0], later], order, reducers)
