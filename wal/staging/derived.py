"""Derived tables: the totals of a group, their stored form, and the schema of the table. Pure functions only.

A row of a derived table is a JSON object of its columns, and of the field ``~``, which no column has and
readers ignore: ``[rows, [count, sum], ..., [[value, ..., rows], ...], ...]``, a pair for each column of
``Definition.values``, then the entries for each of ``Definition.orders`` (``derived_order.py``). A sum is a
decimal text without a point, of any length, in units of the column's last digit. So totals are exact in
every order of additions and subtractions, and only the values that readers see have to fit their types.
"""

from __future__ import annotations

import dataclasses
import decimal
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.errors import BadRecordError, ConfigError, CorruptError
from tidegate.keys.groups import decimal_parts, encode_key
from tidegate.wal.record import UNREADABLE, Aggregate, Column, Definition, TableSchema
from tidegate.wal.staging.derived_order import (
    FLOATS,
    Entries,
    Entry,
    Order,
    cell_of,
    greatest,
    last_of,
)
from tidegate.wal.staging.own_tables import is_own
from tidegate.wal.staging.validate import shown_key
from tidegate.wal.value_flags import DELETE, HIDDEN, VALUE

INTEGERS = ("tinyint", "smallint", "int", "bigint")
KEY_TYPES = (*INTEGERS, "string", "boolean", "date", "timestamp", "timestamp_ntz", "decimal(p,s)")
ORDERED = (*KEY_TYPES, *FLOATS)
"""The types of columns whose values have an order."""
COUNTED = (*ORDERED, "binary")
"""The types of columns whose values can be counted."""
AVERAGE_DIGITS = 4
"""The digits of an average beyond those of its column; its last one is rounded half up."""
DIGITS = 38
BIGINT = 2**63
_WIDE = decimal.Context(prec=100, traps=[decimal.Inexact, decimal.InvalidOperation])
STAGING_RUN = "derived "
"""The start of the name of a staging task's run, in a version with derived tables."""
DERIVED_MAX = 16
"""The most derived tables of a namespace."""
TOP_MAX = 1_000
"""The most rows of a ``top``."""


class Part(NamedTuple):
    """The change of a group: rows, count and sum of each value column in its units, entries of each order."""

    rows: int
    values: tuple[tuple[int, int], ...]
    orders: tuple[dict[Entry, int], ...] = ()

    def add(self, other: Part) -> Part:
        """Return the sum of both. The entries of this one are changed."""
        pairs = zip(self.values, other.values, strict=True)
        for entries, more in zip(self.orders, other.orders, strict=True):
            for entry, count in more.items():
                entries[entry] = entries.get(entry, 0) + count
        values = tuple([(n + m, a + b) for (n, a), (m, b) in pairs])
        return Part(self.rows + other.rows, values, self.orders)

    @property
    def is_zero(self) -> bool:
        """Whether it changes nothing."""
        numbers = (self.rows, *(number for pair in self.values for number in pair))
        return not any(numbers) and not any(any(entries.values()) for entries in self.orders)


class Totals(NamedTuple):
    """The totals of a group, as ``Part``."""

    rows: int
    values: tuple[tuple[int, int], ...]
    orders: tuple[Entries, ...]


class _Row(msgspec.Struct, rename={"hidden": HIDDEN}):
    hidden: tuple[msgspec.Raw, ...]


_row, _number, _pair = json_decoder(_Row), json_decoder(int), json_decoder(tuple[int, str])
_entries = json_decoder(list[msgspec.Raw])


class _Cell(NamedTuple):
    """A column of a derived table: the text before its value, and its place, or -1.

    The place is in ``Definition.values``, or ``Definition.orders``. ``type`` is that of the column that it is
    taken from. ``scale`` is that of the values, and ``digits`` that of the column, None for a bigint.
    """

    lead: str
    aggregate: Aggregate
    place: int
    type: str
    scale: int
    digits: int | None


@dataclasses.dataclass(frozen=True)
class DerivedTable:
    """A derived table and its definition, with the types of the columns that it uses in the base table."""

    name: str
    definition: Definition
    schema: TableSchema
    types: dict[str, str]
    """Of each used column."""
    fields: dict[str, str]
    """The field of each used column in the base table's values; columns of its key have none."""

    @cached_property
    def scales(self) -> tuple[int, ...]:
        """The digits after the point of each value column; that of a counted column is not used."""
        return tuple(scale_of(self.types[name]) for name in self.definition.values)

    @cached_property
    def summed(self) -> tuple[bool, ...]:
        """Whether each value column is added up, too."""
        sums = {each.column for each in self.definition.aggregates if each.kind in ("sum", "avg")}
        return tuple(name in sums for name in self.definition.values)

    @cached_property
    def orders(self) -> tuple[Order, ...]:
        """The orders in which a group's rows are kept."""
        return tuple(
            Order(columns, tuple(self.types[name] for name in columns)) for columns in self.definition.orders
        )

    @cached_property
    def nothing(self) -> Totals:
        """The totals of a group without rows."""
        return Totals(0, ((0, 0),) * len(self.definition.values), ([],) * len(self.orders))

    @cached_property
    def _cells(self) -> tuple[_Cell, ...]:
        made, values, orders = [], self.definition.values, self.definition.orders
        for each in self.definition.aggregates:
            lead, kind = f"{msgspec.json.encode(each.name).decode()}:", self.types.get(each.column, "")
            if each.order:
                made.append(_Cell(lead, each, orders.index(each.order), kind, 0, None))
                continue
            of_column = next(column.type for column in self.schema.value if column.name == each.name)
            place = values.index(each.column) if each.column else -1
            digits = None if of_column == "bigint" else decimal_parts(of_column)[1]
            made.append(_Cell(lead, each, place, kind, self.scales[place] if each.column else 0, digits))
        return tuple(made)

    def key_of(self, values: Sequence[object]) -> bytes:
        """Return the key of a group."""
        return encode_key(values, self.schema.key_types)

    def _totals_of(self, key: bytes, value: bytes | None) -> Totals:
        if value is None:
            return self.nothing
        try:
            rows, *rest = _row.decode(value).hidden
            of_values, of_orders = rest[: len(self.definition.values)], rest[len(self.definition.values) :]
            pairs = tuple((count, int(total)) for count, total in map(_pair.decode, of_values))
            orders = tuple(map(_entries.decode, of_orders))
            totals = Totals(_number.decode(rows), pairs, orders)
            if totals.rows > 0 and tuple(map(len, (pairs, orders))) == tuple(map(len, self.nothing[1:])):
                return totals
        except (*UNREADABLE, ValueError, TypeError):
            pass
        raise self._corrupt(key, "its row has no totals")

    def changed(self, key: bytes, value: bytes | None, part: Part) -> bytes:
        """Return the stored value of a group after a change, a delete if it has no rows then.

        ``value`` is the one before, without flags byte. Raises: BadRecordError: a value does not fit its
        type. CorruptError: the value before has no totals, or more is taken than is there.
        """
        before = self._totals_of(key, value)
        try:
            return self._stored(key, before, part)
        except (*UNREADABLE, ValueError, TypeError, ArithmeticError):
            raise self._corrupt(key, "a value of it would be taken out that it does not have") from None

    def _stored(self, key: bytes, before: Totals, part: Part) -> bytes:
        rows = before.rows + part.rows
        values = zip(before.values, part.values, strict=True)
        pairs = [(n + m, a + b) for (n, a), (m, b) in values]
        of_orders = zip(self.orders, before.orders, part.orders, strict=True)
        orders = [order.changed(entries, changes) for order, entries, changes in of_orders]
        if rows == 0 and not any(count or total for count, total in pairs) and not any(orders):
            return DELETE
        if rows <= 0 or any(not 0 <= count <= rows or (total and not count) for count, total in pairs):
            raise self._corrupt(key, f"it would have {rows} rows after this version")
        cells = "".join([f"{cell.lead}{self._cell(key, cell, rows, pairs, orders)}," for cell in self._cells])
        hidden = msgspec.json.encode([rows, *[(count, str(total)) for count, total in pairs], *orders])
        return b"".join((VALUE, b"{", cells.encode(), f'"{HIDDEN}":'.encode(), hidden, b"}"))

    def _cell(
        self, key: bytes, cell: _Cell, rows: int, pairs: Sequence[tuple[int, int]], orders: Sequence[Entries]
    ) -> int | str:
        if cell.aggregate.order:
            return _of_order(cell, orders[cell.place])
        return rows if cell.place < 0 else self._value(key, cell, *pairs[cell.place])

    def _value(self, key: bytes, cell: _Cell, count: int, total: int) -> int | str:
        each, digits = cell.aggregate, cell.digits
        if each.kind == "count":
            return count
        if not count:
            return "null"
        if digits is None:
            if -BIGINT <= total < BIGINT:
                return total
        else:
            number = _rounded(total * 10 ** (digits - cell.scale), count) if each.kind == "avg" else total
            if abs(number) < 10**DIGITS:
                return _decimal_text(number, digits)
        kind = "bigint" if digits is None else f"decimal({DIGITS},{digits})"
        if digits is None:
            step = "cast the column to decimal(38,0)"
        elif each.kind == "sum" and not cell.scale:
            step = "use smaller groups"
        else:
            smaller = "fewer digits after the point" if cell.scale else "smaller numbers, such as thousands"
            step = f"write another column with {smaller}, and derive from that one"
        raise BadRecordError(
            f"table {self.name}, key {shown_key(key, self.schema.key_types)}: the {each.kind} of column"
            f" {each.column} of table {self.definition.of} does not fit {kind}; nothing was decided: {step}"
        )

    def _corrupt(self, key: bytes, why: str) -> CorruptError:
        return CorruptError(
            f"derived table {self.name}, key {shown_key(key, self.schema.key_types)}: {why}, so it does not"
            f" fit table {self.definition.of}; nothing was decided. `tidegate verify` compares all groups;"
            " a version that drops the derived table (txn.drop_table) lets the next batch build it again"
        )


def _of_order(cell: _Cell, entries: Entries) -> int | str:
    """Return the JSON of a column that is taken from the group's rows in order."""
    match cell.aggregate.kind:
        case "distinct":
            return len(entries)
        case "top":
            rows = greatest(entries, cell.aggregate.rows or 0)
            return f"[{','.join([cell_of(text, cell.type) for text in rows])}]"
        case kind:
            place = 0 if kind in ("min", "first") else -1
            return cell_of(last_of(entries[place]), cell.type) if entries else "null"


def _rounded(number: int, count: int) -> int:
    """Divide, rounding half away from zero."""
    quotient = (2 * abs(number) + count) // (2 * count)
    return quotient if number >= 0 else -quotient


def _decimal_text(number: int, scale: int) -> str:
    digits = str(abs(number)).rjust(scale + 1, "0")
    text = digits if scale == 0 else f"{digits[:-scale]}.{digits[-scale:]}"
    return f"-{text}" if number < 0 else text


def scale_of(kind: str) -> int:
    """Return the digits after the point of a number's type."""
    return decimal_parts(kind)[1] if kind.startswith("decimal(") else 0


def in_units(value: decimal.Decimal | int, scale: int) -> int:
    """Return a number in units of the last digit of its type, exactly."""
    return int(_WIDE.scaleb(value, scale)) if scale else int(value)


def derived_table(name: str, definition: Definition, base: TableSchema) -> DerivedTable:
    """Return the table of a definition over a base table with this schema.

    Raises: ConfigError: the base table cannot have derived tables, or a column does not fit.
    """
    where, of = f"derived table {name}", definition.of
    if is_own(name) or is_own(of):
        raise ConfigError(f"{where} of {of}: names that start with an underscore are tidegate's own")
    if base.derived:
        raise ConfigError(
            f"{where}: table {of} is derived itself, and only tables that calls write can be a base"
        )
    if base.value_format == "bytes":
        raise ConfigError(f"{where}: the values of table {of} are bytes, which have no columns")
    if base.older or base.version > 1:
        raise ConfigError(
            f"{where}: table {of} has a state of several versions, whose columns have no one meaning; derive"
            " from a table that is written from it"
        )
    columns = {c.name: c for c in (*base.key, *base.value)}
    for used in definition.columns:
        if used not in columns:
            raise ConfigError(
                f"{where}: table {of} has no column {used!r}; its columns are {', '.join(columns)}. Derive"
                f" from these, or leave {name} out of derived= until a batch has written the column"
            )
    types = {used: columns[used].type for used in definition.columns}
    for used in definition.key:
        if types[used] not in KEY_TYPES and not types[used].startswith("decimal("):
            raise ConfigError(
                f"{where}: column {used} is {types[used]}, but a key is one of {', '.join(KEY_TYPES)};"
                " write a column of such a type with withColumn"
            )
    if definition.where and types[definition.where] != "boolean":
        raise ConfigError(
            f"{where}: where={definition.where!r} is {types[definition.where]}; write a boolean column with"
            " withColumn"
        )
    value = tuple(Column(each.name, _type_of(where, each, types)) for each in definition.aggregates)
    key = tuple(Column(used, types[used]) for used in definition.key)
    fields = {used: columns[used].field for used in definition.columns if columns[used] in base.value}
    return DerivedTable(name, definition, TableSchema(key, value, derived=definition), types, fields)


def _type_of(where: str, each: Aggregate, types: Mapping[str, str]) -> str:
    kind = types.get(each.column, "bigint")
    if each.order:
        for name in each.order:
            if types[name] not in ORDERED and not types[name].startswith("decimal("):
                raise ConfigError(
                    f"{where}: column {name} is {types[name]}, and has no order; write a column of one of"
                    f" {', '.join(ORDERED)} by withColumn"
                )
        return {"distinct": "bigint", "top": f"array<{kind}>"}.get(each.kind, kind)
    if each.kind == "count":
        if kind not in COUNTED and not kind.startswith("decimal("):
            raise ConfigError(f"{where}: column {each.column} is {kind}, and is none of {', '.join(COUNTED)}")
        return "bigint"
    if kind not in INTEGERS and not kind.startswith("decimal("):
        cast = "cast('decimal(38,6)')" if kind in ("float", "double") else "cast('bigint')"
        raise ConfigError(
            f"{where}: the {each.kind} of column {each.column} ({kind}) cannot be undone exactly: write a"
            f" column of integers or decimals, such as col({each.column!r}).{cast} by withColumn"
        )
    if each.kind == "avg" and scale_of(kind) + AVERAGE_DIGITS >= DIGITS:
        raise ConfigError(
            f"{where}: the average of column {each.column} ({kind}) has {AVERAGE_DIGITS} digits more, and a"
            f" decimal has {DIGITS}: write a column with at most {DIGITS - AVERAGE_DIGITS - 1} digits after"
            " the point by withColumn"
        )
    if each.kind == "sum":
        return "bigint" if kind in INTEGERS else f"decimal({DIGITS},{scale_of(kind)})"
    return f"decimal({DIGITS},{scale_of(kind) + AVERAGE_DIGITS})"
