"""What the user's function does to one batch: calls are checked and noted, nothing is run.

All calls of a transaction are staged together, as one Spark job, when the function returns.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.types import BinaryType, BooleanType, MapType, StringType, StructField

from tidegate.errors import ConfigError
from tidegate.names import check_name
from tidegate.spark.encoding import (
    bytes_value,
    check_key_type,
    check_value_type,
    column,
    delete_marker,
    json_value,
    key_bytes,
    schema_column,
)
from tidegate.spark.keyed_state import OVERFLOW, ReducedColumn, reduced_column
from tidegate.wal.record import Column as SchemaColumn
from tidegate.wal.record import TableSchema

Names = str | Sequence[str]

MIXING = frozenset({"upsert", "delete"})
"""Calls that may touch one table in one transaction: they act in the order they are made."""


@dataclasses.dataclass(frozen=True)
class Call:
    """One call on a transaction: rows with their key and stored value as columns.

    ``order`` decides which change of a key wins within this call; calls act in the order they
    were made. ``value`` None stands for a schema that only the table's other calls know.
    """

    kind: str
    table: str
    rows: DataFrame
    key: Column
    value: Column
    order: tuple[Column, ...]
    schema: TableSchema | None
    key_columns: tuple[SchemaColumn, ...]
    reduced: tuple[ReducedColumn, ...] = ()


class Transaction:
    """The changes of one batch to any number of tables: one version, all at once or not at all.

    Handed to the function given to ``VersionedSink.each``. Every call checks what it is given
    and raises ConfigError before anything is written; rows are looked at when they are staged.

    ``batch_id`` is Spark's; ``base_version`` the version whose state is read (the last one).
    """

    def __init__(self, batch_id: int, base_version: int, known: Mapping[str, TableSchema]) -> None:
        self.batch_id = batch_id
        self.base_version = base_version
        self._known = dict(known)
        self._calls: list[Call] = []
        self._open = True

    def upsert(
        self,
        table: str,
        rows: DataFrame,
        key: Names,
        *,
        order_by: Names | None = None,
        delete_when: str | None = None,
        value: str | None = None,
    ) -> None:
        """Set keys to these rows: of several rows of one key the last by ``order_by`` wins.

        The value is a JSON object of all columns but the key's, or with ``value`` the bytes of
        that one string or binary column. Without ``order_by`` the order is the rows' order in
        the DataFrame; equal ``order_by`` is settled by the larger value bytes, so that any
        replay has the same winner. ``delete_when`` is a Spark SQL predicate: rows for which
        it is true delete their key.
        """
        self._add(self._rows_call("upsert", table, rows, key, order_by, delete_when, value))

    def replace(
        self,
        table: str,
        rows: DataFrame,
        key: Names,
        *,
        order_by: Names | None = None,
        value: str | None = None,
    ) -> None:
        """Make the table hold exactly these rows from this version on: what it held is gone.

        Costs what the new rows cost, whatever the table held: the version becomes the table's
        start. Older versions stay as they were. Rows as in ``upsert``; the value's columns may
        differ from what they were, the key may not. No rows leave an empty table.
        """
        self._add(self._rows_call("replace", table, rows, key, order_by, None, value))

    def delete(self, table: str, rows: DataFrame, key: Names) -> None:
        """Remove these keys; a key that is not there stays away."""
        keys = self._keys(table, rows, key)
        order = self._order(table, rows, None)
        self._add(Call("delete", table, rows, key_bytes(keys), delete_marker(), order, None, _columns(keys)))

    def reduce(
        self,
        table: str,
        rows: DataFrame,
        key: Names,
        reducers: Mapping[str, str],
        *,
        order_by: Names | None = None,
    ) -> None:
        """Combine these rows with each key's state: ``{column: reducer}`` names the fields.

        Reducers: sum, count (of values that are not null), min, max, first, last; all skip
        nulls. ``order_by`` says what first and last mean within the batch (default: the rows'
        order). The state is read at ``base_version``, so a replay gives the same result.
        """
        keys = self._keys(table, rows, key)
        if not reducers:
            msg = f"table {table}: reduce needs at least one reducer, as in reducers={{'amount': 'sum'}}"
            raise ConfigError(msg)
        reduced = tuple(
            reduced_column(table, schema_column(self._field(table, rows, name)), reducer)
            for name, reducer in reducers.items()
        )
        clash = [c.name for c in reduced if c.name in {k.name for k in keys}]
        if clash:
            msg = f"table {table}: {clash[0]} is a key column and cannot be reduced"
            raise ConfigError(msg)
        order = functions.struct(*self._order(table, rows, order_by))
        ordered = rows.select(
            key_bytes(keys).alias(_KEY), order.alias(_ORDER), *(column(c.name).alias(c.name) for c in reduced)
        )
        overflows = [_overflows(c).alias(f"{_KEY}{n}") for n, c in enumerate(reduced) if c.reducer == "sum"]
        grouped = ordered.groupBy(_KEY).agg(*(_aggregate(c) for c in reduced), *overflows)
        schema = TableSchema(_columns(keys), tuple(SchemaColumn(c.name, c.type) for c in reduced))
        stored = json_value([c.name for c in reduced])
        for place, reduced_by in enumerate(reduced):
            if reduced_by.reducer == "sum":
                mark = functions.lit(OVERFLOW + reduced_by.name.encode())
                stored = functions.when(functions.col(f"{_KEY}{place}"), mark).otherwise(stored)
        key_column = functions.col(_KEY)
        none = (functions.lit(0).cast("bigint"),)
        self._add(Call("reduce", table, grouped, key_column, stored, none, schema, _columns(keys), reduced))

    @property
    def starts(self) -> frozenset[str]:
        """The tables that this version empties first."""
        return frozenset(call.table for call in self._calls if call.kind == "replace")

    # -- for the sink ---------------------------------------------------------------------------

    def close(self) -> list[Call]:
        """End the transaction; its calls, each table's schema settled. Later calls are refused."""
        self._open = False
        for call in self._calls:
            if call.schema is None and call.table not in self._known:
                msg = (
                    f"table {call.table} is not known: a delete needs a table that has rows; tables are"
                    f" {', '.join(sorted(self._known)) or 'none yet'}{_did_you_mean(call.table, self._known)}"
                )
                raise ConfigError(msg)
            _same_key(call, self._known[call.table])  # a delete may stand before the table's first rows
        return self._calls

    @property
    def schemas(self) -> dict[str, TableSchema]:
        """The schema of every table that a call touches."""
        return {call.table: self._known[call.table] for call in self._calls}

    def _rows_call(
        self,
        kind: str,
        table: str,
        rows: DataFrame,
        key: Names,
        order_by: Names | None,
        delete_when: str | None,
        value: str | None,
    ) -> Call:
        keys = self._keys(table, rows, key)
        _check_unique(table, rows.columns)
        others = [field for field in rows.schema.fields if field.name not in {k.name for k in keys}]
        if value is None:
            for field in others:
                check_value_type(table, field)
            schema = TableSchema(_columns(keys), _columns(others))
            stored = json_value([field.name for field in others])
        else:
            field = self._field(table, rows, value)
            if not isinstance(field.dataType, StringType | BinaryType):
                shown = field.dataType.simpleString()
                msg = f"table {table}: value column {value} is {shown}; it must be binary or string"
                raise ConfigError(msg)
            schema = TableSchema(_columns(keys), _columns([field]), "bytes")
            stored = bytes_value(value)
        if delete_when is not None:
            deletes = functions.coalesce(_predicate(table, rows, delete_when), functions.lit(False))  # noqa: FBT003
            stored = functions.when(deletes, delete_marker()).otherwise(stored)
        order = self._order(table, rows, order_by)
        return Call(kind, table, rows, key_bytes(keys), stored, order, schema, _columns(keys))

    def _add(self, call: Call) -> None:
        if not self._open:
            msg = f"table {call.table}: the transaction of batch {self.batch_id} has ended"
            raise ConfigError(msg)
        for earlier in self._calls:
            if earlier.table == call.table and not {earlier.kind, call.kind} <= MIXING:
                msg = (
                    f"table {call.table}: {earlier.kind} and {call.kind} of one table do not mix in one"
                    " transaction: use two tables, or combine the rows into one call"
                )
                raise ConfigError(msg)
        try:
            call.rows.select(call.key, call.value, *call.order)  # only analysed, not run
        except PySparkException as error:
            msg = f"table {call.table}: Spark cannot make this {call.kind}'s columns: {_first_line(error)}"
            raise ConfigError(msg) from error
        known = self._known.get(call.table)
        if known is not None:
            _same_key(call, known)
        if call.schema is not None:
            if known is not None and call.kind != "replace":
                _compatible(call.table, known, call.schema)
            self._known[call.table] = call.schema
        self._calls.append(call)

    def _keys(self, table: str, rows: DataFrame, key: Names) -> list[StructField]:
        check_name("table", table)
        if table.startswith("_"):
            msg = f"table {table}: names that start with an underscore are reserved, as for the quarantine"
            raise ConfigError(msg)
        if not isinstance(rows, DataFrame):
            msg = f"table {table}: rows must be a DataFrame, not {type(rows).__name__}"
            raise ConfigError(msg)
        if rows.isStreaming:
            msg = f"table {table}: this is the streaming DataFrame; use the one the function is given"
            raise ConfigError(msg)
        names = [key] if isinstance(key, str) else list(key)
        if not names or len(set(names)) != len(names):
            msg = f"table {table}: key={key!r} must name one or more different columns"
            raise ConfigError(msg)
        fields = [self._field(table, rows, name) for name in names]
        for field in fields:
            check_key_type(table, field)
        return fields

    def _field(self, table: str, rows: DataFrame, name: str) -> StructField:
        found = [field for field in rows.schema.fields if field.name == name]
        if len(found) == 1:
            return found[0]
        problem = "is missing" if not found else "stands twice"
        msg = (
            f"table {table}: column {name!r} {problem}; the columns are {', '.join(rows.columns)}"
            f"{_did_you_mean(name, rows.columns)}"
        )
        raise ConfigError(msg)

    def _order(self, table: str, rows: DataFrame, order_by: Names | None) -> tuple[Column, ...]:
        if order_by is None:
            return (functions.monotonically_increasing_id(),)
        names = [order_by] if isinstance(order_by, str) else list(order_by)
        fields = [self._field(table, rows, name) for name in names]
        for field in fields:
            if isinstance(field.dataType, MapType):
                msg = f"table {table}: order_by column {field.name} is a map, which has no order"
                raise ConfigError(msg)
        return tuple(column(name) for name in names)


_KEY, _ORDER = "tidegate key", "tidegate order"
"""Columns beside a user's own while rows are grouped."""


def _columns(fields: Sequence[StructField]) -> tuple[SchemaColumn, ...]:
    return tuple(map(schema_column, fields))


def _check_unique(table: str, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        msg = f"table {table}: column {twice[0]!r} stands twice; rename or drop one before writing"
        raise ConfigError(msg)


def _aggregate(reduced: ReducedColumn) -> Column:
    """The batch's own aggregate of a column, nulls skipped, named as the column."""
    source = column(reduced.name)
    # equal order is settled by the value, so that any replay agrees (T44)
    ordered = functions.when(source.isNotNull(), functions.struct(functions.col(_ORDER), source))
    match reduced.reducer:
        case "sum":
            result = functions.try_sum(source)
        case "count":
            result = functions.count(source)
        case "min":
            result = functions.min(source)
        case "max":
            result = functions.max(source)
        case "first":
            result = functions.min_by(source, ordered)
        case _:
            result = functions.max_by(source, ordered)
    return result.cast(reduced.type).alias(reduced.name)


def _overflows(reduced: ReducedColumn) -> Column:
    """Whether the batch's own sum of this column does not fit: with ANSI or without, never a wrong sum."""
    source = column(reduced.name)
    return (functions.count(source) > 0) & functions.try_sum(source).isNull()


def _predicate(table: str, rows: DataFrame, delete_when: str) -> Column:
    try:
        predicate = functions.expr(delete_when)
        kind = rows.select(predicate).schema.fields[0].dataType
    except PySparkException as error:
        msg = f"table {table}: delete_when={delete_when!r} cannot be read: {_first_line(error)}"
        raise ConfigError(msg) from error
    if not isinstance(kind, BooleanType):
        msg = f"table {table}: delete_when={delete_when!r} is {kind.simpleString()}; it must be boolean"
        raise ConfigError(msg)
    return predicate


def _first_line(error: PySparkException) -> str:
    return next(filter(None, (line.strip() for line in str(error).splitlines())), type(error).__name__)


def _same_key(call: Call, known: TableSchema) -> None:
    """A delete may name its key columns otherwise; the types must be the table's."""
    types = [c.type for c in call.key_columns]
    if types != known.key_types or (call.schema is not None and call.key_columns != known.key):
        msg = (
            f"table {call.table} has the key {_shown(known.key)}, this {call.kind} has"
            f" {_shown(call.key_columns)}: a table's key is fixed for life; cast or rename the columns, or"
            " use another table"
        )
        raise ConfigError(msg)


def _compatible(table: str, known: TableSchema, schema: TableSchema) -> None:
    """Columns may be added; what is there keeps its type (T45)."""
    types = {c.name: c.type for c in schema.value}
    lost = [c for c in known.value if types.get(c.name) != c.type]
    if known.value_format != schema.value_format or lost:
        msg = (
            f"table {table} holds {known.value_format} values of {_shown(known.value)}, this call writes"
            f" {schema.value_format} values of {_shown(schema.value)}: columns may be added, not dropped or"
            " changed; keep the others (null where unknown), or use another table"
        )
        raise ConfigError(msg)


def _shown(columns: Sequence[SchemaColumn]) -> str:
    return "(" + ", ".join(f"{c.name} {c.type}" for c in columns) + ")"


def _did_you_mean(name: str, names: Sequence[str] | Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
