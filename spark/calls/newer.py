"""The JVM's part of an upsert with ``newer_by`` before the rows are staged: order, and rows without one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tidegate.base.text import brief
from tidegate.errors import ConfigError
from tidegate.spark.calls.columns import column, unusable_where
from tidegate.spark.calls.records import Upsert, UpsertNewer
from tidegate.spark.state.apply_changes import sequence_column
from tidegate.values.evolve import as_stored
from tidegate.wal.record import TableSchema

ALONE = {
    "order_by": "newer_by orders the rows of a batch, too",
    "delete_when": "a late row would bring a deleted key back; apply_changes remembers deletes",
    "value": "newer_by is compared with the stored row, which would not have the column",
}
"""The arguments of an upsert that cannot be given with ``newer_by``, and why."""


def check_alone(table: str, newer_by: object, others: Mapping[str, object]) -> None:
    """Raise ConfigError if ``newer_by`` is given together with an argument of ``ALONE``."""
    for name, why in ALONE.items():
        if newer_by is not None and others.get(name) is not None:
            raise ConfigError(f"table {table}: newer_by and {name} do not go together: {why}")


def newer_call(call: Upsert, newer_by: str, known: TableSchema | None) -> UpsertNewer:
    """Return the upsert of only those rows that are newer than the stored ones, of the schema ``known``.

    Raises: ConfigError: the column is not one that orders a table's rows.
    """
    table = call.table
    argument: object = newer_by
    fields = {} if call.schema is None else {field.name: field for field in call.schema.value}
    if not isinstance(argument, str) or argument not in fields:
        msg = (
            f"table {table}: newer_by={brief(argument)} must be one column outside the key; those are"
            f" {', '.join(fields) or 'none'}"
        )
        raise ConfigError(msg)
    sequence = sequence_column(table, as_stored(fields[argument], known), "newer_by")
    why = f"column {argument} of newer_by is null in it, so it cannot be compared with the stored row"
    null = column(argument).isNull(), why, "filter such rows out"
    given = {field.name: getattr(call, field.name) for field in dataclasses.fields(call)}
    ordered = {"value": unusable_where([null], call.value), "order": (column(argument),)}
    return UpsertNewer(**given | ordered, newer_by=sequence)
