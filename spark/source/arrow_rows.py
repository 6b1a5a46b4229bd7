"""Stored keys and values as Arrow columns, by the schema of their table: no Python per row for most types.

Values whose columns are all numbers, strings, booleans, dates or timestamps are parsed by Arrow.
Other types (decimal, binary, nested ones) are decoded by msgspec; only floats and maps inside them
cost Python for each row.

No pyspark is imported here.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from tidegate.errors import ConfigError, CorruptError
from tidegate.keys.columns import key_columns
from tidegate.spark.state.reduce import TYPES, ReducedColumn, parse
from tidegate.values.decode import Values, cause_of
from tidegate.values.kinds import SIMPLE

INSTANT = "timestamp_ltz"
"""Spark's name of an instant that does not depend on ``spark.sql.timestampType``, as ``timestamp`` does."""


def ddl_of(values: Values) -> str:
    """Return the columns of ``Values.arrow_schema`` as Spark's DDL: the key's, then the value's.

    Types are those of readers: text for intervals, collated strings, char and varchar.
    """
    return ", ".join(f"{_quoted(field.name)} {_ddl(field.type)}" for field in values.arrow_schema)


def _ddl(kind: Any) -> str:
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{_quoted(field.name)}: {_ddl(field.type)}' for field in kind)}>"
    if pa.types.is_list(kind):
        return f"array<{_ddl(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_ddl(kind.key_type)}, {_ddl(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    name = next(name for name, simple in SIMPLE.items() if simple.arrow == kind)
    return INSTANT if name == "timestamp" else name


def check_columns(where: str, schema: Any, columns: Any) -> None:
    """Compare the columns that Spark reads with those that there are. Raises: ConfigError: one is another."""
    types = {field.name: _ddl(field.type) for field in columns}
    for field in schema:
        if field.name not in types:
            raise ConfigError(
                f"{where} has no column {field.name!r}; it has {', '.join(types)}: leave .schema() out, the"
                " source knows it"
            )
        try:
            given = _ddl(field.type)
        except StopIteration:  # a type that no table has
            given = str(field.type)
        if given != types[field.name]:
            raise ConfigError(
                f"{where}: column {field.name!r} is {types[field.name]}, and .schema() names {given}:"
                " leave .schema() out, the source knows it, and cast the column afterwards"
            )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def columns_of(batch: Any, values: Values, where: str) -> dict[str, Any]:
    """Return the columns of a batch (key, value; a null value gives nulls) by name.

    Raises: CorruptError that names ``where`` and the key.
    """
    keys, contents = batch.column("key"), batch.column("value")
    try:
        columns = dict(key_columns(keys, values.schema.key))
        value_columns = [column for column in values.schema.columns if column.name not in columns]
        if values.schema.value_format == "bytes":
            columns.update({column.name: contents for column in value_columns})
        elif all(column.type in TYPES for column in value_columns):
            flat = [ReducedColumn(column.field, column.type, "last") for column in value_columns]
            names = [column.name for column in value_columns]
            columns.update(zip(names, parse(contents, flat) if flat else [], strict=True))
        else:
            rows = values.decode_all(contents)
            kinds = {field.name: field.type for field in values.arrow_schema}
            for column in value_columns:
                cells = [row[column.name] for row in rows]
                columns[column.name] = pa.array(cells, kinds[column.name])
    except (ValueError, ArithmeticError, RecursionError, msgspec.MsgspecError, pa.ArrowException) as error:
        raise _which(keys, contents, values, where, error) from None  # the cause has the value
    return columns


def _which(keys: Any, contents: Any, values: Values, where: str, error: Exception) -> CorruptError:
    """Return the error for the first unreadable row, found one by one."""
    for key, content in zip(keys.to_pylist(), contents.to_pylist(), strict=True):
        try:
            values.decode_key(key)
            if content is not None:
                values.decode(content)
        except CorruptError as bad:
            return CorruptError(f"{where}, key {key!r}: {bad}")
    return CorruptError(f"{where}: stored values do not fit the table's columns: {cause_of(error)}")


def record_batch(columns: dict[str, Any], schema: Any) -> Any:
    """Return a record batch of exactly this Arrow schema; missing columns are null."""
    rows = len(next(iter(columns.values())))
    arrays = []
    for field in schema:
        cells = columns.get(field.name)
        cells = pa.nulls(rows, field.type) if cells is None else cells
        arrays.append(cells if cells.type == field.type else cells.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
