"""The JVM's part of ``apply_changes`` before the rows are staged: values and order."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.types import StringType, StructField

from tidegate.base.names import check_own_name
from tidegate.errors import ConfigError
from tidegate.spark.calls.checks import check_value_type
from tidegate.spark.calls.column_cache import cached
from tidegate.spark.calls.columns import (
    column,
    has_collation,
    json_value,
    key_bytes,
    schema_column,
    unusable_where,
)
from tidegate.spark.calls.partial import Rows, Unchanged, folded, kept_columns
from tidegate.spark.calls.records import ApplyChanges
from tidegate.spark.state.apply_changes import sequence_column
from tidegate.values.evolve import as_stored, stored_names
from tidegate.wal.record import TableSchema
from tidegate.wal.staging.own_tables import deleted_table
from tidegate.wal.value_flags import DELETE

FILTER = "filter such rows out, or fill the column by coalesce"
TOMBSTONE = "its key, sequence_by and op_column are all null, as of a tombstone: a record whose value is null"
NOT_NULL = 'filter such records out before they are parsed: where("value IS NOT NULL")'


def changes_call(
    table: str,
    rows: DataFrame,
    keys: Sequence[StructField],
    sequence: Sequence[StructField],
    op: StructField | None,
    delete_values: Sequence[str],
    known: Mapping[str, TableSchema],
    unchanged: Unchanged,
) -> ApplyChanges:
    """Build the call: stored values (``-`` and the sequence for deletes), and the order of a key's changes.

    Raises: ConfigError, a column does not fit its role.
    """
    check_own_name("table", table, deleted_table(table))
    taken = {field.name for field in keys}
    if not sequence:
        raise ConfigError(f"table {table}: sequence_by must name the columns that order a key's changes")
    deletes = known.get(deleted_table(table))
    of_deletes = {field.name for field in sequence} if deletes is None else {c.name for c in deletes.value}
    if of_deletes != {field.name for field in sequence}:
        raise ConfigError(
            f"table {table}, sequence_by: {', '.join(sorted(of_deletes))} here, this call has"
            f" {', '.join(field.name for field in sequence)}: its deletes are remembered by the first; drop"
            " the table by txn.drop_table, and write it again in the next batch, or write a new table"
            " (docs/schema-changes.md)"
        )
    first_names = stored_names(known.get(table))
    for field in sequence:
        if field.name in first_names:
            raise _renamed(table, field.name, first_names[field.name])
        if field.name in taken or (op is not None and field.name == op.name):
            raise ConfigError(f"table {table}: sequence_by column {field.name} is a key or the operation")
    if op is not None and (not isinstance(op.dataType, StringType) or op.name in taken):
        raise ConfigError(f"table {table}: op_column {op.name} must be a string column outside the key")
    if op is not None and has_collation(op.dataType):
        raise ConfigError(f"table {table}: op_column {op.name} has a collation; cast it to plain string")
    argument: object = delete_values
    texts = isinstance(argument, Collection) and not isinstance(argument, str | bytes)
    if op is not None and not (texts and delete_values):
        raise ConfigError(f"table {table}: delete_values must be a list of texts, as in ('d',)")
    stored = [f for f in rows.schema.fields if f.name not in taken and (op is None or f.name != op.name)]
    for field in stored:
        check_value_type(table, field)
    names = [field.name for field in sequence]
    value = json_value(stored, stored=first_names)
    if op is not None:
        is_delete = column(op.name).isin(list(delete_values))
        value = functions.when(is_delete, json_value(sequence, flags=DELETE)).otherwise(value)
    value = cached(unordered_marked, tuple(f.name for f in keys), tuple(names), op and op.name, value)
    may_stay = [field for field in stored if field.name not in names]
    masks = kept_columns(table, rows, may_stay, unchanged)
    changes = Rows(rows, key_bytes(keys), value, tuple(column(name) for name in names))
    if masks:
        changes = folded(changes, stored, masks, sequence, first_names)
    key_columns = tuple(map(schema_column, keys))
    return ApplyChanges(
        table,
        changes.rows,
        key_columns,
        TableSchema(key_columns, tuple(map(schema_column, stored))),
        key=changes.key,
        value=changes.value,
        order=changes.order,
        partial=tuple(first_names.get(name, name) for name in masks),
        sequence=tuple(
            sequence_column(table, as_stored(schema_column(field), known.get(table), deletes))
            for field in sequence
        ),
    )


def unordered_marked(keys: Sequence[str], sequence: Sequence[str], op: str | None, value: Column) -> Column:
    """Return the value, unusable where a column is null by which changes are ordered."""
    arguments = [(name, "sequence_by") for name in sequence] + ([] if op is None else [(op, "op_column")])
    nulls = [
        (column(name).isNull(), f"its {argument} column {name} is null, so it cannot be ordered", FILTER)
        for name, argument in arguments
    ]
    all_of_them = [column(name).isNull() for name in (*keys, *(name for name, _ in arguments))]
    return unusable_where([(reduce(and_, all_of_them), TOMBSTONE, NOT_NULL), *nulls], value)


def _renamed(table: str, name: str, first: str) -> ConfigError:
    words = shlex.join(["tidegate", "schema", "rename", table, name, first])
    return ConfigError(
        f"table {table}: sequence_by column {name} was renamed, its rows have it as {first}: rename it back"
        f" ({words}), and give that name"
    )
