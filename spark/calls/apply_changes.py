"""The JVM's part of ``apply_changes`` before the rows are staged: values and order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pyspark.sql import DataFrame, functions
from pyspark.sql.types import StringType, StructField

from tidegate.base.names import check_own_name
from tidegate.errors import ConfigError
from tidegate.spark.calls.columns import (
    check_value_type,
    column,
    json_value,
    key_bytes,
    schema_column,
    unusable,
)
from tidegate.spark.calls.records import ApplyChanges
from tidegate.spark.state.apply_changes import sequence_column
from tidegate.values.evolve import as_stored, stored_names
from tidegate.wal.record import TableSchema
from tidegate.wal.staging.own_tables import deleted_table
from tidegate.wal.value_flags import DELETE


def changes_call(
    table: str,
    rows: DataFrame,
    keys: Sequence[StructField],
    sequence: Sequence[StructField],
    op: StructField | None,
    delete_values: Sequence[str],
    known: Mapping[str, TableSchema],
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
    argument: object = delete_values
    texts = isinstance(argument, Collection) and not isinstance(argument, str | bytes)
    if op is not None and not (texts and delete_values):
        raise ConfigError(f"table {table}: delete_values must be a list of texts, as in ('d',)")
    stored = [f for f in rows.schema.fields if f.name not in taken and (op is None or f.name != op.name)]
    for field in stored:
        check_value_type(table, field)
    names = [field.name for field in sequence]
    unknown = functions.lit(False)  # noqa: FBT003
    for name in [*names, *([] if op is None else [op.name])]:
        unknown = unknown | column(name).isNull()
    value = json_value(stored, stored=first_names)
    if op is not None:
        is_delete = column(op.name).isin(list(delete_values))
        value = functions.when(is_delete, json_value(sequence, flags=DELETE)).otherwise(value)
    why = "its change has a null in sequence_by or op_column, so it cannot be ordered"
    value = functions.when(unknown, unusable(why, "filter such rows out", value)).otherwise(value)
    order = tuple(column(name) for name in names)
    key_columns = tuple(map(schema_column, keys))
    return ApplyChanges(
        table,
        rows,
        key_columns,
        TableSchema(key_columns, tuple(map(schema_column, stored))),
        key=key_bytes(keys),
        value=value,
        order=order,
        sequence=tuple(
            sequence_column(table, as_stored(schema_column(field), known.get(table), deletes))
            for field in sequence
        ),
    )


def _renamed(table: str, name: str, first: str) -> ConfigError:
    return ConfigError(
        f"table {table}: sequence_by column {name} was renamed, its rows have it as {first}: rename it back"
        f" (tidegate schema rename {table} {name} {first}), and give that name"
    )
