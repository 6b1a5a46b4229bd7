"""Changes of a table's columns: which of them keep every older row readable, and the schema after them.

Rows keep the bytes that they were written with. A reader decodes all rows of a version by that version's
schema. So a change is accepted only if a value that was written by the older schema is the same value by the
newer one. Pure functions only. docs/decisions/0085.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tidegate.base.names import did_you_mean
from tidegate.errors import ConfigError
from tidegate.keys.types import Array, Map, Struct, Type, parse, text_of
from tidegate.values.state_versions import clashes, in_version, versions_of
from tidegate.wal.record import JSON_RENAMED, Column, TableSchema

DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
"""The decimal digits of each integer type, from the narrowest type on."""
INTEGERS = tuple(DIGITS)
EXACT = {"float": ("tinyint", "smallint"), "double": ("tinyint", "smallint", "int", "float")}
"""The types whose every value a floating-point type has, too."""

WAY_OUT = (
    "a column's type may only widen without loss, and its name stays; cast or rename the column, write the"
    " whole table again by txn.replace, or write a new table (docs/schema-changes.md)"
)


class Evolved(NamedTuple):
    """A table's schema after a call, and the columns and fields that the call leaves out."""

    schema: TableSchema
    left_out: tuple[str, ...]


def evolved(table: str, known: TableSchema, given: TableSchema) -> Evolved:
    """Return the schema of a table after a call that writes columns like ``given``.

    Of each column it has the wider type; columns that the call leaves out stay. The keys are not compared.
    Raises: ConfigError that begins with the columns that do not fit.
    """
    changes = _Changes()
    if "bytes" in (known.value_format, given.value_format):
        same = (known.value_format, known.value) == (given.value_format, given.value)
        existing, new = (f"{s.value_format} values of ({_shown(s.value)})" for s in (known, given))
        changes.faults += [] if same else [f"the values: {existing} here, this call writes {new}"]
        columns = known.value
    else:
        columns = _columns(known, given, changes)
        changes.faults += clashes(known.key, columns, known.older or ())
    if changes.faults:
        raise ConfigError(f"table {table}, {'; '.join(changes.faults)}: {WAY_OUT}")
    return Evolved(msgspec.structs.replace(known, value=columns), tuple(changes.left_out))


def reads_all(newer: TableSchema, older: TableSchema, *, same_start: bool = False) -> bool:
    """Return whether rows of the older schema can be decoded by the newer one, with all their columns.

    ``same_start``: the table was not replaced in between, so a field is one column, whatever its names.
    """
    if newer.key != older.key or "bytes" in (newer.value_format, older.value_format):
        return newer.grouped(1) == older.grouped(1)
    changes = _Changes()
    for version, columns in older.states.items():
        by_field = {column.field: column for column in newer.states.get(version, ())}
        for column in columns:
            same = by_field.get(column.field)
            if same is None or (same.name != column.name and not same.stored and not same_start):
                return False
            after = parse(same.type)
            if _merged(column.name, after, parse(column.type), changes) != after:
                return False
    return not changes.faults


def renamed(table: str, schema: TableSchema, old: str, new: str) -> TableSchema | None:
    """Return the schema with a value column's new name; None: an earlier call has renamed it.

    Raises: ConfigError: there is no such column, it cannot be renamed, or the new name is in use.
    """
    columns = {column.name: column for column in schema.value}
    if old not in columns:
        if new in columns and columns[new].stored == old:
            return None
        if old in {column.name for column in schema.key}:
            raise ConfigError(
                f"table {table}, column {old}: it is of the key, which is fixed for life; write a new table"
                " whose key has the new name (docs/schema-changes.md)"
            )
        raise ConfigError(
            f"table {table}, column {old}: there is none of this name; the columns are"
            f" {', '.join(columns)}{did_you_mean(old, columns)}"
        )
    if schema.value_format == "bytes":
        raise ConfigError(
            f"table {table}, column {old}: its values are bytes without names; write the table again by"
            " txn.replace"
        )
    if schema.older:
        raise ConfigError(
            f"table {table}, column {old}: it has rows of the state versions {versions_of(schema)};"
            " migrate them by sink.migrate_state first (docs/schema-changes.md)"
        )
    taken = {column.name for column in (*schema.key, *schema.value)}
    reserved = {column.field: column.name for column in schema.value if column.name != old}
    if not new or new in taken or new in reserved:
        where = f" by column {reserved[new]}, whose rows have it" if new in reserved.keys() - taken else ""
        raise ConfigError(f"table {table}, column {old}: the name {new!r} is in use{where}; choose another")
    value = tuple(_named(column, new) if column.name == old else column for column in schema.value)
    is_renamed = any(column.stored for column in value)
    return msgspec.structs.replace(schema, value=value, stored_format=JSON_RENAMED if is_renamed else "json")


def stored_names(schema: TableSchema | None) -> dict[str, str]:
    """Return the field of each renamed column, by its name."""
    return {column.name: column.field for column in (schema.value if schema else ()) if column.stored}


def as_stored(column: Column, *schemas: TableSchema | None) -> Column:
    """Return a call's column as the rows of these tables have it: with its field, of the widest type."""
    for schema in schemas:
        for same in () if schema is None else schema.value:
            if same.name == column.name:
                wider = is_wider(parse(same.type), parse(column.type))
                column = Column(same.name, same.type if wider else column.type, same.stored)
    return column


def _named(column: Column, name: str) -> Column:
    return Column(name, column.type, msgspec.UNSET if name == column.field else column.field)


class _Changes:
    """The result of a comparison: descriptions of the parts that do not fit, and the paths left out."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.left_out: list[str] = []

    def compare_cases(self, path: str, left_out: Iterable[str], new: Iterable[str]) -> None:
        """Note the new names that differ in case alone from one that is left out."""
        by_lower = {name.lower(): name for name in left_out}
        self.faults += [
            f"column {path}{name}: {path}{by_lower[name.lower()]} here, this call writes it in another case"
            for name in sorted(new)
            if name.lower() in by_lower
        ]


def _columns(known: TableSchema, given: TableSchema, changes: _Changes) -> tuple[Column, ...]:
    new = {column.name: column for column in given.value}
    written_names = set(new)
    columns = []
    for column in known.value:
        written = new.pop(column.name, None)
        if written is None:
            changes.left_out.append(column.name)
        elif written.type != column.type:
            merged = _merged(column.name, parse(column.type), parse(written.type), changes)
            column = msgspec.structs.replace(column, type=text_of(merged))  # noqa: PLW2901
        columns.append(column)
    names = {column.field: column.name for column in known.value}
    for name in new.keys() & names.keys():
        changes.faults.append(f"column {name}: renamed to {names[name]} here, this call writes {name}")
    left_out = {column.name for column in known.value} - written_names
    changes.compare_cases("", left_out, new.keys() - names.keys())
    return (*columns, *(_of_state(known, column) for column in new.values()))


def _of_state(schema: TableSchema, column: Column) -> Column:
    """Return a new column with a field that no row of another state version has."""
    return in_version(column, schema.version) if schema.older else column


def _merged(path: str, known: Type, given: Type, changes: _Changes) -> Type:
    """Return the type that has all values of both; note the parts that have none."""
    match known, given:
        case Array(), Array():
            return Array(_merged(f"{path}.element", known.element, given.element, changes))
        case Map(), Map() if known.key == given.key:
            return Map(known.key, _merged(f"{path}.value", known.value, given.value, changes))
        case Struct(), Struct():
            return _merged_struct(path, known, given, changes)
    if is_wider(known, given):
        return known
    if not is_wider(given, known):
        changes.faults.append(f"column {path}: {text_of(known)} here, this call writes {text_of(given)}")
    return given


def _merged_struct(path: str, known: Struct, given: Struct, changes: _Changes) -> Struct:
    fields = dict(known.fields)
    for name, kind in given.fields.items():
        fields[name] = _merged(f"{path}.{name}", fields[name], kind, changes) if name in fields else kind
    changes.left_out += [f"{path}.{name}" for name in known.fields if name not in given.fields]
    changes.compare_cases(
        f"{path}.", known.fields.keys() - given.fields.keys(), given.fields.keys() - known.fields.keys()
    )
    return Struct(fields)


def is_wider(wide: Type, narrow: Type) -> bool:
    """Return whether every value of ``narrow``, as it is stored, is the same value of ``wide``."""
    if narrow in (wide, "void"):
        return True
    if not isinstance(wide, str) or not isinstance(narrow, str):
        return False
    if wide in INTEGERS:
        return narrow in INTEGERS and DIGITS[narrow] < DIGITS[wide]
    if wide in EXACT:
        return narrow in EXACT[wide]
    if not wide.startswith("decimal("):
        return False
    whole, scale = _digits(wide)
    if narrow in DIGITS:
        return DIGITS[narrow] <= whole
    if not narrow.startswith("decimal("):
        return False
    narrow_whole, narrow_scale = _digits(narrow)
    return narrow_whole <= whole and narrow_scale <= scale


def _digits(kind: str) -> tuple[int, int]:
    """Return the digits of a decimal before and after its point."""
    precision, scale = kind[len("decimal(") : -1].split(",")
    return int(precision) - int(scale), int(scale)


def _shown(columns: tuple[Column, ...]) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in columns)
