"""Checks of the arguments of ``Transaction.update`` besides its rows: functions, tables by their DDL,
the state's version.
"""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from pyspark.cloudpickle import dumps
from pyspark.errors import PySparkException
from pyspark.sql.types import NullType, StructField, StructType

from tidegate.base.names import check_name, check_own_name
from tidegate.base.text import brief
from tidegate.errors import ConfigError, TidegateError
from tidegate.options.durations import US, duration_us
from tidegate.spark.calls.checks import check_key_type, check_value_type
from tidegate.spark.calls.columns import schema_column
from tidegate.spark.calls.records import Call, Update
from tidegate.spark.session.releases import NOT_TAKEN, type_of_ddl
from tidegate.spark.state.timeouts import TimeoutWork
from tidegate.spark.state.udf_runner import Migrate
from tidegate.values.state_versions import check_version, plain
from tidegate.wal.record import STATE_VERSION_MAX, TableSchema
from tidegate.wal.record import Column as SchemaColumn
from tidegate.wal.staging.own_tables import DUE_COLUMNS, QUEUE_SCHEMA, due_table, queue_table

Ddl = str | StructType
Outputs = str | Sequence[str] | Mapping[str, tuple[Ddl, Ddl]]

BYTES = "bytes"
"""Instead of columns: the values are bytes, unchanged."""


def check_function(table: str, fn: object, call: str = "update", first: str = "key") -> None:
    """Raise ConfigError if it cannot be called with (``first``, rows, state, emit), or cannot be pickled."""
    if not callable(fn):
        needed = f"fn({first}, rows, state, emit) -> new state"
        msg = f"table {table}: fn is {brief(fn)}; {call} needs a function, {needed}"
        raise ConfigError(msg)
    _check_sendable(table, fn, first, "rows", "state", "emit")


def timeout_of(table: str, timeout: object, on_timeout: object) -> int | None:
    """Return the timeout of a state's keys in microseconds; None: there is none.

    Raises: ConfigError: it is no duration, the function for it is missing, or one without it is given.
    """
    if timeout is None and on_timeout is None:
        return None
    needed = "on_timeout(key, state, emit) -> new state"
    if timeout is None:
        raise ConfigError(f"table {table}: on_timeout needs a timeout, as in timeout='30 min'")
    if not callable(on_timeout):
        raise ConfigError(
            f"table {table}: on_timeout is {brief(on_timeout)}; a timeout needs a function, {needed}"
        )
    _check_sendable(table, on_timeout, "key", "state", "emit")
    check_own_name("table", table, queue_table(table))
    return duration_us(f"timeout of table {table}", timeout)


def timeout_schemas(table: str, key: tuple[SchemaColumn, ...]) -> dict[str, TableSchema]:
    """Return the tables of a state's timeout. Raises: ConfigError: a key column has a name of theirs."""
    if taken := {column.name for column in key} & {column.name for column in DUE_COLUMNS}:
        msg = f"table {table}: a timeout needs the name {min(taken)} for itself; rename that key column"
        raise ConfigError(msg)
    return {due_table(table): TableSchema(key, DUE_COLUMNS), queue_table(table): QUEUE_SCHEMA}


def check_ttls(calls: Iterable[Call], ttl_us: Callable[[str], int]) -> None:
    """Raise ConfigError if states would expire before they time out. ``ttl_us`` is by table; 0: never."""
    for call in calls:
        if isinstance(call, Update) and call.timeout_us is not None and (ttl := ttl_us(call.table)):
            least_us = TimeoutWork(call.timeout_us, 0, 0).latest_us
            if ttl < least_us:
                raise ConfigError(
                    f"table {call.table}: its ttl is {ttl / US:g} s, and its states time out after up to"
                    f" {least_us / US:g} s without rows: they would expire first, and on_timeout would not be"
                    " called; give the table a longer ttl, or none"
                )


def state_of(
    table: str,
    given: TableSchema | None,
    known: TableSchema | None,
    state_version: int,
    migrate: Migrate | None,
) -> TableSchema:
    """Return the schema of a state that a call writes with this version; ``given`` None: the known columns.

    Raises: ConfigError: there are no columns, the version goes back, or older rows cannot be migrated.
    """
    if isinstance(state_version, bool) or not isinstance(state_version, int):
        raise ConfigError(
            f"table {table}: state_version is {brief(state_version)}; it must be a whole number"
        )
    if not 1 <= state_version <= STATE_VERSION_MAX:
        raise ConfigError(
            f"table {table}: state_version is {brief(state_version)}; 1 to {STATE_VERSION_MAX} exist"
        )
    if migrate is not None:
        if not callable(migrate):
            raise ConfigError(f"table {table}: migrate is {brief(migrate)}; it must be a function")
        _check_sendable(table, migrate, "state", "version")
    check_version(table, known, state_version, migrates=migrate is not None)
    if given is None and known is None:
        msg = f'table {table} is not known yet: pass schema=, as in schema="count bigint, last timestamp"'
        raise ConfigError(msg)
    schema = given or known
    assert schema is not None
    return schema if schema.version == state_version else plain(schema, state_version)


def _check_sendable(table: str, fn: Callable[..., object], *arguments: str) -> None:
    name = getattr(fn, "__name__", repr(fn))
    try:
        inspect.signature(fn).bind(*arguments)
    except TypeError as error:
        msg = f"table {table}: {name} cannot be called as {name}({', '.join(arguments)}): {error}"
        raise ConfigError(msg) from None
    except ValueError:
        pass  # its signature cannot be inspected
    try:
        dumps(fn)  # type: ignore[no-untyped-call]
    except TidegateError:
        raise
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, PySparkException) as error:
        msg = (
            f"table {table}: Spark cannot send {name} to the executors: {error}; do not use sessions,"
            " DataFrames, connections or open files of the driver in it"
        )
        raise ConfigError(msg) from error


def as_now(table: str, *functions: Any) -> tuple[Any, ...]:
    """Return functions with the variables that they have now: they run when the caller has returned.

    As for the functions of a UDF: Spark, too, pickles them at the call. Raises: ConfigError: a copy fails.
    """
    sent = dumps(functions)  # type: ignore[no-untyped-call]
    try:
        copied: tuple[Any, ...] = pickle.loads(sent)  # noqa: S301 - the bytes are of the line above
    except Exception as error:
        msg = (
            f"table {table}: Spark cannot copy the function to the executors: {type(error).__name__}: {error}"
        )
        raise ConfigError(f"{msg}; leave out of it what cannot be made again from its pickle") from error
    return copied


def table_schema(table: str, key: Sequence[StructField], value: Ddl) -> TableSchema:
    """Return the schema of a table with these key columns and the value of a DDL (or ``bytes``)."""
    keys = tuple(map(schema_column, key))
    if value == BYTES:
        return TableSchema(keys, (SchemaColumn("value", "binary"),), BYTES)
    fields = _fields(table, value, 'the value\'s columns, as in "count bigint, last timestamp", or "bytes"')
    for field in fields:
        check_value_type(table, field)
        if field.name in {one.name for one in key}:
            msg = f"table {table}: {field.name} is a key column, leave it out of the value's columns"
            raise ConfigError(msg)
    return TableSchema(keys, tuple(map(schema_column, fields)))


def value_schema(table: str, known: TableSchema, value: Ddl) -> TableSchema:
    """Return the schema of a table with the key of ``known`` and the value of a DDL (or ``bytes``)."""
    names = [StructField(column.name, NullType()) for column in known.key]
    return msgspec.structs.replace(table_schema(table, names, value), key=known.key)


def output_schemas(table: str, outputs: Outputs, known: Mapping[str, TableSchema]) -> dict[str, TableSchema]:
    """Return the tables that a function may emit to. Raises: ConfigError, a schema is missing, or invalid."""
    named = [outputs] if isinstance(outputs, str) else outputs
    if not isinstance(named, Iterable):
        raise ConfigError(
            f"table {table}: outputs={brief(outputs)} must name tables, or map them to their columns"
        )
    schemas: dict[str, TableSchema] = {}
    for name in named:
        check_name("table", name)
        if name.startswith("_"):
            msg = f"table {name}: names that start with an underscore are reserved, as for the quarantine"
            raise ConfigError(msg)
        if name == table:
            msg = f"table {name}: a function does not emit to its own state; it returns the new state"
            raise ConfigError(msg)
        if isinstance(named, Mapping):
            schemas[name] = _output_schema(name, named[name])
        elif name in known:
            schemas[name] = known[name]
        else:
            example = f'outputs={{"{name}": ("user string", "level int, at timestamp")}}'
            msg = f"table {name} is not known yet: name its key's and its value's columns, as in {example}"
            raise ConfigError(msg)
    return schemas


def _output_schema(table: str, ddls: object) -> TableSchema:
    if not isinstance(ddls, tuple | list) or len(ddls) != 2:
        msg = f"table {table}: an output is a pair, (key columns, value columns), not {brief(ddls)}"
        raise ConfigError(msg)
    key = _fields(table, ddls[0], 'the key\'s columns, as in "user string"')
    if not key:
        msg = f"table {table}: name at least one key column"
        raise ConfigError(msg)
    for field in key:
        check_key_type(table, field)
    return table_schema(table, key, ddls[1])


def _fields(table: str, ddl: object, what: str) -> list[StructField]:
    if not isinstance(ddl, str | StructType):
        msg = f"table {table}: {brief(ddl)} does not name {what}"
        raise ConfigError(msg)
    try:
        kind = type_of_ddl(ddl) if isinstance(ddl, str) and ddl.strip() else ddl or StructType()
    except NOT_TAKEN as error:
        why = next(filter(None, map(str.strip, str(error).splitlines())), "")
        msg = f"table {table}: {brief(ddl)} does not name {what}: {why}"
        raise ConfigError(msg) from error
    if not isinstance(kind, StructType):
        msg = f"table {table}: {brief(ddl)} does not name {what}"
        raise ConfigError(msg)
    names = [field.name for field in kind.fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        msg = f"table {table}: column {brief(twice[0])} is repeated in {brief(ddl)}"
        raise ConfigError(msg)
    return list(kind.fields)
