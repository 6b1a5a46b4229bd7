"""A table as a reader sees it: ``Table`` and ``Scan`` of users, their reads, keys and values.

A read's control flow is written once, as a generator, for threads and for an event loop: see ``Steps``.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from tidegate.base.deadline import one_call
from tidegate.base.names import listed
from tidegate.base.steps import Result, Steps, run
from tidegate.base.text import brief
from tidegate.errors import BadRecordError, ConfigError, CorruptError, SnapshotExpiredError
from tidegate.keys.groups import encode_key
from tidegate.reader.rules import TRIES, check_key_group, check_table, expired, keys_of
from tidegate.sinks.records import CatalogEntry, Identity, Pointer, ReadAt
from tidegate.sinks.rules.reads import shown_bytes, windows
from tidegate.sinks.rules.visible import FROM_A_COPY
from tidegate.values.decode import Value, Values, described, values_of
from tidegate.wal.record import TableSchema

if TYPE_CHECKING:
    from typing_extensions import Self

KeysByTable = Mapping[str, Iterable[Any]]
"""The keys to read, by table."""
ValuesByTable = dict[str, dict[Any, Value]]
"""The values that exist, by table and key."""

CALL_KEYS = 100_000
"""The most keys that are read within one deadline; more are read in parts, each with its own."""
OF_TABLES = frozenset({"get", "get_many", "scan", "schema", "to_arrow"})
"""The methods of a table that are sought at a gate or a snapshot."""


class OfProcess:
    """A handle of this process: it has connections and a thread, which no pickle or copy has."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ConfigError(
            f"a {type(self).__name__} belongs to the process that connected it, and is not pickled or copied:"
            " connect in each worker process, by tidegate.connect(URL, NAMESPACE), and pass it the keys"
        )


class TableHints(OfProcess):
    """A class whose tables are found by ``table``. Type checkers see no hints: they have their own."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            own = type(self).__name__
            hint = f": reads are of a table, {own.lower()}.table(NAME).{name}" if name in OF_TABLES else ""
            raise AttributeError(f"a {own} has no attribute {brief(name)}{hint}", name=name, obj=self)

        def __getitem__(self, name: Any) -> NoReturn:
            own = type(self).__name__
            raise TypeError(f"a {own} has no items: its tables are {own.lower()}.table({brief(name)})")


# -- the table of users, in threads -----------------------------------------------------------------


class Source(Protocol):
    """The source of a table's reads: a gate (the newest version at each read) or a snapshot."""

    def read(self, table: str, fn: Callable[..., Steps[Result]], *args: Any) -> Steps[Result]:
        """Do one read: ``fn`` with the table's reader and ``args``."""
        ...

    def pin(self, table: str) -> AbstractContextManager[TableReader]:
        """Give the table's reader at one version, which is pinned within the context."""
        ...


class Table(OfProcess):
    """One table, read at its gate's newest version or at its snapshot's. Thread-safe.

    A key is the key column's value, or a tuple of them for a key of several columns.
    """

    def __init__(self, source: Source, name: str) -> None:
        check_table(name)
        self.name = name
        self._source = source

    def get(self, key: Any) -> Value | None:
        """Read the key's value, None when it is absent.

        Raises: BadRecordError: the key is not of the table's type. ConfigError: there is no such table.
        SnapshotExpiredError: the snapshot's version is no longer pinned. StoreUnavailableError: no answer
        within the store's ``timeout_s``, for all requests of the call together.
        """
        return run(self._source.read(self.name, TableReader.get, key))

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Value]:
        """Read the values of these keys, all at one version, by key, without absent keys.

        More than 100,000 keys are read in parts, each with a deadline of its own. Raises: as ``get``;
        ConfigError also for one key instead of several, and for two keys that no dict can tell apart.
        """
        return run(self._source.read(self.name, TableReader.get_many, keys_of(keys)))

    def scan(self, key_group: int | None = None) -> Scan:
        """Read all rows, at one version: an iterator of (key, value), also with ``.to_arrow()``.

        ``key_group``: only its rows. The key groups of a snapshot are a partition of its rows: several
        processes can divide a scan among them. Each page of rows has a deadline of its own, and so has the
        lease on the version. A gate's version that is retired before its first row was read is left for a
        newer one. Raises, when rows are fetched: as ``get``; ConfigError also for a key group that the
        namespace does not have.
        """
        return Scan(self._source, self.name, key_group)

    def schema(self) -> TableSchema:
        """Read the names and Spark types of the key's and the value's columns at the version read."""
        return run(self._source.read(self.name, TableReader.schema))

    def __repr__(self) -> str:
        return f"<Table {self.name} of {self._source!r}>"


class Scan(OfProcess, Iterator[tuple[Any, Value]]):
    """All rows of a table or of one key group, at one version, as (key, value), in no particular order.

    Rows are fetched on demand. It pins its version until the last row was returned,
    or until ``close``; it is a context manager, too. One thread at a time.
    """

    def __init__(self, source: Source, table: str, key_group: int | None = None) -> None:
        self._source, self._table, self._key_group = source, table, key_group
        self._exit = contextlib.ExitStack()
        self._reader: TableReader | None = None
        self._rows: Iterator[tuple[Any, Value]] = iter(())
        self._closed = False

    def _start(self) -> TableReader:
        if self._reader is not None:
            return self._reader
        for _ in range(TRIES - 1):  # the version may be retired before its first row is read (T28)
            with contextlib.suppress(SnapshotExpiredError):
                return self._begin()
        return self._begin()

    def _begin(self) -> TableReader:
        """Pin a version, and read up to its first row."""
        with contextlib.ExitStack() as opened:
            with one_call():
                reader = opened.enter_context(self._source.pin(self._table))
            rows = reader.rows(self._key_group)
            self._rows = itertools.chain(list(itertools.islice(rows, 1)), rows)
            self._reader, self._exit = reader, opened.pop_all()
        return reader

    def __next__(self) -> tuple[Any, Value]:
        if self._closed:
            raise StopIteration
        self._start()
        try:
            return next(self._rows)
        except BaseException:
            self.close()
            raise

    def to_arrow(self) -> Any:
        """Return the remaining rows as a ``pyarrow.Table`` of key and value columns, in chunks of rows."""
        try:
            return self._start().view.values.to_arrow(self)
        finally:
            self.close()

    def close(self) -> None:
        """Release the version; no more rows are returned. Repeatable."""
        self._closed = True
        self._rows = iter(())
        self._exit.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- a table at one version -----------------------------------------------------------------------


class TableReader:
    """One table at one version in a store, of threads or of an event loop.

    ``check`` raises when it may no longer read. ``optimistic``: its first read of rows reads the store's
    ``pointer``, too, in the same round trip.
    """

    __slots__ = ("check", "optimistic", "pointer", "store", "view")

    def __init__(
        self, store: Any, view: TableView, check: Callable[[], None], *, optimistic: bool = False
    ) -> None:
        self.store, self.view, self.check, self.optimistic = store, view, check, optimistic
        self.pointer: Pointer | None = None

    def get(self, key: Any) -> Steps[Value | None]:
        """Read one key's value, None when it is absent."""
        view = self.view
        encoded = view.encode(key)
        self.check()
        if self.optimistic:
            content, self.pointer = yield self.store.get_with_pointer(view.at, encoded)
        else:
            content = yield self.store.get(view.at, encoded)
        return None if content is None else view.decode(encoded, content)

    def get_many(self, keys: Iterable[Any]) -> Steps[dict[Any, Value]]:
        """Read values by key, without absent ones."""
        view = self.view
        by_bytes = view.encode_all(keys)
        if not by_bytes:
            return {}
        values: dict[Any, Value] = {}
        for part in view.parts(by_bytes):
            self.check()
            with one_call(fresh=part is not by_bytes):  # each of several parts has its own deadline
                contents = yield from self._contents(list(part))
            values |= view.decode_all(part, contents)
        return values

    def _contents(self, keys: list[bytes]) -> Steps[Any]:
        view = self.view
        if not self.optimistic or self.pointer is not None:
            return (yield self.store.get_many(view.at, keys))
        contents, self.pointer = yield self.store.get_many_with_pointer([(view.at, keys)])
        return None if contents is None else contents[0]

    def schema(self) -> Steps[TableSchema]:
        """Return the table's schema; no row is read."""
        yield from ()
        return self.view.values.schema

    def rows(self, key_group: int | None = None) -> Iterator[tuple[Any, Value]]:
        """Yield all live rows or those of one key group, decoded. In threads. Raises: ConfigError."""
        view = self.view
        for groups in windows(view.groups_to_scan(key_group)):
            self.check()
            for _, batch in self.store.scan_groups(view.at, groups):
                self.check()
                yield from view.rows(batch)


def keys_by_table(keys: KeysByTable) -> dict[str, list[Any]]:
    """List the keys of each table. Raises: ConfigError: they are not by table; or one key, not several."""
    if not isinstance(keys, Mapping):
        raise ConfigError(
            "get_many of a gate takes keys by table, as in get_many({'users': ['ada']}); of one"
            " table: table(NAME).get_many(KEYS)"
        )
    for table in keys:
        check_table(table)
    return {table: keys_of(some) for table, some in keys.items()}


class TablesReader:
    """Several tables at one version in a store, of threads or of an event loop; see ``TableReader``.

    ``with_pointer``: the store reads keys of several tables in one round trip, together with its pointer.
    """

    def __init__(
        self,
        store: Any,
        views: Sequence[TableView],
        check: Callable[[], None],
        *,
        with_pointer: bool,
        optimistic: bool,
    ) -> None:
        self._store, self._views, self._check = store, views, check
        self._with_pointer, self._optimistic = with_pointer, optimistic
        self.pointer: Pointer | None = None

    def get_many(self, keys: Mapping[str, list[Any]]) -> Steps[ValuesByTable]:
        """Read values by table and key, without absent ones."""
        requests = [(view, view.encode_all(keys[view.name])) for view in self._views]
        values: ValuesByTable = {view.name: {} for view in self._views}
        calls = [requests]
        if sum(len(some) for _, some in requests) > CALL_KEYS:
            calls = [[(view, part)] for view, some in requests for part in view.parts(some)]
        for call in calls:
            batch = [(view, some) for view, some in call if some]
            if not batch:
                continue
            self._check()
            with one_call(fresh=len(calls) > 1):
                contents = yield from self._contents(batch)
            for (view, some), content in zip(batch, contents, strict=True):
                values[view.name] |= view.decode_all(some, content)
        return values

    def _contents(self, requests: list[tuple[TableView, dict[bytes, Any]]]) -> Steps[list[Any]]:
        if not self._with_pointer:
            contents = []
            for view, some in requests:
                contents.append((yield self._store.get_many(view.at, list(some))))
            return contents
        reads = [(view.at, list(some)) for view, some in requests]
        answer, pointer = yield self._store.get_many_with_pointer(reads)
        if self._optimistic and self.pointer is None:
            self.pointer = pointer
        elif answer is None:
            first = requests[0][0]
            raise expired(first.where, first.at.version, pointer.horizon)
        return [None] * len(requests) if answer is None else list(answer)


class TableView(NamedTuple):
    """The encoding of the keys and rows of one table at one version.

    A row that has expired by the version's decision is absent at this version, at every later read.
    """

    where: str
    at: ReadAt
    key_groups: int
    values: Values

    @property
    def name(self) -> str:
        """The table's name."""
        return self.at.table

    @property
    def groups(self) -> range:
        """The key groups that may have rows of the table."""
        return range(0, self.key_groups, self.at.stride)

    def groups_to_scan(self, key_group: int | None) -> range:
        """Return ``groups``, or those of them that are this key group: one or none.

        Raises: ConfigError: the namespace does not have the key group.
        """
        check_key_group(key_group, self.key_groups, self.where)
        if key_group is None:
            return self.groups
        return range(key_group, key_group + (key_group in self.groups))

    def encode(self, key: Any) -> bytes:
        """Encode the key. Raises: BadRecordError, with the table and its key's columns."""
        types = self.values.key_types
        single = len(types) == 1
        if not single and not isinstance(key, tuple | list):
            raise BadRecordError(f"table {self.name}: {brief(key)} is no key here; {self._expected()}")
        try:
            return encode_key((key,) if single else key, types)
        except (BadRecordError, UnicodeEncodeError) as error:
            raise BadRecordError(f"table {self.name}: {error}; {self._expected()}") from None

    def _expected(self) -> str:
        columns = self.values.schema.key
        if len(columns) == 1:
            return f"a key is one value ({described(columns)})"
        return f"a key is a tuple of {len(columns)} values ({described(columns)})"

    def encode_all(self, keys: Iterable[Any]) -> dict[bytes, Any]:
        """Map the encoded keys to the keys, by which the answer has the values.

        Raises: ConfigError: two keys are equal and have different bytes, or the same bytes and are not equal.
        """
        by_bytes: dict[bytes, Any] = {}
        by_key: dict[Any, bytes] = {}
        for key in map(hashable, keys):
            encoded = self.encode(key)
            if by_key.setdefault(key, encoded) != encoded or by_bytes.setdefault(encoded, key) != key:
                other = next(one for one, of_it in by_key.items() if one == key or of_it == encoded)
                raise ConfigError(
                    f"table {self.name}: an answer by key cannot hold {brief(other)} and {brief(key)}: in"
                    " Python two"
                    " times of one zone are equal whatever their fold is, and a time of a repeated hour"
                    " equals none of another zone; give the times in UTC: key.astimezone(timezone.utc)"
                )
        return by_bytes

    def parts(self, keys: dict[bytes, Any]) -> Iterator[dict[bytes, Any]]:
        """Yield the keys in parts of at most ``CALL_KEYS``, which share one deadline."""
        if len(keys) <= CALL_KEYS:
            yield keys
            return
        pairs = list(keys.items())
        for start in range(0, len(pairs), CALL_KEYS):
            yield dict(pairs[start : start + CALL_KEYS])

    def decode_all(self, keys: Mapping[bytes, Any], contents: Any) -> dict[Any, Value]:
        """Decode the store's answer to values by key, without absent ones; None: there was no answer."""
        if contents is None:
            return {}
        return {
            key: self.decode(encoded, content)
            for (encoded, key), content in zip(keys.items(), contents.to_pylist(), strict=True)
            if content is not None
        }

    def rows(self, batch: Any) -> Iterable[tuple[Any, Value]]:
        """Yield the rows of one record batch, decoded one by one."""
        keys, contents = (batch.column(name).to_pylist() for name in ("key", "value"))
        for key, content in zip(keys, contents, strict=True):
            yield self.decode_key(key), self.decode(key, content)

    def decode_key(self, key: bytes) -> Any:
        """Decode a key. Raises: CorruptError, with the table."""
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


def view_of(
    where: str, identity: Identity, entry: CatalogEntry, table: str, schemas: Mapping[str, TableSchema]
) -> TableView | None:
    """Build the view of a table at the entry's version; None: its schema is not among these.

    Raises: ConfigError: the table does not exist; it names those that do.
    """
    given: object = table  # a caller's, of any type
    if not isinstance(given, str) or given not in entry.tables:
        existing = ", ".join(listed(entry.tables)) or "none"
        raise ConfigError(
            f"there is no table {brief(table)} at version {entry.version} of namespace {identity.name};"
            f" the tables there are: {existing}"
        )
    schema_id = entry.tables[table].schema_id
    schema = schemas.get(schema_id)
    if schema is None:
        return None
    if not schema.key:
        raise CorruptError(f"{where}, table {table}: schema {schema_id} has no key column: {FROM_A_COPY}")
    try:
        values = values_of(schema)
    except ConfigError as error:
        raise ConfigError(f"{where}, table {table}, schema {schema_id}: {error}") from None
    return TableView(where, entry.read_at(table), identity.key_groups, values)


def hashable(key: Any) -> Any:
    """Convert a key to its form in an answer's dict."""
    if isinstance(key, list | tuple):
        try:
            hash(whole := tuple(key))
        except (TypeError, ValueError):  # a part is a bytearray, or a view of one
            return tuple(map(hashable, key))
        return whole
    return bytes(key) if isinstance(key, bytearray | memoryview) else key
