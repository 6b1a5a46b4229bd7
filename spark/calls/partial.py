"""The JVM's part of calls whose rows leave some columns as they are: one row per key, column by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import or_
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, functions, types

from tidegate.base.text import brief
from tidegate.errors import ConfigError
from tidegate.spark.calls.checks import Names, columns_named, field_of
from tidegate.spark.calls.column_cache import cached
from tidegate.spark.calls.columns import column, has_collation, json_value
from tidegate.wal.value_flags import DELETE, VALUE

_KEY, _ORDER, _VALUE, _BAD, _NEWEST = (
    f"tidegate {name}" for name in ("key", "order", "value", "bad", "newest")
)
_GROUPS = ("tidegate group", "tidegate bad group")
_DELETE, _DELETED_AT, _CHANGE = (f"tidegate {name}" for name in ("delete", "deleted at", "change"))
"""Columns beside a user's own while rows are grouped."""

PLAIN: dict[type[types.DataType], type] = {
    types.StringType: str,
    types.BinaryType: bytes,
    **dict.fromkeys((types.ByteType, types.ShortType, types.IntegerType, types.LongType), int),
}
"""The Python type of a placeholder, by the column's type."""
BITS: dict[type[types.DataType], int] = {
    types.ByteType: 8,
    types.ShortType: 16,
    types.IntegerType: 32,
    types.LongType: 64,
}
"""A placeholder beyond its column's range is none: a cast would give another value."""


class Unchanged(NamedTuple):
    """The arguments that say in which rows columns stay as they are."""

    ignore_nulls: bool | Names = False
    keep_when: Mapping[str, object] | None = None


class Rows(NamedTuple):
    """Rows of a call, with the columns that it takes of them."""

    rows: DataFrame
    key: Column
    value: Column
    order: tuple[Column, ...]


def kept_columns(
    table: str, rows: DataFrame, fields: Sequence[types.StructField], unchanged: Unchanged
) -> dict[str, Column]:
    """Return, for each column that a row may leave as it is, where it does.

    ``fields`` are the columns that may be named. Raises: ConfigError: another one is, or a placeholder is not
    of its column's type.
    """
    allowed = [field.name for field in fields]
    ignored = unchanged.ignore_nulls
    if isinstance(ignored, bool):
        nulls = allowed if ignored else []
    else:
        nulls = columns_named(table, "ignore_nulls", ignored)
    placeholders: object = {} if unchanged.keep_when is None else unchanged.keep_when
    if not isinstance(placeholders, Mapping):
        raise ConfigError(
            f"table {table}: keep_when={brief(placeholders)} must be the placeholder of each column, as in"
            " {'body': '__debezium_unavailable_value'}"
        )
    masks = {name: cached(_is_null, name) for name in _checked(table, rows, allowed, "ignore_nulls", nulls)}
    for name, kind in _checked(table, rows, allowed, "keep_when", list(placeholders)).items():
        if not _fits(kind, placeholders[name]):
            raise ConfigError(
                f"table {table}: keep_when: the placeholder {brief(placeholders[name])} is not of the type of"
                f" column {name}, {kind.simpleString()}: it is a text, bytes, an integer, or a list of these;"
                " make other columns null where they stay, and name them in ignore_nulls"
            )
        holds = cached(_holds, name, kind, _hashable(placeholders[name]))
        masks[name] = cached(or_, masks[name], holds) if name in masks else holds
    return masks


def _checked(
    table: str, rows: DataFrame, allowed: Sequence[str], argument: str, names: Sequence[str]
) -> dict[str, types.DataType]:
    """Return the types of these columns. Raises: ConfigError: one is missing, or may not stay."""
    kinds = {name: field_of(table, rows, name).dataType for name in names}
    for name in names:
        if name not in allowed:
            raise ConfigError(
                f"table {table}: {argument} names {name}, which is a column of the key, of sequence_by or"
                f" op_column: it may name {', '.join(allowed) or 'no column here'}"
            )
    return kinds


def _is_null(name: str) -> Column:
    return column(name).isNull()


def _fits(kind: types.DataType, placeholder: object) -> bool:
    if isinstance(kind, types.ArrayType):
        if has_collation(kind.elementType):
            return False
        return isinstance(placeholder, list | tuple) and all(
            _fits(kind.elementType, one) for one in placeholder
        )
    if type(placeholder) is not PLAIN.get(type(kind)):
        return False
    bits = BITS.get(type(kind))
    return bits is None or (isinstance(placeholder, int) and (placeholder + 2 ** (bits - 1)) >> bits == 0)


def _hashable(placeholder: object) -> object:
    return tuple(map(_hashable, placeholder)) if isinstance(placeholder, list | tuple) else placeholder


def _holds(name: str, kind: types.DataType, placeholder: object) -> Column:
    if isinstance(kind, types.StringType):  # byte by byte, whatever the column's collation
        return column(name).cast("binary").eqNullSafe(functions.lit(placeholder).cast("binary"))
    return column(name).eqNullSafe(_literal(placeholder).cast(kind))


def _literal(placeholder: object) -> Column:
    if isinstance(placeholder, tuple):
        return functions.array(*map(_literal, placeholder))
    return functions.lit(placeholder)


def folded(
    given: Rows,
    fields: Sequence[types.StructField],
    masks: Mapping[str, Column],
    sequence: Sequence[types.StructField],
    stored_names: Mapping[str, str],
) -> Rows:
    """Fold each key's rows: of each column of ``masks`` the newest value that it does not leave as it is.

    The other columns are those of the newest row. A column of ``masks`` becomes null in the value's JSON, or
    the object ``{"v": its value}``. With a ``sequence`` it is always ``{"v", "s", "d"}``: ``s`` is the
    sequence of its change, null if there is none after ``d``, which is that of the key's last delete. The
    delete is a row of its own, so that both are ordered as other changes are. Bad rows stay as they are.
    """
    rows, key, value, order = given
    prepared = rows.select(
        key.alias(_KEY),
        value.alias(_VALUE),
        functions.struct(*order, value).alias(_ORDER),
        *(column(field.name) for field in fields),
    )
    position = cached(_struct, *(field.name for field in sequence)) if sequence else None
    parts = {field.name: f"{_KEY} {place}" for place, field in enumerate(fields) if field.name in masks}
    whole = [field.name for field in fields if field.name not in masks]
    key_and_bad, named = cached(_groups)
    grouped = prepared.groupBy(*key_and_bad).agg(  # spark.sql.retainGroupColumns may leave the groups out
        *named,
        cached(_newest_row, *whole),
        *cached(_newest_delete, position),
        *(cached(_newest_value, name, masks[name], position, part) for name, part in parts.items()),
    )
    of_sequence = types.StructType(list(sequence))
    of_fields, columns = [], []
    for field in fields:
        if field.name in parts:
            kind = types.StructType([types.StructField("v", field.dataType)])
            if sequence:
                kind = kind.add("s", of_sequence).add("d", of_sequence)
            of_fields.append(types.StructField(field.name, kind))
            columns.append(cached(_value_of, parts[field.name], field.name, bool(sequence)))
        else:
            of_fields.append(field)
            columns.append(cached(_field_of_newest, field.name))
    flat = grouped.select(*cached(_flat, bool(sequence)), *columns)
    change = cached(_change, json_value(of_fields, stored=stored_names))
    if not sequence:
        return Rows(flat, functions.col(_KEY), change, (cached(_no_order),))
    changes = flat.select(_KEY, cached(_both, position, change))
    is_there, value, by = cached(_of_change, *(field.name for field in sequence))
    return Rows(changes.where(is_there), functions.col(_KEY), value, by)


# -- columns, which are the same in each batch --------------------------------------------------------


def _has_flag(flag: bytes) -> Column:
    return functions.substring(_VALUE, 1, 1) == functions.lit(flag)


def _struct(*names: str) -> Column:
    return functions.struct(*map(column, names))


def _groups() -> tuple[list[Column], list[Column]]:
    """Return what rows are grouped by: the key, and the value of a bad row; and the same by their names."""
    usable = functions.col(_KEY).isNotNull() & (_has_flag(VALUE) | _has_flag(DELETE))
    groups = [functions.col(_KEY), functions.when(~usable, functions.col(_VALUE)).alias(_BAD)]
    return groups, [each.alias(name) for each, name in zip(groups, _GROUPS, strict=True)]


def _newest_row(*whole: str) -> Column:
    row = functions.struct(functions.lit(1).alias(_KEY), *map(column, whole))
    return functions.max_by(row, functions.when(_has_flag(VALUE), functions.col(_ORDER))).alias(_NEWEST)


def _newest_delete(at: Column | None) -> list[Column]:
    is_delete = _has_flag(DELETE)
    newest = functions.max_by(_VALUE, functions.when(is_delete, functions.col(_ORDER))).alias(_DELETE)
    if at is None:
        return [newest]
    return [newest, functions.max(functions.when(is_delete, at)).alias(_DELETED_AT)]


def _newest_value(name: str, stays: Column, at: Column | None, part: str) -> Column:
    value = functions.struct(column(name).alias("v"), *([] if at is None else [at.alias("s")]))
    is_given = _has_flag(VALUE) & ~stays
    return functions.max_by(value, functions.when(is_given, functions.col(_ORDER))).alias(part)


def _value_of(part: str, name: str, has_sequence: bool) -> Column:  # noqa: FBT001
    value = functions.col(part)
    return (_after_delete(value) if has_sequence else value).alias(name)


def _field_of_newest(name: str) -> Column:
    return functions.col(_NEWEST).getField(name).alias(name)


def _flat(has_sequence: bool) -> list[Column]:  # noqa: FBT001
    groups = [functions.col(group).alias(name) for group, name in zip(_GROUPS, (_KEY, _BAD), strict=True)]
    return [*groups, *map(functions.col, (_NEWEST, _DELETE, *([_DELETED_AT] if has_sequence else [])))]


def _change(text: Column) -> Column:
    return functions.coalesce(functions.col(_BAD), functions.when(functions.col(_NEWEST).isNotNull(), text))


def _no_order() -> Column:
    return functions.lit(0).cast("bigint")


def _both(at: Column, change: Column) -> Column:
    """Return the change and the delete of a key, each with its sequence."""
    delete = functions.when(functions.col(_BAD).isNull(), functions.col(_DELETE))
    both = functions.array(
        functions.struct(at.alias("s"), change.alias("v")),
        functions.struct(functions.col(_DELETED_AT).alias("s"), delete.alias("v")),
    )
    return functions.explode(both).alias(_CHANGE)


def _of_change(*sequence: str) -> tuple[Column, Column, tuple[Column, ...]]:
    each = functions.col(_CHANGE)
    value, by = each.getField("v"), tuple(each.getField("s").getField(name) for name in sequence)
    return value.isNotNull(), value, by


def _after_delete(part: Column) -> Column:
    """Return a column's newest value and its sequence; both are null if a delete of the key is newer."""
    deleted_at = functions.col(_DELETED_AT)
    is_after = deleted_at.isNull() | (part.getField("s") > deleted_at)
    value, sequence = (functions.when(is_after, part.getField(name)).alias(name) for name in "vs")
    return functions.struct(value, sequence, deleted_at.alias("d"))
