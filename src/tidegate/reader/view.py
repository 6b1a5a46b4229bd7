"""A table at one version, as a reader sees it: keys to bytes, stored values to values. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tidegate.errors import (
    BadRecordError,
    ConfigError,
    CorruptError,
)
from tidegate.keys.groups import encode_key
from tidegate.sinks.records import CatalogEntry, Identity
from tidegate.sinks.rules.reads import shown_bytes
from tidegate.values.decode import Value, Values, described, values_of
from tidegate.wal.record import (
    TableSchema,
)

CALL_KEYS = 100_000
"""The most keys that are read within one deadline; more are read in parts, each with its own."""


class TableView(NamedTuple):
    """The encoding of the keys and rows of one table at one version.

    ``at_us`` is the time of the version's decision: a row that has expired by then is absent at this version,
    at every later read.
    """

    where: str
    name: str
    version: int
    start: int
    at_us: int
    key_groups: int
    values: Values

    def encode(self, key: Any) -> bytes:
        """Encode the key. Raises: BadRecordError, with the table and its key's columns."""
        types = self.values.key_types
        single = len(types) == 1
        if not single and not isinstance(key, tuple | list):
            raise BadRecordError(f"table {self.name}: {key!r} is no key here; {self._expected()}")
        try:
            return encode_key((key,) if single else key, types)
        except (BadRecordError, UnicodeEncodeError) as error:
            raise BadRecordError(f"table {self.name}: {error}; {self._expected()}") from None

    def _expected(self) -> str:
        columns = self.values.schema.key
        if len(columns) == 1:
            return f"a key is one value ({described(columns)})"
        return f"a key is a tuple of {len(columns)} values ({described(columns)})"

    def asked(self, keys: Iterable[Any]) -> dict[bytes, Any]:
        """Map the encoded keys to the keys."""
        return {self.encode(key): hashable(key) for key in keys}

    def parts(self, asked: dict[bytes, Any]) -> Iterator[dict[bytes, Any]]:
        """Yield the keys in parts of at most ``CALL_KEYS``, which share one deadline."""
        if len(asked) <= CALL_KEYS:
            yield asked
            return
        pairs = list(asked.items())
        for at in range(0, len(pairs), CALL_KEYS):
            yield dict(pairs[at : at + CALL_KEYS])

    def found(self, asked: Mapping[bytes, Any], contents: Any) -> dict[Any, Value]:
        """Decode the store's answer to values by key, without absent ones."""
        return {
            key: self.decode(encoded, content)
            for (encoded, key), content in zip(asked.items(), contents.to_pylist(), strict=True)
            if content is not None
        }

    def rows(self, batch: Any) -> Iterable[tuple[Any, Value]]:
        """Yield the rows of one record batch, decoded one by one."""
        keys, contents = (batch.column(name).to_pylist() for name in ("key", "value"))
        for key, content in zip(keys, contents, strict=True):
            yield self._key(key), self.decode(key, content)

    def _key(self, key: bytes) -> Any:
        try:
            return self.values.decode_key(key)
        except CorruptError as error:
            raise CorruptError(f"{self.where}, table {self.name}: {error}") from error

    def decode(self, key: bytes, content: bytes) -> Value:
        """Decode a value. Raises: CorruptError, with the table and the key."""
        try:
            return self.values.decode(content)
        except CorruptError as error:
            raise CorruptError(f"{self.where}, table {self.name}, key {shown_bytes(key)}: {error}") from error


FROM_A_COPY = "restore the store from a copy, or start a new namespace"


def view_of(
    where: str, identity: Identity, entry: CatalogEntry, table: str, schemas: Mapping[str, TableSchema]
) -> TableView | None:
    """Build the view of a table at the entry's version; None: its schema is not among these.

    Raises: ConfigError: the table does not exist; it names those that do.
    """
    if table not in entry.tables:
        there = ", ".join(sorted(entry.tables)) or "none"
        raise ConfigError(
            f"there is no table {table!r} at version {entry.version} of namespace {identity.name};"
            f" the tables there are: {there}"
        )
    at = entry.tables[table]
    if at.schema_id not in schemas:
        return None
    if not schemas[at.schema_id].key:
        raise CorruptError(f"{where}, table {table}: schema {at.schema_id} has no key column: {FROM_A_COPY}")
    try:
        values = values_of(schemas[at.schema_id])
    except ConfigError as error:
        raise ConfigError(f"{where}, table {table}, schema {at.schema_id}: {error}") from None
    return TableView(where, table, entry.version, at.start, entry.decided_at_us, identity.key_groups, values)


def no_schema(where: str, version: int, table: str, schema_id: str) -> CorruptError:
    """Build the error for a table whose schema is missing in a store that has the version."""
    return CorruptError(
        f"{where}: schema {schema_id} of table {table} at version {version} is missing: {FROM_A_COPY}"
    )


def hashable(key: Any) -> Any:
    """Convert a key to its form in an answer's dict."""
    if isinstance(key, list | tuple):
        try:
            hash(whole := tuple(key))
        except (TypeError, ValueError):  # a part is a bytearray, or a view of one
            return tuple(map(hashable, key))
        return whole
    return bytes(key) if isinstance(key, bytearray | memoryview) else key
