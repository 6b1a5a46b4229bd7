"""Stored values as Python and Arrow values, by the schema of their table. Pure functions only.

``kinds.py`` has the form of each type. A column that the value does not have is None: the value is older than
the column.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from tidegate.base.extras import pa, require_arrow
from tidegate.errors import BadRecordError, ConfigError, CorruptError
from tidegate.keys.groups import decode_key
from tidegate.values.kinds import SIMPLE, Kind, json_values, kind_of, object_of
from tidegate.wal.record import JSON_RENAMED, JSON_STATES, Column, TableSchema

Value: TypeAlias = dict[str, Any] | Any
"""A dict by column name in a ``json`` table, bytes in a ``bytes`` table."""


CHUNK_ROWS = 10_000
"""The number of rows that are converted to Arrow together."""


class OlderState(dict[str, Any]):
    """A row that was written by an older version of the state: its own columns, and that version."""

    def __init__(self, columns: dict[str, Any], state_version: int) -> None:
        super().__init__(columns)
        self.state_version = state_version


class Values:
    """A decoder of the values (and keys) of one table. Created and cached by ``values_of``.

    ``arrow_schema`` has the key columns, then the value columns that are not among them.
    """

    def __init__(self, schema: TableSchema) -> None:
        if schema.value_format not in ("json", JSON_RENAMED, JSON_STATES, "bytes"):
            raise ConfigError(
                f"value format {schema.value_format!r} is not known to this release; upgrade it"
            )
        if schema.value_format == "bytes" and len(schema.value) != 1:
            raise CorruptError(f"a schema of 'bytes' has {len(schema.value)} value columns, not one")
        self.schema = schema
        self.key_types = schema.key_types
        self._is_bytes = schema.value_format == "bytes"
        self.kinds = kinds = {column.name: self._kind_of_value(column) for column in schema.columns}
        self._fields = fields = {column.name: column.field for column in schema.columns}
        self._decoder = json_values(object_of({fields[n]: kind.reads for n, kind in kinds.items()}))
        self._mends = [(fields[name], kind.mend) for name, kind in kinds.items() if kind.mend is not None]
        self._states = schema.states if schema.older else {}
        self._version_of = {c.field: version for version, columns in self._states.items() for c in columns}
        self._is_renamed = any(name != field for name, field in fields.items())
        keys = {column.name: kind_of(column.type) for column in schema.key}
        self._names_beside_key = [name for name in kinds if name not in keys]
        self._columns = keys | {name: kinds[name] for name in self._names_beside_key}

    @functools.cached_property
    def arrow_schema(self) -> Any:
        return pa.schema([pa.field(name, kind.arrow) for name, kind in self._columns.items()])

    def _kind_of_value(self, column: Column) -> Kind:
        return SIMPLE["binary"] if self._is_bytes else kind_of(column.type)

    def decode(self, content: bytes) -> Value:
        """Decode a value. Raises: CorruptError: the bytes are no value of this schema."""
        if self._is_bytes:
            return content
        try:
            row = self._decoder.decode(checked_text(content))
            for name, mend in self._mends:
                value = row.get(name)
                if value is not None:
                    row[name] = mend(value)
        except (msgspec.MsgspecError, ValueError, ArithmeticError, RecursionError) as error:
            raise CorruptError(
                f"the stored value of {len(content)} bytes does not fit the table's columns"
                f" ({described(self.schema.columns)}): {cause_of(error)}"
            ) from None  # a cause has the value, and is logged with the error
        if self._states:
            return self._of_its_version(row, content)
        if self._is_renamed or len(row) != len(self._fields):
            row = {name: row.get(field) for name, field in self._fields.items()}
        return row

    def _of_its_version(self, row: dict[str, Any], content: bytes) -> dict[str, Any]:
        """Return the columns of the state version that wrote the row, which its fields tell."""
        current = self.schema.version
        version, *others = {self._version_of[field] for field in row} or {current}
        if others:
            raise CorruptError(
                f"the stored value of {len(content)} bytes has fields of the state versions"
                f" {', '.join(map(str, sorted([version, *others])))}"
            )
        own = {column.name: row.get(column.field) for column in self._states[version]}
        return own if version == current else OlderState(own, version)

    def decode_all(self, contents: Any) -> list[dict[str, Any]]:
        """Decode an Arrow binary array of JSON, each value parsed by itself; a null is a row of None.

        If they were parsed together, three unreadable values might give three rows: a part left
        open in one could end in the next. Raises: msgspec.MsgspecError, ValueError,
        ArithmeticError: some value is not of this schema; ``decode`` finds out which.
        """
        decode = self._decoder.decode
        rows = [{} if content is None else decode(checked_text(content)) for content in contents.to_pylist()]
        for name, mend in self._mends:
            for row in rows:
                value = row.get(name)
                if value is not None:
                    row[name] = mend(value)
        return [{name: row.get(field) for name, field in self._fields.items()} for row in rows]

    def decode_key(self, key: bytes) -> Any:
        """Decode a key: one value for one column, a tuple for several."""
        try:
            return decode_key(key, self.key_types)
        except (BadRecordError, ValueError, ArithmeticError) as error:
            raise CorruptError(
                f"the stored key {_start_of(key)} is no key of ({described(self.schema.key)}):"
                f" {cause_of(error)}"
            ) from None

    def to_arrow(self, pairs: Iterable[tuple[Any, Value]]) -> Any:
        """Build one Arrow table of decoded pairs of key and value, in chunks of ``CHUNK_ROWS`` rows.

        Only one chunk's pairs are held as Python values. Raises: CorruptError: a value is out of range.
        """
        require_arrow("to_arrow")
        left, batches = iter(pairs), []
        while chunk := list(itertools.islice(left, CHUNK_ROWS)):
            batches.append(self._record_batch(chunk))
        return pa.Table.from_batches(batches, schema=self.arrow_schema)

    def _record_batch(self, pairs: list[tuple[Any, Value]]) -> Any:
        one_key, names, rows = len(self.schema.key) == 1, self._names_beside_key, []
        for key, value in pairs:
            cells = value if self._is_bytes else by_column(self.schema, value)
            rest = [cells for _ in names] if self._is_bytes else [cells[name] for name in names]
            rows.append((key, *rest) if one_key else (*key, *rest))
        try:
            fields = zip(zip(*rows, strict=True), self.arrow_schema, strict=True)
            arrays = [pa.array(column, field.type) for column, field in fields]
        except (pa.ArrowException, OverflowError) as error:
            raise CorruptError(
                f"stored values do not fit the table's columns ({described(self.schema.columns)}):"
                f" {type(error).__name__}"
            ) from None  # Arrow's text has the value
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)


@functools.lru_cache(maxsize=256)
def values_of(schema: TableSchema) -> Values:
    """Return the decoder of a schema. Raises: ConfigError that lists the known types, a column has
    another.
    """
    return Values(schema)


def by_column(schema: TableSchema, value: dict[str, Any]) -> dict[str, Any]:
    """Return a decoded ``json`` value by the names of ``schema.columns``; other versions' are None."""
    if not schema.older:
        return value
    if not isinstance(value, OlderState):
        return dict.fromkeys(column.name for column in schema.columns) | value
    own = {f"{name}@{value.state_version}": cell for name, cell in value.items()}
    return dict.fromkeys(column.name for column in schema.columns) | own


def described(columns: Sequence[Column]) -> str:
    """Format columns for messages.

    >>> described([Column("origin", "string"), Column("flight", "int")])
    'origin string, flight int'
    """
    return ", ".join(f"{column.name} {column.type}" for column in columns)


SHOWN_MAX = 200


def cause_of(error: Exception) -> str:
    """Return why a stored text could not be decoded, without the text: errors go into logs.

    >>> cause_of(msgspec.ValidationError("Invalid enum value 'a secret' - at `$.v`"))
    'ValidationError: Invalid enum value - at `$.v`'
    >>> cause_of(ValueError("could not convert string to float: 'a secret'"))
    'ValueError: could not convert string to float'
    """
    message, separator, place = str(error).rpartition(" - at `")
    if not separator:
        message, place = place, ""
    quoted = re.search(r"['\"]|:\s|\[<class", message)
    shown = message[: quoted.start()].rstrip() if quoted else message
    where = f"{separator}{place}" if separator and len(place) <= SHOWN_MAX else ""
    return f"{type(error).__name__}: {shown[:SHOWN_MAX]}{where}"


def _start_of(content: bytes) -> str:
    return repr(content[:60]) + (f"... ({len(content)} bytes)" if len(content) > 60 else "")


def checked_text(content: bytes) -> bytes:
    """Return the bytes if they are UTF-8, also in fields that are ignored. Raises: UnicodeDecodeError."""
    if not content.isascii():
        content.decode()
    return content
