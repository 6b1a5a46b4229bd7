"""The derived tables that a sink declares, compared with those of the log, and planned for one version."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tidegate.base.text import brief
from tidegate.committers.barrier import NONE_BROUGHT
from tidegate.errors import ConfigError
from tidegate.spark.calls.checks import Names, check_table, columns_named, key_columns
from tidegate.spark.calls.collected import Made
from tidegate.wal.manifest import TableChange
from tidegate.wal.record import Aggregate, Definition, TableAt, TableSchema
from tidegate.wal.staging import derived_guard, quarantine
from tidegate.wal.staging.derived import DERIVED_MAX, TOP_MAX, DerivedTable, derived_table
from tidegate.wal.value_flags import HIDDEN


class Derived:
    """A table that is the aggregation of all rows of another one, at every version.

    ``name`` has a row for each value of the columns ``key`` in table ``of``. ``aggregates`` are its columns:
    ``"count"`` (of rows), ``("count" | "sum" | "avg" | "min" | "max" | "distinct", column)``,
    ``("first" | "last", column, by)``: that of the row with the least or greatest ``by``, and
    ``("top", column, rows[, by])``: those of the rows with the greatest ``by``, or the greatest ones. With
    ``where``, a boolean column, only rows take part for which it is true. All are columns of the stored
    rows of ``of`` (docs/totals.md).

    >>> Derived("customers", of="orders", key="customer",
    ...         aggregates={"orders": "count", "total": ("sum", "amount")})
    Derived('customers', of='orders')
    """

    def __init__(
        self,
        name: str,
        *,
        of: str,
        key: Names,
        aggregates: Mapping[str, str | tuple[str | int, ...]],
        where: str | None = None,
    ) -> None:
        check_table(name)
        check_table(of)
        if name == of:
            raise ConfigError(f"derived table {name}: it cannot be derived from itself")
        where_columns = columns_named(name, "where", () if where is None else where)
        keys = tuple(key_columns(name, key))
        if "" in (*keys, *where_columns):
            raise ConfigError(f"derived table {name}: no column with an empty name can be meant; rename it")
        self.name = name
        self.definition = Definition(of, keys, _aggregates(name, aggregates, keys), "".join(where_columns))

    def __repr__(self) -> str:
        return f"Derived({self.name!r}, of={self.definition.of!r})"


def _aggregates(name: str, aggregates: object, keys: Sequence[str]) -> tuple[Aggregate, ...]:
    if not isinstance(aggregates, Mapping) or not aggregates:
        raise ConfigError(
            f"derived table {name}: give aggregates={{'orders': 'count', 'total': ('sum', 'amount')}}"
        )
    made = []
    for column, given in aggregates.items():
        aggregate = _aggregate(column, given)
        if aggregate is None:
            raise ConfigError(
                f"derived table {name}: {brief(column)}={brief(given)} is no aggregate; there are 'count',"
                " ('count' or 'sum' or 'avg' or 'min' or 'max' or 'distinct', column), ('first' or 'last',"
                f" column, by), ('top', column, rows) and ('top', column, rows, by), of 1 to {TOP_MAX:,} rows"
            )
        if not isinstance(column, str) or not column or column == HIDDEN or column in keys:
            raise ConfigError(
                f"derived table {name}: an aggregate cannot be called {brief(column)}; rename it"
            )
        made.append(aggregate)
    return tuple(made)


def _aggregate(name: Any, given: object) -> Aggregate | None:
    """Return what a declaration says; None: it is no aggregate."""
    match given:
        case "count":
            return Aggregate(name, "count")
        case [("count" | "sum" | "avg" | "min" | "max" | "distinct") as kind, str(column)] if column:
            return Aggregate(name, kind, column)
        case [("first" | "last") as kind, str(column), str(by)] if column and by:
            return Aggregate(name, kind, column, by)
        case ["top", str(column), int(rows)] if column and _is_number(rows):
            return Aggregate(name, "top", column, rows=rows)
        case ["top", str(column), int(rows), str(by)] if column and by and _is_number(rows):
            return Aggregate(name, "top", column, by, rows)
    return None


def _is_number(rows: int) -> bool:
    return not isinstance(rows, bool) and 1 <= rows <= TOP_MAX


def declared(derived: object) -> dict[str, Definition]:
    """Return the definitions that a sink declares, by table. Raises: ConfigError: they do not fit."""
    given = derived if isinstance(derived, Sequence) and not isinstance(derived, str) else None
    if given is None or not all(isinstance(each, Derived) for each in given):
        raise ConfigError(f"derived={brief(derived)} must be a list of tidegate.spark.Derived")
    definitions = {each.name: each.definition for each in given}
    if len(definitions) < len(given) or len(given) > DERIVED_MAX:
        raise ConfigError(f"derived: each table once, and at most {DERIVED_MAX}; there are {list(given)}")
    for name, definition in definitions.items():
        if definition.of in definitions:
            raise ConfigError(
                f"derived table {name}: table {definition.of} is derived itself; derive from the table that"
                " it is derived from"
            )
    return definitions


def check_declared(
    definitions: Mapping[str, Definition], tables: Mapping[str, TableAt], schemas: Mapping[str, TableSchema]
) -> dict[str, Definition]:
    """Return the declared tables that the log lacks, or has by another definition, and whose base exists.

    Raises: ConfigError: a table of this name is written by calls.
    """
    build = {}
    for name, definition in definitions.items():
        if name in tables and not tables[name].of:
            raise ConfigError(
                f"table {name} exists and is written by calls, so it cannot be a derived table: give the"
                " derived table another name, or drop the table first (txn.drop_table)"
            )
        known = schemas[name].derived if name in tables else None
        if known != definition and (name in tables or definition.of in tables):
            build[name] = definition
    return build


class Planned(NamedTuple):
    """The derived tables that a version keeps: which of them it makes again, from its own rows alone."""

    tables: tuple[DerivedTable, ...] = ()
    starts: frozenset[str] = frozenset()

    @property
    def schemas(self) -> dict[str, TableSchema]:
        """The schemas of the derived tables."""
        return {table.name: table.schema for table in self.tables}


NOTHING_DERIVED = Planned()


def table_changes(
    made: Made,
    derived: Planned = NOTHING_DERIVED,
    *,
    quarantines: bool,
    expiring: Collection[str] = (),
    strides: Mapping[str, int] = NONE_BROUGHT,
) -> dict[str, TableChange]:
    """Return what the version does with each table, in index order.

    The quarantine, if any, is last: its rows end their key group. ``expiring`` and ``strides``: as
    ``TableChange``.
    """
    schemas, starts = made.schemas | derived.schemas, made.starts | derived.starts
    if quarantines:
        schemas[quarantine.TABLE] = quarantine.SCHEMA
    return {
        name: TableChange(
            schemas[name], name in starts, name in expiring, strides.get(name, 0), name in derived.schemas
        )
        for name in sorted(schemas, key=lambda name: (name == quarantine.TABLE, name))
    }


def planned(definitions: Mapping[str, Definition], made: Made) -> Planned:
    """Plan the derived tables of the version that these calls make.

    One that the version drops is built before the next one.

    Raises: ConfigError: a call writes a derived table, or the base's columns do not fit any more.
    """
    touched = {table: kind for call in made.calls for table, kind in call.touches.items()}
    tables = []
    for name, definition in definitions.items():
        of = definition.of
        if name in touched:
            raise derived_guard.written_into(name, of, touched[name])
        if of not in touched or name in made.drops:
            continue
        table = derived_table(name, definition, made.known[of])
        before = made.known.get(name)
        if before is not None and (before.key, before.value) != (table.schema.key, table.schema.value):
            raise ConfigError(
                f"derived table {name}: a column that it uses has another type in table {of} now, so its own"
                f" columns would change their types; let the function of this batch call"
                f" txn.drop_table({name!r}), too: the next batch builds it, if that one does not drop it"
            )
        tables.append(table)
    of_starts = frozenset(table.name for table in tables if table.definition.of in made.starts)
    return Planned(tuple(tables), of_starts)
