"""Checks of a transaction's calls: types of columns, the table's key and columns, other calls of it.

A new refusal of a batch's input that its schema shows has its place here: nothing is written before.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from pyspark.sql import Column, DataFrame, functions, types

from tidegate.base.names import check_name, did_you_mean
from tidegate.base.text import brief, first_line
from tidegate.errors import ConfigError
from tidegate.spark.calls.column_cache import analyse, cached
from tidegate.spark.calls.columns import column, has_collation
from tidegate.spark.session.releases import NOT_TAKEN
from tidegate.values.evolve import evolved
from tidegate.values.kinds import kind_of
from tidegate.values.state_versions import next_state, versions_of
from tidegate.wal.record import Column as SchemaColumn
from tidegate.wal.record import TableSchema

logger = logging.getLogger("tidegate")

Names = str | Sequence[str]
"""One column, or several."""
_KEY_TYPES = (
    types.StringType,
    types.BinaryType,
    types.ByteType,
    types.ShortType,
    types.IntegerType,
    types.LongType,
    types.BooleanType,
    types.DateType,
    types.DecimalType,
    types.TimestampType,
    types.TimestampNTZType,
)
DROP = "drop_table"
MIXING = frozenset({"upsert", "delete", "emit"})
"""Calls that may touch one table in one transaction: they act in the order in which they are made."""


def check_table(table: str) -> None:
    """Raise ConfigError if no user's table can have this name."""
    check_name("table", table)
    if table.startswith("_"):
        msg = f"table {table}: names that start with an underscore are reserved, as for the quarantine"
        raise ConfigError(msg)


def check_key_type(table: str, field: types.StructField) -> None:
    """Raise ConfigError, with a remedy, when a column of this type cannot be a key."""
    kind = field.dataType
    if isinstance(kind, types.FloatType | types.DoubleType):
        msg = (
            f"table {table}: key column {field.name} is {kind.simpleString()}; NaN and -0.0 have no one"
            " encoding, so float keys are refused: cast it to decimal, bigint or string"
        )
        raise ConfigError(msg)
    if isinstance(kind, types.StructType) and kind.fields:
        part = f"{field.name}.{kind.fields[0].name}"
        msg = (
            f"table {table}: key column {field.name} is {kind.simpleString()}; a struct is no key: make"
            f' columns of its fields first, as in rows.withColumn("{part.replace(".", "_")}", col("{part}"))'
        )
        raise ConfigError(msg)
    if not isinstance(kind, _KEY_TYPES):
        msg = (
            f"table {table}: key column {field.name} is {kind.simpleString()}; a key column is a string,"
            " binary, integer, boolean, date, timestamp, timestamp_ntz or decimal: cast it to one of them"
        )
        raise ConfigError(msg)
    if has_collation(kind):
        msg = f"table {table}: key column {field.name} has a collation; cast it to binary or plain string"
        raise ConfigError(msg)


def check_value_type(table: str, field: types.StructField) -> None:
    """Raise ConfigError when readers could not read a value column of this type."""
    for struct in _structs(field.dataType):
        names = struct.names
        if wrong := sorted({name for name in names if ":" in name or names.count(name) > 1}):
            why = "has a colon in its name" if ":" in wrong[0] else "is repeated"
            msg = (
                f"table {table}: column {field.name}: field {wrong[0]!r} {why} in {struct.simpleString()},"
                " and readers could not distinguish it; rename it before writing"
            )
            raise ConfigError(msg)
    try:
        kind_of(field.dataType.simpleString())
    except ConfigError as error:
        vector = "; of a vector, make an array: vector_to_array of pyspark.ml.functions"
        msg = f"table {table}: column {field.name}: {error}{vector * _is_vector(field.dataType)}"
        raise ConfigError(msg) from None


def _is_vector(kind: types.DataType) -> bool:
    """Return whether a type is, or contains, a vector of Spark ML."""
    match kind:
        case types.StructType():
            return any(_is_vector(field.dataType) for field in kind.fields)
        case types.ArrayType():
            return _is_vector(kind.elementType)
        case types.MapType():
            return _is_vector(kind.valueType)
        case _:
            return isinstance(kind, types.UserDefinedType) and kind.simpleString() == "vector"


def _structs(kind: types.DataType) -> Iterator[types.StructType]:
    """Yield the structs in a type, itself and nested ones."""
    match kind:
        case types.StructType():
            yield kind
            for field in kind.fields:
                yield from _structs(field.dataType)
        case types.ArrayType():
            yield from _structs(kind.elementType)
        case types.MapType():
            yield from _structs(kind.valueType)
        case _:
            pass


def no_dataframe(where: str, rows: object) -> ConfigError:
    """Build the error for rows that are no DataFrame of Spark's, such as those of pandas."""
    kind = type(rows)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    makes_one = "" if kind.__name__ != "DataFrame" else ": spark.createDataFrame(rows) makes one"
    return ConfigError(f"{where}: rows must be a DataFrame, not {name}{makes_one}")


def columns_named(table: str, what: str, argument: object) -> list[str]:
    """Return the columns in ``key`` or ``order_by``. Raises: ConfigError, it is neither a name nor
    several.
    """
    several = argument if isinstance(argument, Sequence) and not isinstance(argument, str) else [argument]
    names = [name for name in several if isinstance(name, str)]
    if len(names) != len(several):
        msg = f"table {table}: {what}={brief(argument)} must be a column's name, or a list of names"
        raise ConfigError(msg)
    return names


def key_columns(table: str, key: object) -> list[str]:
    """Return the columns of a key. Raises: ConfigError, there are none, or one is repeated."""
    names = columns_named(table, "key", key)
    if not names or len(set(names)) != len(names):
        msg = f"table {table}: key={brief(key)} must name one or more different columns"
        raise ConfigError(msg)
    return names


def predicate(table: str, rows: DataFrame, delete_when: str) -> Column:
    """Return the column of a predicate in Spark SQL. Raises: ConfigError, it is invalid, or not boolean."""
    if not isinstance(delete_when, str):
        raise ConfigError(f"table {table}: delete_when={brief(delete_when)} must be a predicate of Spark SQL")
    try:
        condition = cached(functions.expr, delete_when)
        kind = analyse(rows, condition).fields[0].dataType
    except NOT_TAKEN as error:
        msg = f"table {table}: delete_when={brief(delete_when)} cannot be read: {first_line(error)}"
        raise ConfigError(msg) from error
    if not isinstance(kind, types.BooleanType):
        msg = f"table {table}: delete_when={brief(delete_when)} is {kind.simpleString()}; it must be boolean"
        raise ConfigError(msg)
    return condition


def check_mixing(earlier: Mapping[str, str], call: Mapping[str, str]) -> None:
    """Raise ConfigError if two calls, each with the kind of change by table, cannot touch one table."""
    for table in earlier.keys() & call.keys():
        kinds = earlier[table], call[table]
        if not MIXING.issuperset(kinds):
            msg = (
                f"table {table}: {kinds[0]} and {kinds[1]} of one table do not mix in one"
                " transaction: use two tables, or combine the rows into one call"
            )
            raise ConfigError(msg)


def check_unique(table: str, names: Sequence[str]) -> None:
    """Raise ConfigError if a column is repeated."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        msg = f"table {table}: column {brief(twice[0])} is repeated; rename or drop one before writing"
        raise ConfigError(msg)


def same_key(kind: str, table: str, key: Sequence[SchemaColumn], known: TableSchema, *, names: bool) -> None:
    """Check the key's types against the table's, and its columns' names too unless it is a delete."""
    types = [c.type for c in key]
    if types != known.key_types or (names and tuple(key) != known.key):
        msg = (
            f"table {table} has the key {shown(known.key)}, this {kind} has"
            f" {shown(key)}: a table's key is fixed for life; cast or rename the columns, or"
            " use another table"
        )
        raise ConfigError(msg)


def schema_after(kind: str, table: str, known: TableSchema, schema: TableSchema) -> TableSchema:
    """Return the table's schema after this call, which may widen and add columns, and leave some out (T45).

    Columns that rows leave out are null in them, which is logged. A newer state version has columns of its
    own. Raises: ConfigError, as ``evolved`` and ``next_state``; rows of older state versions are there,
    which only some calls can handle.
    """
    if schema.version > known.version:
        return next_state(table, known, schema)
    if known.older and kind not in SEVERAL_STATES:
        raise ConfigError(
            f"table {table} has rows of the state versions {versions_of(known)}, which {kind} cannot read:"
            " migrate them by sink.migrate_state first, or write them by update (docs/schema-changes.md)"
        )
    after = evolved(table, known, schema)
    if after.left_out and kind in WHOLE_ROWS:
        _warn_left_out(kind, table, after.left_out)
    return after.schema


SEVERAL_STATES = ("update", "emit")
"""Calls that write a table with rows of several state versions."""
WHOLE_ROWS = ("upsert", "reduce", "apply_changes")
"""Calls whose rows are a key's whole value."""


@lru_cache(maxsize=1_000)
def _warn_left_out(kind: str, table: str, names: tuple[str, ...]) -> None:
    """Log, once per process, that a call leaves columns out."""
    logger.warning(
        "table %s: this %s leaves out %s, which the table has: null in the rows that it writes; the column"
        " stays, and older rows keep their values (docs/schema-changes.md)",
        table,
        kind,
        ", ".join(names),
    )


def field_of(table: str, rows: DataFrame, name: str) -> types.StructField:
    """Return a column of the rows. Raises: ConfigError, it is missing or repeated."""
    fields = [field for field in rows.schema.fields if field.name == name]
    if len(fields) == 1:
        return fields[0]
    problem = "is missing" if not fields else "is repeated"
    msg = (
        f"table {table}: column {brief(name)} {problem}; the columns are {', '.join(rows.columns)}"
        f"{did_you_mean(name, rows.columns)}"
    )
    raise ConfigError(msg)


def order_of(table: str, rows: DataFrame, order_by: Names | None) -> tuple[Column, ...]:
    """Return the columns that order a key's rows. Raises: ConfigError, one is missing or has no order."""
    names = [] if order_by is None else columns_named(table, "order_by", order_by)
    if not names:
        return (cached(functions.monotonically_increasing_id),)
    for name in names:
        if isinstance(field_of(table, rows, name).dataType, types.MapType):
            msg = f"table {table}: order_by column {name} is a map, which has no order"
            raise ConfigError(msg)
    return tuple(column(name) for name in names)


def drop_mixed(table: str, kind: str) -> ConfigError:
    """Return the error of a drop and another call on one table."""
    rule = "do not mix in one transaction: its name is free again from the next version on"
    return ConfigError(f"table {table}: {DROP} and {kind} of one table {rule}; use replace for other rows")


def shown(columns: Sequence[SchemaColumn]) -> str:
    return "(" + ", ".join(f"{c.name} {c.type}" for c in columns) + ")"
