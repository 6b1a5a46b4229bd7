"""Versions of a table's state: the schema of a table with rows of several versions. docs/decisions/0088.

Pure functions only.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from tidegate.errors import ConfigError
from tidegate.wal.record import JSON_STATES, Column, StateColumns, TableSchema


def in_version(column: Column, version: int) -> Column:
    """Return the column with a field that no row of another state version has."""
    return Column(column.name, column.type, f"{column.name}@{version}")


def clashes(
    key: tuple[Column, ...], columns: tuple[Column, ...], older: tuple[StateColumns, ...]
) -> list[str]:
    """Describe columns of a table with older state versions that have one name, or one field."""
    if not older:
        return []
    schema = TableSchema(key, columns, older=older)
    names = Counter(column.name for column in (*key, *schema.columns))
    fields = Counter(column.field for column in schema.columns)
    return [f"column {name}: two have this name" for name, n in (names | fields).items() if n > 1]


def versions_of(schema: TableSchema) -> str:
    """Name the state versions that rows of the table may have, for messages."""
    return ", ".join(map(str, schema.states))


def plain(schema: TableSchema, version: int) -> TableSchema:
    """Return the schema of a table whose rows all have these columns, and this version."""
    columns = tuple(Column(column.name, column.type) for column in schema.value)
    value_format = "bytes" if schema.value_format == "bytes" else "json"
    return TableSchema(schema.key, columns, value_format, version if version > 1 else msgspec.UNSET)


def next_state(table: str, known: TableSchema, given: TableSchema) -> TableSchema:
    """Return the schema of a table whose state gets a newer version, and keeps its older rows.

    Each column of the new version has a field of its own, ``n@2``: so a row's fields tell its version,
    whatever the columns of two versions are called. Raises: ConfigError: values are bytes, or a version has
    no columns, so rows could not tell.
    """
    if "bytes" in (known.value_format, given.value_format) or not (known.value and given.value):
        raise ConfigError(
            f"table {table}: state_version {given.version} after {known.version}: a row without columns, or"
            " of bytes, does not show its version; stop the query and migrate all rows at once by"
            " sink.migrate_state (docs/schema-changes.md)"
        )
    older = (*(known.older or ()), StateColumns(known.version, known.value))
    value = tuple(in_version(column, given.version) for column in given.value)
    if faults := clashes(known.key, value, older):
        raise ConfigError(f"table {table}, {'; '.join(faults)}: choose another name")
    return TableSchema(known.key, value, JSON_STATES, given.version, older)


def check_version(table: str, known: TableSchema | None, version: int, *, migrates: bool) -> None:
    """Check that a call with this state version may write the table.

    Raises: ConfigError: the version is older than the table's, or rows have older ones and no function
    migrates them.
    """
    if known is None or known.states.keys() == {version}:
        return
    existing = f"table {table} has rows of the state versions {versions_of(known)}"
    if len(known.states) == 1:
        existing = f"table {table} has state version {versions_of(known)}"
    if version < known.version:
        raise ConfigError(
            f"{existing}, and this call writes state_version={version}: a version never goes back; pass"
            f" state_version={known.version} with the function of that version, or restore an older version"
            " by `tidegate restore --to VERSION`"
        )
    if not migrates:
        raise ConfigError(
            f"{existing}, and this call writes state_version={version}: pass migrate=fn; fn(state, version)"
            f" returns the state of version {version} (docs/schema-changes.md)"
        )
