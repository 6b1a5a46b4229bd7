"""Checks of stored rows from outside: keys and values that any reader and any store can handle.

One place for all ways into a namespace that take rows in their stored form. The rows of a batch are
checked together; only after a failure are they checked row by row. Pure functions only.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import ConfigError, CorruptError
from tidegate.keys.columns import CASTS, TIME_TYPES, key_columns
from tidegate.keys.groups import decimal_parts
from tidegate.sinks.rules.layout import unpack
from tidegate.values.decode import Values, cause_of, described, values_of
from tidegate.values.kinds import json_values, object_of
from tidegate.wal.record import JSON_RENAMED, JSON_STATES, TableSchema
from tidegate.wal.value_flags import EXPIRING, EXPIRY_END, HIDDEN, VALUE, VALUE_END

TIMES = {
    "date": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
    "timestamp": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?Z$",
    "timestamp_ntz": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?$",
}
"""The form of dates and times in JSON. Of other forms each reader accepts different ones."""


FAULTS = (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError, pa.ArrowException)


class Unfit(Exception):  # noqa: N818 - becomes an error that names the row
    """A row that does not fit its schema; the text is the cause."""


def check_schema(schema: TableSchema) -> None:
    """Raise ConfigError, with the reason, if no known release writes a table with this schema."""
    if not schema.key:
        raise ConfigError("it has no key column")
    for columns in (schema.key, schema.columns):
        names = [column.name for column in columns]
        fields = [column.field for column in columns]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"column {twice[0]!r} is there twice")
        if len(set(fields)) != len(fields):
            raise ConfigError(f"two columns are stored as one of the fields {', '.join(fields)}")
    for column in schema.key:
        if not _is_key_type(column.type):
            raise ConfigError(f"key column {column.name!r} is {column.type[:60]!r}, which no key is")
    older = [one.version for one in schema.older or ()]
    if bool(older) != (schema.value_format == JSON_STATES) or [*schema.states] != [*older, schema.version]:
        raise ConfigError(f"its format is {schema.value_format!r}, with the older state versions {older}")
    empty = bool(older) and not all(schema.states.values())  # without states, keys alone are a set's rows
    if older != sorted(older) or older[-1:] > [schema.version] or empty:
        raise ConfigError(f"its state versions are {list(schema.states)}, with columns in ascending order")
    renamed = [column for column in (*schema.key, *schema.value) if column.stored]
    is_renamed = schema.value_format == JSON_RENAMED
    if (bool(renamed) != is_renamed and not older) or any(c.stored for c in schema.key):
        raise ConfigError(f"its format is {schema.value_format!r}, with {len(renamed)} renamed columns")
    if schema.value_format == "bytes" and len(schema.value) != 1:
        raise ConfigError(f"its values are bytes, of {len(schema.value)} columns")
    values_of(schema)


def _is_key_type(kind: str) -> bool:
    if kind in CASTS or kind in TIME_TYPES or kind in ("string", "binary"):
        return True
    try:
        precision, scale = decimal_parts(kind)
    except ValueError:
        return False
    return kind == f"decimal({precision},{scale})" and 1 <= precision <= 38 and 0 <= scale <= precision


class RowChecks:
    """Checks of the rows of one table. Created and cached by ``row_checks``."""

    def __init__(self, schema: TableSchema) -> None:
        self._key = schema.key
        self._contents: Callable[[Any], None] = lambda _: None
        if schema.value_format != "bytes":
            self._contents = _JsonChecks(schema, values_of(schema)).check
        self._one_by_one = values_of(schema).decode if schema.older else None

    def first_unfit(self, keys: Any, values: Any, *, expires: bool) -> tuple[int, str] | None:
        """Return the first row that does not fit the schema, and the reason; None: all fit.

        ``values`` have their flags byte. ``expires``: they may have an expiry.
        """
        try:
            self._check(keys, values, expires=expires)
        except Unfit:
            pass
        else:
            return None
        for row in range(len(keys)):
            try:
                self._check(keys.slice(row, 1), values.slice(row, 1), expires=expires)
            except Unfit as unfit:
                return row, str(unfit)
        raise AssertionError("each row fits by itself, and all together do not")

    def _check(self, keys: Any, values: Any, *, expires: bool) -> None:
        """Raise Unfit if some row does not fit the schema."""
        if keys.null_count or values.null_count:
            raise Unfit("its key or its value is null")
        try:
            key_columns(keys, self._key)
        except (ValueError, ArithmeticError) as error:
            raise Unfit(f"it is no key of ({described(self._key)}): {error}") from None
        contents = _contents(values, expires=expires)
        self._contents(contents)
        if self._one_by_one is not None:
            try:
                for content in contents.to_pylist():
                    self._one_by_one(content)  # a row has the fields of one state version
            except CorruptError as error:
                raise Unfit(str(error)) from None


@functools.lru_cache(maxsize=256)
def row_checks(schema: TableSchema) -> RowChecks:
    """Return the checks of a schema that ``check_schema`` accepted."""
    return RowChecks(schema)


def _contents(values: Any, *, expires: bool) -> Any:
    """Strip flags, expiry and sequence. Raises: Unfit, one is no live value as stores have them."""
    flags = pc.binary_slice(values, 0, 1)
    if pc.all(pc.equal(flags, VALUE), min_count=0).as_py():
        return pc.binary_slice(values, 1, VALUE_END)
    whole = pc.greater_equal(pc.binary_length(values), EXPIRY_END)
    if expires and pc.all(pc.and_(pc.equal(flags, EXPIRING), whole), min_count=0).as_py():
        return pc.binary_slice(values, EXPIRY_END, VALUE_END)
    faults = []
    for value in values.to_pylist():
        try:
            stored = unpack(value)
        except CorruptError as error:
            raise Unfit(str(error)) from None
        if stored.value is None:
            raise Unfit("it is a delete marker")
        if stored.expiry_us is not None and not expires:
            raise Unfit("it expires, and the table is not one whose rows do")
        faults.append(stored.value)
    return pa.array(faults, pa.binary())


class _JsonChecks:
    """Checks of JSON values: a value that passes can be read by ``Values`` and by Arrow.

    Dates and times are read as text, and checked in columns; types whose parsed values may still be
    invalid are converted to Arrow. A field that no column has would be one of a later column: readers skip it
    until then.
    """

    def __init__(self, schema: TableSchema, values: Values) -> None:
        columns = schema.columns
        kinds = {column.field: values.kinds[column.name] for column in columns}
        fields = {name: _nested(kind.arrow) for name, kind in kinds.items()}
        self._only = _fields_of({**fields, HIDDEN: None} if schema.derived else fields)
        self._columns = columns
        times = {column.field: TIMES[column.type] for column in columns if column.type in TIMES}
        row = _row_of({name: str if name in times else kind.reads for name, kind in kinds.items()})
        self._decode = json_values(row.type).decode
        self._times = [(name, row.cell(name), kinds[name].arrow, pattern) for name, pattern in times.items()]
        self._open = [
            (row.cell(name), kind)
            for name, kind in kinds.items()
            if _is_open(kind.arrow) and name not in times
        ]

    def check(self, contents: Any) -> None:
        """Raise Unfit if some value is no JSON object of these columns, each of its type."""
        try:
            texts = contents.cast(pa.string())
            rows = self._rows(contents.to_pylist())
            for text in texts.to_pylist():
                self._only(_parsed(text))
            for name, cell, kind, pattern in self._times:
                texts = pa.array(list(map(cell, rows)), pa.string())
                later = pc.greater_equal(texts, "0001")  # Arrow has a year 0
                fits = pc.and_(later, pc.match_substring_regex(texts, pattern))
                if not pc.all(fits, min_count=0).as_py():
                    raise Unfit(f"column {name} has no date or time of the years 1 to 9999 as it is written")
                texts.cast(kind)
            for cell, kind in self._open:
                cells = list(map(cell, rows))
                if (mend := kind.mend) is not None:
                    cells = [None if one is None else mend(one) for one in cells]
                pa.array(cells, kind.arrow)
        except FAULTS as error:
            columns = described(self._columns)
            raise Unfit(f"it does not fit the table's columns ({columns}): {cause_of(error)}") from None

    def _rows(self, contents: list[bytes]) -> list[Any]:
        """Parse the values; return an empty list where no column needs another check."""
        decode = self._decode
        if self._times or self._open:
            return [decode(content) for content in contents]
        for content in contents:
            decode(content)
        return []


Fields = Callable[[Any], None]
"""Raises Unfit if objects within a parsed value have other fields than their type."""


def _fields_of(fields: Mapping[str, Fields | None]) -> Fields:
    nested = {name: check for name, check in fields.items() if check is not None}

    def check(value: dict[str, Any]) -> None:
        if isinstance(value, _Twice) or not value.keys() <= fields.keys():
            raise Unfit("it has a field twice, or one that is no column's")
        for name, check_one in nested.items():
            if value.get(name) is not None:
                check_one(value[name])

    return check


def _nested(kind: Any) -> Fields | None:
    """Return the check of a type's values; None: they have no structs."""
    if pa.types.is_struct(kind):
        return _fields_of({field.name: _nested(field.type) for field in kind})
    is_map = pa.types.is_map(kind)
    if not is_map and not pa.types.is_list(kind):
        return None
    check = _nested(kind.item_type if is_map else kind.value_type)

    def check_all(value: Any) -> None:
        for one in value.values() if is_map else value:
            if one is not None and check is not None:
                check(one)

    return check and check_all


class _Twice(dict[str, Any]):
    """An object with a field that is there twice; a map from a file of Spark's may be one."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    return members if len(members) == len(pairs) else _Twice(members)


_parsed = json.JSONDecoder(object_pairs_hook=_object).decode


class _Row(NamedTuple):
    """The type into which a value is parsed, and a getter of its columns."""

    type: Any
    cell: Callable[[str], Callable[[Any], Any]]


def _row_of(reads: dict[str, Any]) -> _Row:
    """Return a class for msgspec, in half the time of a dict, where msgspec supports such field names."""
    if not all(name.isascii() and name.isprintable() and not {'"', "\\"} & {*name} for name in reads):
        return _Row(object_of(reads), lambda name: operator.methodcaller("get", name))
    fields = {name: f"f{index}" for index, name in enumerate(reads)}
    names = {field: name for name, field in fields.items()}
    row_type = msgspec.defstruct(
        "Row", [(fields[name], reader | None, None) for name, reader in reads.items()], rename=names, gc=False
    )
    return _Row(row_type, lambda name: operator.attrgetter(fields[name]))


def _is_open(kind: Any) -> bool:
    """Return whether parsed values may still be invalid: decimals, times, floats, base64, and types that
    contain them or maps.
    """
    if pa.types.is_map(kind):
        return not pa.types.is_string(kind.key_type) or _is_open(kind.item_type)
    if pa.types.is_list(kind):
        return _is_open(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_is_open(field.type) for field in kind)
    checks = (pa.types.is_decimal, pa.types.is_temporal, pa.types.is_float32, pa.types.is_binary)
    return any(is_one(kind) for is_one in checks)
