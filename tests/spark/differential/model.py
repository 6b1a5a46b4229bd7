"""The calls of a transaction on dictionaries: what each writes into the log, byte for byte.

A stored value is its flags and content: ``+`` and a row, ``e`` and a row that expires (the time is left out),
``-`` for a delete. ``follow`` returns the rows that a batch writes, by table and key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from differential.cells import MAPS
from differential.encoding import json_text, key_bytes, key_group, object_text, rank, row_hash

Row = dict[str, Any]
Changes = dict[str, dict[bytes, bytes]]
DELETE = b"-"


class Call(NamedTuple):
    """A call with the rows of a batch whose ``o`` is one of ``only``.

    ``order_by`` None is the rows' order. ``arguments`` are those of the kind: ``delete_when`` (rows of this
    ``o``), ``reducers``, ``by`` and ``redistribute``.
    """

    kind: str
    columns: list[str]
    order_by: list[str] | None = None
    only: tuple[int, ...] = (0, 1, 2)
    arguments: dict[str, Any] = {}  # noqa: RUF012 - never changed


class Change(NamedTuple):
    """A row that counts for its key: the last by ``order``, then by the stored value."""

    order: Any
    stored: bytes
    row: Row


class Model:
    """The tables of a case, and the calls that change them."""

    def __init__(self, table: str, key: Sequence[str], key_groups: int, *, expires: bool, step: Any) -> None:
        self.table, self.key, self.key_groups, self.step = table, key, key_groups, step
        self.expires = expires
        self.tables: dict[str, dict[bytes, bytes]] = {table: {}}
        """By table and key: the stored value of each row that is not deleted."""
        self.state: dict[bytes, Any] = {}
        """By key: the columns of a row, as texts or as a function returned them; or its sequence."""
        self.deleted: dict[bytes, tuple[Any, ...]] = {}
        """By key: the sequence of its last delete by ``apply_changes``."""
        self.columns: list[str] = []
        self.lists: list[list[Any]] = []
        """The items of each instance of the local state."""

    def follow(self, calls: Sequence[Call], rows: Sequence[Row], parallelism: int) -> Changes:
        """Make the calls of a batch; return what they write."""
        written: Changes = {self.table: {}}
        for call in calls:
            used = [row for row in rows if row["o"] in call.only]
            if call.kind == "local_state":
                return self._local_state(call, used, parallelism)
            of_call: Changes = getattr(self, f"_{call.kind}")(call, used)
            for table, changes in of_call.items():
                written.setdefault(table, {}).update(changes)
        for table, changes in written.items():
            self.tables.setdefault(table, {}).update(changes)
            self.tables[table] = {key: v for key, v in self.tables[table].items() if v != DELETE}
        if self.expires:
            written[self.table] = {
                key: b"e" + v[1:] if v != DELETE else v for key, v in written[self.table].items()
            }
        return {table: changes for table, changes in written.items() if changes}

    # -- rows as they are ----------------------------------------------------------------------------

    def _last(self, call: Call, rows: Sequence[Row], stored: Callable[[Row], bytes]) -> dict[bytes, Change]:
        """Return the last row of each key, by the call's order and then by the value's bytes."""
        last: dict[bytes, Change] = {}
        for place, row in enumerate(rows):
            key = key_bytes(row[name] for name in self.key)
            change = Change(self._order(call, row, place), stored(row), row)
            if key is not None and (key not in last or change[:2] > last[key][:2]):
                last[key] = change
        return last

    def _order(self, call: Call, row: Row, place: int) -> Any:
        return place if call.order_by is None else [rank(row[name]) for name in call.order_by]

    def _stored(self, row: Row, columns: Sequence[str]) -> bytes:
        return b"+" + object_text({name: json_text(row[name]) for name in columns}).encode()

    def _upsert(self, call: Call, rows: Sequence[Row]) -> Changes:
        deletes = call.arguments.get("delete_when")
        last = self._last(
            call, rows, lambda row: DELETE if row["o"] == deletes else self._stored(row, call.columns)
        )
        for key, change in last.items():
            self.state[key] = {name: json_text(change.row[name]) for name in call.columns}
            if change.stored == DELETE:
                del self.state[key]
        self.columns = call.columns
        return {self.table: {key: change.stored for key, change in last.items()}}

    def _newer(self, call: Call, rows: Sequence[Row]) -> Changes:
        """Upsert with ``newer_by``: the greatest row of a key stays, by the column and then by the value."""
        written = {}
        for key, change in self._last(call, rows, lambda row: self._stored(row, call.columns)).items():
            if key not in self.state or change[:2] > self.state[key]:
                self.state[key] = change[:2]
                written[key] = change.stored
        return {self.table: written}

    def _replace(self, call: Call, rows: Sequence[Row]) -> Changes:
        self.state, self.tables[self.table] = {}, {}
        return self._upsert(call, rows)

    def _bytes(self, call: Call, rows: Sequence[Row]) -> Changes:
        """Upsert with ``value=``: the value is the column's bytes."""
        last = self._last(call, rows, lambda row: b"+" + row["value"])
        return {self.table: {key: change.stored for key, change in last.items()}}

    def _delete(self, call: Call, rows: Sequence[Row]) -> Changes:
        keys = self._last(call, rows, lambda _: DELETE)
        self.state = {key: fields for key, fields in self.state.items() if key not in keys}
        return {self.table: dict.fromkeys(keys, DELETE)}

    def _patch(self, call: Call, rows: Sequence[Row]) -> Changes:
        self.columns = [*self.columns, *(name for name in call.columns if name not in self.columns)]
        written = {}
        for key, change in self._last(call, rows, lambda row: self._stored(row, call.columns)).items():
            fields = self.state.get(key, {}) | {name: json_text(change.row[name]) for name in call.columns}
            self.state[key] = {name: fields.get(name, "null") for name in self.columns}
            written[key] = b"+" + object_text(self.state[key]).encode()
        return {self.table: written}

    # -- reducers ---------------------------------------------------------------------------------------

    def _reduce(self, call: Call, rows: Sequence[Row]) -> Changes:
        reducers = call.arguments["reducers"]
        of_keys: dict[bytes, list[tuple[Any, Row]]] = {}
        for place, row in enumerate(rows):
            key = key_bytes(row[name] for name in self.key)
            if key is not None:
                of_keys.setdefault(key, []).append((self._order(call, row, place), row))
        for key, ordered in of_keys.items():
            before = self.state.get(key, {})
            self.state[key] = {
                name: reduced(reducer, before.get(name), [(order, row[name]) for order, row in ordered])
                for name, reducer in reducers.items()
            }
        texts = {key: {name: reduced_text(v) for name, v in self.state[key].items()} for key in of_keys}
        return {self.table: {key: b"+" + object_text(fields).encode() for key, fields in texts.items()}}

    # -- captured changes --------------------------------------------------------------------------------

    def _apply_changes(self, call: Call, rows: Sequence[Row]) -> Changes:
        """The greatest of a key's changes stays, by sequence, deletes after rows, and value."""
        deletes, sequence = call.arguments["deletes"], call.order_by or []
        written: Changes = {self.table: {}, f"_deleted.{self.table}": {}}

        def stored(row: Row) -> bytes:
            return DELETE if row["z"] in deletes else self._stored(row, call.columns)

        for key, (order, content, row) in self._last(call, rows, stored).items():
            old = self.state.get(key)
            if old is not None and (order, content == DELETE, content) <= old:
                continue
            if key in self.deleted and order <= self.deleted[key]:
                continue
            written[self.table][key] = content
            if content == DELETE:
                self.deleted[key] = order
                self.state.pop(key, None)
                texts = {name: json_text(row[name]) for name in sequence}
                written[f"_deleted.{self.table}"][key] = b"e" + object_text(texts).encode()
            else:
                self.state[key] = (order, False, content)
        return written

    # -- functions --------------------------------------------------------------------------------------

    def _update(self, call: Call, rows: Sequence[Row]) -> Changes:
        of_keys: dict[bytes, list[tuple[Any, bytes, Row]]] = {}
        for place, row in enumerate(rows):
            key = key_bytes(row[name] for name in self.key)
            if key is not None:
                full = object_text({name: json_text(cell) for name, cell in row.items()}).encode()
                of_keys.setdefault(key, []).append((self._order(call, row, place), full, row))
        written: Changes = {self.table: {}}

        def emit(table: str, key: Any, value: Row | None) -> None:
            cells = key if isinstance(key, tuple) else (key,)
            content = DELETE if value is None else b"+" + json_text(value).encode()
            written.setdefault(table, {})[key_bytes(cells) or b""] = content

        for key in sorted(of_keys, key=lambda key: (key_group(key, self.key_groups), key)):
            mine = [row for *_, row in sorted(of_keys[key], key=lambda one: one[:2])]
            cells = tuple(mine[0][name] for name in self.key)
            state = self.step(cells[0] if len(cells) == 1 else cells, iter(mine), self.state.get(key), emit)
            content = DELETE if state is None else b"+" + json_text(state).encode()
            if content != self.tables[self.table].get(key, DELETE):
                written[self.table][key] = content
            self.state[key] = state
        return written

    def _local_state(self, call: Call, rows: Sequence[Row], parallelism: int) -> Changes:
        before, lists = self.tables, dealt(self.lists, parallelism, call.arguments["redistribute"])
        usable = [name for name in (rows[0] if rows else ()) if name not in MAPS]
        order = [*call.arguments["order_by"], *usable]
        for index in range(parallelism):
            mine = [row for row in rows if _instance(call, row, parallelism) == index]
            mine.sort(key=lambda row: ([rank(row[name]) for name in order], json_text(row).encode()))
            lists[index] = self.step(index, iter(mine), lists[index], None)
        self.lists = lists
        tasks = str(parallelism)
        counts = {
            _local_key(self.table, index): object_text({"items": str(len(items)), "parallelism": tasks})
            for index, items in enumerate(lists)
        }
        items = {_local_key(i, n): json_text(item) for i, of in enumerate(lists) for n, item in enumerate(of)}
        after = {"_local": counts, f"_local.{self.table}": items}
        self.tables = {
            name: {key: b"+" + text.encode() for key, text in rows.items()} for name, rows in after.items()
        }
        changes = {name: differences(before.get(name, {}), rows) for name, rows in self.tables.items()}
        return {name: rows for name, rows in changes.items() if rows}


def differences(before: dict[bytes, bytes], after: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the rows that make the second table of the first."""
    return {key: DELETE for key in before if key not in after} | {
        key: stored for key, stored in after.items() if before.get(key) != stored
    }


def _local_key(*cells: str | int) -> bytes:
    return key_bytes(cells) or b""


def _instance(call: Call, row: Row, parallelism: int) -> int:
    return row_hash(row[name] for name in call.arguments["by"]) % parallelism


def dealt(lists: list[list[Any]], after: int, how: str) -> list[list[Any]]:
    """Return the lists with which the instances begin: the same ones, or dealt again to another number."""
    every = [item for items in lists for item in items]
    if len(lists) == after:
        return list(lists)
    if how == "union":
        return [list(every) for _ in range(after)]
    shares = []
    for index in range(after):  # the first ones take one more each
        size = len(every) // after + (index < len(every) % after)
        begin = sum(map(len, shares))
        shares.append(every[begin : begin + size])
    return shares


def reduced(reducer: str, state: Any, cells: list[tuple[Any, Any]]) -> Any:
    """Return a column's state combined with a key's cells, each with its order. Nulls are skipped."""
    cells = [(order, cell) for order, cell in cells if cell is not None]
    values = [cell for _, cell in cells] + [state] * (state is not None)
    match reducer:
        case "count":
            return len(cells) + (state or 0)
        case _ if not values:
            return None
        case "sum":
            return sum(values)
        case "min":
            return min(values, key=_signed)
        case "max":
            return max(values, key=_signed)
        case "first":
            return state if state is not None else min(cells, key=lambda c: (c[0], _signed(c[1])))[1]
    return max(cells, key=lambda c: (c[0], _signed(c[1])))[1] if cells else state


def _signed(cell: Any) -> Any:
    """Return the order of reducers, where -0.0 is below 0.0."""
    return (*rank(cell), isinstance(cell, float) and math.copysign(1, cell))


def reduced_text(cell: Any) -> str:
    """Return a cell in the spelling of ``reduce``: ``3`` for 3.0, control characters by their numbers."""
    if isinstance(cell, str):
        plain = cell.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(f"\\u{ord(c):04x}" if c < " " else c for c in plain) + '"'
    if isinstance(cell, float) and math.isfinite(cell) and json_text(cell) != "-0.0":
        return repr(cell).removesuffix(".0")
    return json_text(cell)
