"""Random cases: the rows of two batches, and the calls that are made with them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from differential.cells import CELLS, KEYS, MAPS, NESTED, ORDERS, REDUCERS, TYPES, ddl
from differential.encoding import json_text
from differential.model import Call, Model, Row

BATCHES = 2
PLAIN = ("rows", "rows", "rows", "bytes", "newer", "reduce", "apply_changes")
FUNCTIONS = ("update", "local_state")


@dataclasses.dataclass
class Case:
    """One table's calls in each batch, and the rows of each batch."""

    number: int
    kind: str
    key: list[str]
    columns: list[str]
    expires: bool
    rows: list[list[Row]]
    calls: list[list[Call]]

    @property
    def table(self) -> str:
        """The table of this case alone."""
        return f"t{self.number}"

    @property
    def ddl(self) -> str:
        """The schema of the rows."""
        value = ", value binary" if self.kind == "bytes" else ""
        return ddl([*self.key, *self.columns]) + value

    def tuples(self, batch: int) -> list[tuple[Any, ...]]:
        """Return the rows of a batch as tuples, in the order of the schema."""
        return [tuple(row.values()) for row in self.rows[batch]]

    def model(self, key_groups: int) -> Model:
        """Return the model of this case, before its first batch."""
        step = None
        if self.kind == "update":
            step = counting(self.columns[-1], f"{self.table}.each", f"{self.table}.parity")
        elif self.kind == "local_state":
            step = lambda _, rows, state, __: collecting(None, rows, state, None)  # noqa: E731
        return Model(self.table, self.key, key_groups, expires=self.expires, step=step)

    def has_bad_rows(self, batch: int) -> bool:
        """Return whether a batch has rows without a key. A local state needs none."""
        used = [row for row in self.rows[batch] if any(row["o"] in call.only for call in self.calls[batch])]
        return self.kind != "local_state" and any(row[name] is None for row in used for name in self.key)

    def write(self, txn: Any, rows: Any, batch: int) -> None:
        """Make the calls of a batch."""
        for call in self.calls[batch]:
            used = rows if len(call.only) == len(CELLS["o"][1]) else rows.where(f"o IN {(*call.only, -1)}")
            self._make(txn, call, used)

    def _make(self, txn: Any, call: Call, rows: Any) -> None:
        order: dict[str, Any] = {} if call.order_by is None else {"order_by": call.order_by}
        match call.kind:
            case "delete":
                txn.delete(self.table, rows, self.key)
            case "bytes":
                txn.upsert(self.table, rows, self.key, value="value", **order)
            case "newer":
                txn.upsert(self.table, rows, self.key, newer_by=call.arguments["newer_by"])
            case "reduce":
                txn.reduce(self.table, rows, self.key, call.arguments["reducers"], **order)
            case "apply_changes":
                txn.apply_changes(
                    self.table,
                    rows.selectExpr("*", "z AS op"),
                    self.key,
                    sequence_by=call.order_by,
                    op_column="op",
                    delete_values=call.arguments["deletes"],
                )
            case "update":
                last, each, parity = self.columns[-1], f"{self.table}.each", f"{self.table}.parity"
                schema = f"seen bigint, text string, last {TYPES[last]}"
                outputs = {each: (ddl(self.key), schema), parity: ("parity int", "text string")}
                fn = counting(last, each, parity)
                txn.update(self.table, rows, self.key, fn, schema=schema, outputs=outputs, **order)
            case "local_state":
                txn.local_state(self.table, rows, collecting, schema="text string", **call.arguments)
            case kind:
                used = rows.select(*self.key, *call.columns)
                if (deleted := call.arguments.get("delete_when")) is not None:
                    order["delete_when"] = f"o = {deleted}"
                getattr(txn, kind)(self.table, used, self.key, **order)


def counting(column: str, each: str, parity: str) -> Callable[..., Row | None]:
    """Return a function for ``update``: it counts rows, keeps the last one, emits, and deletes at times."""

    def step(key: Any, rows: Any, state: Row | None, emit: Any) -> Row | None:
        rows = list(rows)
        seen = len(rows) + (state["seen"] if state else 0)
        new = {"seen": seen, "text": json_text(rows[0]), "last": rows[-1][column]}
        emit(each, key, None if seen % 4 == 0 else new)
        emit(parity, seen % 2, {"text": json_text(rows[-1])})
        if seen % 5 == 0:
            return None
        return state if state and seen % 3 == 0 else new

    return step


def collecting(_: Any, rows: Any, state: list[Row], __: Any) -> list[Row]:
    """Keep the last rows of an instance: the function of the local states."""
    return [*state, *({"text": json_text(row)} for row in rows)][-5:]


def random_case(seed: int, number: int, kinds: tuple[str, ...]) -> Case:
    """Return the case of this number: the same for the same arguments."""
    chance = random.Random(f"{seed}/{number}")
    kind, names = chance.choice(kinds), list(CELLS)
    key = chance.sample(list(KEYS), chance.choice((1, 1, 2, 3)))
    columns = ["o", *chance.sample(names[1:], chance.randint(1, 5))]
    if kind == "apply_changes" and "z" not in columns:
        columns.append("z")
    sizes = [chance.choice((0, 1, 5, 12)) for _ in range(BATCHES)]
    rows = [[_row(chance, kind, key, columns) for _ in range(size)] for size in sizes]
    calls = _calls(chance, kind, columns)
    expires = kind != "local_state" and chance.random() < 0.2
    return Case(number, kind, key, columns, expires, rows, calls)


def _row(chance: random.Random, kind: str, key: list[str], columns: list[str]) -> Row:
    row = {name: chance.choice(KEYS[name][1]) for name in key}
    row |= {name: chance.choice(CELLS[name][1]) for name in columns}
    return row | ({"value": chance.choice([b"", b"\x00", b"a\xff"])} if kind == "bytes" else {})


def _order(chance: random.Random, columns: list[str], usable: list[str]) -> list[str] | None:
    names = [name for name in columns if name in usable]
    if not names or chance.random() < 0.2:
        return None
    return chance.sample(names, chance.randint(1, min(2, len(names))))


def _calls(chance: random.Random, kind: str, columns: list[str]) -> list[list[Call]]:
    order = _order(chance, columns, ORDERS)
    match kind:
        case "rows":
            return _rows_calls(chance, columns)
        case "reduce":
            names = [name for name in columns if name in REDUCERS]
            reducers = {name: chance.choice(REDUCERS[name]) for name in names} or {"o": "sum"}
            call = Call(kind, columns, order, arguments={"reducers": reducers})
        case "newer":
            newer_by = chance.choice([name for name in columns if name in ("o", "z")])
            call = Call(kind, columns, [newer_by], arguments={"newer_by": newer_by})
        case "apply_changes":
            sequence = chance.choice((["o"], ["z"], ["z", "o"]))
            call = Call(kind, columns, sequence, arguments={"deletes": chance.choice((["a"], ["", "ä"]))})
        case "local_state":
            by = chance.choice([name for name in (["o"], ["s", "o"], ["i"]) if {*name} <= {*columns}])
            arguments = {
                "by": by,
                "order_by": _order(chance, columns, [name for name in CELLS if name not in MAPS]) or [],
                "redistribute": chance.choice(("split", "union")),
            }
            call = Call(kind, columns, None, arguments=arguments)
        case "update":
            call = Call(kind, columns, _order(chance, columns, [*ORDERS, *NESTED[:2], "w"]))
        case _:
            call = Call(kind, columns, order)
    return [[call] for _ in range(BATCHES)]


def _rows_calls(chance: random.Random, columns: list[str]) -> list[list[Call]]:
    """Return calls of one table: each batch upserts, deletes, patches or replaces."""
    known = ["o", *chance.sample(columns[1:], chance.randint(1, len(columns) - 1))]
    batches = []
    for batch in range(BATCHES):
        order = _order(chance, known, ORDERS)
        match chance.choice(("upsert", "delete_when", "mixed", "replace", "patch")):
            case "patch":
                some = chance.sample(columns, chance.randint(1, len(columns)))
                batches.append([Call("patch", some, _order(chance, some, ORDERS))])
                known = [
                    *(known if batch else []),
                    *(name for name in some if not batch or name not in known),
                ]
            case "delete_when":
                batches.append([Call("upsert", known, order, arguments={"delete_when": chance.randrange(3)})])
            case "mixed":
                upsert = Call("upsert", known, order, only=(0, 2))
                batches.append([upsert, Call("delete", known, None, only=(1, 2)), upsert._replace(only=(0,))])
            case kind:
                batches.append([Call(kind, known, order)])
        if "o" not in known:
            known = ["o", *known]
    return batches
