"""Reads at a version: snapshots, tables and scans.

A snapshot pins one version with a lease; every read through it answers from that version, or
raises SnapshotExpiredError (I8). ``reader/gate.py`` creates them.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.observe import events
from tidegate.reader import rules
from tidegate.reader.leases import ActiveLease, LeaseKeeper
from tidegate.reader.rules import OptimisticRead, moment
from tidegate.reader.view import TableView, no_schema, view_of
from tidegate.sinks.capabilities import SupportsReadWithPointer
from tidegate.sinks.records import CatalogEntry, Identity
from tidegate.sinks.store import Store
from tidegate.values.decode import Value
from tidegate.wal.record import TableSchema

if TYPE_CHECKING:
    from typing_extensions import Self

Result = TypeVar("Result")


class TableReader(NamedTuple):
    """One table at one version in a store. ``check`` raises when it may no longer read."""

    store: Store
    view: TableView
    check: Callable[[], None]
    ahead: OptimisticRead[SupportsReadWithPointer] | None = None

    def get(self, key: Any) -> Value | None:
        """Read one key's value, None when it is absent."""
        view = self.view
        encoded = view.encode(key)
        self.check()
        if self.ahead is None:
            content = self.store.get(view.name, encoded, view.version, view.start, view.at_us)
        else:
            content, self.ahead.pointer = self.ahead.store.get_with_pointer(
                view.name, encoded, view.version, view.start, view.at_us
            )
        return None if content is None else view.decode(encoded, content)

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Value]:
        """Read values by key, without absent ones."""
        view = self.view
        asked = view.asked(keys)
        if not asked:
            return {}
        values: dict[Any, Value] = {}
        for some in view.parts(asked):
            self.check()
            with one_call(anew=some is not asked):  # each of several parts has its own deadline
                found = self._found(list(some))
            values |= view.found(some, found)
        return values

    def _found(self, keys: list[bytes]) -> Any:
        view, ahead = self.view, self.ahead
        if ahead is None or ahead.pointer is not None:
            return self.store.get_many(view.name, keys, view.version, view.start, view.at_us)
        found, ahead.pointer = ahead.store.get_many_with_pointer(
            view.name, keys, view.version, view.start, view.at_us
        )
        return found

    def pairs(self) -> Iterator[tuple[Any, Value]]:
        """Yield all live rows, decoded, one key group after the other."""
        view = self.view
        for group in range(view.key_groups):
            self.check()
            for batch in self.store.scan(view.name, group, view.version, view.start, view.at_us):
                self.check()
                yield from view.rows(batch)


class Reader:
    """The parts that a gate and its snapshots share: the store, and its unchanging records."""

    def __init__(self, store: Store, identity: Identity, clock: Clock) -> None:
        self.store = store
        self.identity = identity
        self.clock = clock
        self.renewals = LeaseKeeper(store, clock)
        self.closed = False
        self._schemas: dict[str, TableSchema] = {}

    def check_open(self) -> None:
        """Refuse reads after the gate was closed. Raises: ConfigError."""
        if self.closed:
            raise rules.gate_closed(self.store.where)

    def entry(self, version: int) -> CatalogEntry:
        """Read the catalog's entry of a visible version.

        Raises: SnapshotExpiredError: it was retired by now. VersionRegressedError: the store lost it by now.
        """
        for _ in range(rules.LOOKS):
            for entry in self.store.catalog(version, version):
                return entry
            rules.check_there(self.store.where, version, self.store.pointer())
        raise rules.no_entry(self.store.where, version)

    def held(
        self,
        entry: CatalogEntry,
        table: str,
        check: Callable[[], None],
        ahead: OptimisticRead[SupportsReadWithPointer] | None = None,
    ) -> TableReader:
        """Return the reader of a table at the entry's version.

        Raises: ConfigError: the table does not exist; it names those that do. VersionRegressedError: the
        store lost the version by now.
        """
        where = self.store.where
        view = view_of(where, self.identity, entry, table, self._schemas)
        if view is None:
            self._schemas = self.store.schemas()
            view = view_of(where, self.identity, entry, table, self._schemas)
        if view is None:
            rules.check_there(where, entry.version, self.store.pointer())
            raise no_schema(where, entry.version, table, entry.tables[table].schema_id)
        return TableReader(self.store, view, check, ahead)


class Side(NamedTuple):
    """One of two versions that are compared.

    ``entry`` None: version 0, which is empty. ``check`` raises when the version is no longer pinned.
    """

    version: int
    entry: CatalogEntry | None
    check: Callable[[], None]


class Source(Protocol):
    """The source of a table's reads: a gate (the newest version at each read) or a snapshot."""

    def read(self, table: str, fn: Callable[[TableReader], Result]) -> Result:
        """Do one read."""
        ...

    def hold(self, table: str) -> AbstractContextManager[TableReader]:
        """Give the table at one version, within the context."""
        ...


class Scan(Iterator[tuple[Any, Value]]):
    """All rows of a table at one version, as (key, value), in no particular order.

    Rows are fetched on demand. It pins its version until the last row was returned,
    or until ``close``; it is a context manager, too. One thread at a time.
    """

    def __init__(self, hold: Callable[[], AbstractContextManager[TableReader]]) -> None:
        self._hold = hold
        self._exit = contextlib.ExitStack()
        self._held: TableReader | None = None
        self._pairs: Iterator[tuple[Any, Value]] = iter(())
        self._closed = False

    def _start(self) -> TableReader:
        if self._held is None:
            with one_call():
                self._held = self._exit.enter_context(self._hold())
            self._pairs = self._held.pairs()
        return self._held

    def __next__(self) -> tuple[Any, Value]:
        if self._closed:
            raise StopIteration
        self._start()
        try:
            return next(self._pairs)
        except BaseException:
            self.close()
            raise

    def to_arrow(self) -> Any:
        """Return the remaining rows as a ``pyarrow.Table`` of key and value columns."""
        try:
            return self._start().view.values.to_arrow(self)
        finally:
            self.close()

    def close(self) -> None:
        """Release the version; no more rows are returned. Repeatable."""
        self._closed = True
        self._pairs = iter(())
        self._exit.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Table:
    """One table, read at its gate's newest version or at its snapshot's. Thread-safe.

    A key is the key column's value, or a tuple of them for a key of several columns.
    """

    def __init__(self, source: Source, name: str) -> None:
        self.name = name
        self._source = source

    def get(self, key: Any) -> Value | None:
        """Read the key's value, None when it is absent.

        Raises: BadRecordError: the key is not of the table's type. ConfigError: there is no such table.
        SnapshotExpiredError: the snapshot's version is no longer pinned. StoreUnavailableError: no answer
        within the store's ``timeout_s``, for all requests of the call together.
        """
        return self._source.read(self.name, lambda held: held.get(key))

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Value]:
        """Read the values of these keys, all at one version, by key, without absent keys.

        More than 100,000 keys are read in parts, each with a deadline of its own. Raises: as ``get``;
        ConfigError also for one key instead of several.
        """
        wanted = rules.keys_of(keys)
        return self._source.read(self.name, lambda held: held.get_many(wanted))

    def scan(self) -> Scan:
        """Read all rows, at one version: an iterator of (key, value), also with ``.to_arrow()``.

        Each page of rows has a deadline of its own, and so has the lease on the version. Raises: as ``get``,
        when rows are fetched.
        """
        return Scan(lambda: self._source.hold(self.name))

    def schema(self) -> TableSchema:
        """Read the names and Spark types of the key's and the value's columns at the version read."""
        return self._source.read(self.name, lambda held: held.view.values.schema)

    def __repr__(self) -> str:
        return f"<Table {self.name} of {self._source!r}>"


class Snapshot:
    """One version for all reads, pinned by a lease until ``close`` or the end of a ``with``. Thread-safe.

    ``Gate.snapshot`` creates it. The lease is renewed in the background while the snapshot is open. Every
    read answers from ``version`` or raises SnapshotExpiredError: if the lease was not renewed in time (by
    this process's monotonic clock), or was revoked because a writer's ``max_lease_s`` or ``max_layers``
    ended it. After the first such error every read raises it.
    """

    def __init__(self, reader: Reader, entry: CatalogEntry | None, held: ActiveLease) -> None:
        self.version = held.lease.version
        self._reader = reader
        self._entry = entry
        self._lease = held
        self._closed = False

    @property
    def namespace(self) -> str:
        """The snapshot's namespace; for an alias, its target when the snapshot was taken."""
        return self._reader.identity.name

    @property
    def closed(self) -> bool:
        """Whether the snapshot was closed."""
        return self._closed

    @property
    def decided_at(self) -> datetime.datetime | None:
        """The time of the version's decision (UTC); None for version 0."""
        return None if self._entry is None else moment(self._entry.decided_at_us)

    def tables(self) -> list[str]:
        """List the names of the tables at this version."""
        return [] if self._entry is None else sorted(self._entry.tables)

    def table(self, name: str) -> Table:
        """Return a table at this version. Raises: ConfigError: it does not exist; it names those that do."""
        self._held(name)
        return Table(self, name)

    def read(self, table: str, fn: Callable[[TableReader], Result]) -> Result:
        """Do one read at this version, for ``Table``."""
        with events.reading(self._reader.identity.name, table), one_call():
            return fn(self._held(table))

    @contextlib.contextmanager
    def hold(self, table: str) -> Iterator[TableReader]:
        """Give the table at this version, for ``Scan``; it does not close the snapshot."""
        yield self._held(table)

    def side(self) -> Side:
        """Return this version as one of two, for ``Diff``."""
        return Side(self.version, self._entry, self._check)

    def _held(self, table: str) -> TableReader:
        self._check()
        if self._entry is None:
            raise rules.no_version_yet(self._reader.identity.name)
        return self._reader.held(self._entry, table, self._check)

    def _check(self) -> None:
        self._reader.check_open()
        if self._closed:
            raise rules.snapshot_closed(self.version)
        self._lease.check(self._reader.clock)

    def close(self) -> None:
        """Release the lease. Repeatable."""
        if self._closed:
            return
        self._closed = True
        self._reader.renewals.give_back(self._lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is GeneratorExit and not self._closed:
            # The snapshot of a dropped scan: it is collected at any point, even within a call of the store.
            self._closed = True
            self._reader.renewals.leave(self._lease)
        else:
            self.close()

    def __repr__(self) -> str:
        return f"<Snapshot of version {self.version}, {self._reader.store.where}>"
