"""Reading at a version with ``await``: snapshots, tables and scans. ``gate.py`` makes them."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from tidegate.aio.leases import AsyncRenewals
from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.errors import ConfigError
from tidegate.observe import events
from tidegate.reader import rules
from tidegate.reader.leases import ActiveLease
from tidegate.reader.rules import OptimisticRead, moment
from tidegate.reader.view import TableView, hashable, no_schema, view_of
from tidegate.sinks.async_store import AsyncStore, AsyncSupportsReadWithPointer
from tidegate.sinks.records import CatalogEntry, Identity
from tidegate.values.decode import Value
from tidegate.wal.record import TableSchema

if TYPE_CHECKING:
    from typing_extensions import Self

Result = TypeVar("Result")


class TableReader(NamedTuple):
    """One table at one version, and where it is read. ``check`` raises when it may not read on."""

    store: AsyncStore
    view: TableView
    check: Callable[[], None]
    ahead: OptimisticRead[AsyncSupportsReadWithPointer] | None = None

    async def get_many(self, keys: Iterable[Any]) -> dict[Any, Value]:
        """Values by key; absent ones are left out."""
        view = self.view
        asked = view.asked(keys)
        if not asked:
            return {}
        values: dict[Any, Value] = {}
        for some in view.parts(asked):
            self.check()
            with one_call(anew=some is not asked):  # one of several parts has its own deadline
                found = await self._found(list(some))
            values |= view.found(some, found)
        return values

    async def _found(self, keys: list[bytes]) -> Any:
        view, ahead = self.view, self.ahead
        if ahead is None or ahead.pointer is not None:
            return await self.store.get_many(view.name, keys, view.version, view.start, view.at_us)
        found, ahead.pointer = await ahead.store.get_many_with_pointer(
            view.name, keys, view.version, view.start, view.at_us
        )
        return found

    async def pairs(self) -> AsyncGenerator[tuple[Any, Value], None]:
        """All live rows, decoded, one key group after the other."""
        view = self.view
        for group in range(view.key_groups):
            self.check()
            scan = self.store.scan(view.name, group, view.version, view.start, view.at_us)
            async with contextlib.aclosing(scan) as batches:
                async for batch in batches:
                    await asyncio.sleep(0)  # others have their turn, the renewal of leases among them
                    self.check()
                    for row in view.rows(batch):
                        yield row


class Reader:
    """What a gate and its snapshots share: the store, and what never changes in it."""

    def __init__(self, store: AsyncStore, identity: Identity, clock: Clock) -> None:
        self.store = store
        self.identity = identity
        self.clock = clock
        self.renewals = AsyncRenewals(store, clock)
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._schemas: dict[str, TableSchema] = {}

    def check_open(self) -> None:
        """ConfigError when the gate was closed, or belongs to another event loop."""
        if self.closed:
            raise rules.gate_closed(self.store.where)
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigError(
                f"this gate to {self.store.where} was connected in another event loop: connect in this one"
            )

    async def entry(self, version: int) -> CatalogEntry:
        """The catalog's entry of a visible version. SnapshotExpiredError: it was retired by now.
        VersionRegressedError: the store lost it by now.
        """
        for _ in range(rules.LOOKS):
            for entry in await self.store.catalog(version, version):
                return entry
            rules.check_there(self.store.where, version, await self.store.pointer())
        raise rules.no_entry(self.store.where, version)

    async def held(
        self,
        entry: CatalogEntry,
        table: str,
        check: Callable[[], None],
        ahead: OptimisticRead[AsyncSupportsReadWithPointer] | None = None,
    ) -> TableReader:
        """A table at the entry's version. ConfigError: it is not there, and which tables are.
        VersionRegressedError: the store lost the version by now.
        """
        where = self.store.where
        view = view_of(where, self.identity, entry, table, self._schemas)
        if view is None:
            self._schemas = await self.store.schemas()
            view = view_of(where, self.identity, entry, table, self._schemas)
        if view is None:
            rules.check_there(where, entry.version, await self.store.pointer())
            raise no_schema(where, entry.version, table, entry.tables[table].schema_id)
        return TableReader(self.store, view, check, ahead)


class Source(Protocol):
    """Where a table reads from: a gate (the newest version at each read) or a snapshot."""

    async def read(self, table: str, fn: Callable[[TableReader], Awaitable[Result]]) -> Result:
        """The answer of one read."""
        ...

    def hold(self, table: str) -> AbstractAsyncContextManager[TableReader]:
        """The table at one version, for as long as the context is open."""
        ...


class Scan(AsyncIterator[tuple[Any, Value]]):
    """All rows of a table at one version, as (key, value), in no particular order.

    Rows are fetched as they are asked for. It holds its version until the last row was given,
    or until ``close``; it is an async context manager too. One task at a time.
    """

    def __init__(self, hold: Callable[[], AbstractAsyncContextManager[TableReader]]) -> None:
        self._hold = hold
        self._exit = contextlib.AsyncExitStack()
        self._held: TableReader | None = None
        self._pairs: AsyncGenerator[tuple[Any, Value], None] | None = None
        self._closed = False

    async def _start(self) -> TableReader:
        if self._held is None:
            with one_call():
                self._held = await self._exit.enter_async_context(self._hold())
            self._pairs = self._held.pairs()
        return self._held

    async def __anext__(self) -> tuple[Any, Value]:
        if self._closed:
            raise StopAsyncIteration
        try:
            await self._start()
            assert self._pairs is not None
            return await self._pairs.__anext__()
        except BaseException:
            await self.close()
            raise

    async def to_arrow(self) -> Any:
        """The rows not yet given, as a ``pyarrow.Table`` of key and value columns."""
        held = await self._start()
        rows = [row async for row in self]
        await self.close()
        return held.view.values.to_arrow(iter(rows))

    async def close(self) -> None:
        """Let the version go; no more rows are given. May be repeated."""
        self._closed = True
        if self._pairs is not None:
            await self._pairs.aclose()
        await self._exit.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Table:
    """One table, read at its gate's newest version or at its snapshot's. Tasks may share it.

    A key is the key column's value, or a tuple of them for a key of several columns.
    """

    def __init__(self, source: Source, name: str) -> None:
        self.name = name
        self._source = source

    async def get(self, key: Any) -> Value | None:
        """The key's value, None when it is absent.

        BadRecordError: the key is not of the table's type. ConfigError: there is no such table.
        SnapshotExpiredError: the snapshot's version is no longer held. StoreUnavailableError: no answer
        within the store's ``timeout_s``, however many requests it took.
        """
        return (await self.get_many((key,))).get(hashable(key))

    async def get_many(self, keys: Iterable[Any]) -> dict[Any, Value]:
        """The values of these keys, all at one version, by key; absent keys are left out.

        Errors as for ``get``; ConfigError also for one key instead of several. More than 100,000 keys are
        asked for in parts, each with a deadline of its own.
        """
        wanted = rules.keys_of(keys)
        return await self._source.read(self.name, lambda held: held.get_many(wanted))

    def scan(self) -> Scan:
        """All rows, at one version: an async iterator of (key, value), also ``await ....to_arrow()``.

        Errors as for ``get``, raised where the rows are fetched. Each page of rows that is fetched has a
        deadline of its own, and so has taking the version that is read.
        """
        return Scan(lambda: self._source.hold(self.name))

    async def schema(self) -> TableSchema:
        """The names and Spark types of the key's and the value's columns at the version read."""

        async def schema_of(held: TableReader) -> TableSchema:
            return held.view.values.schema

        return await self._source.read(self.name, schema_of)

    def __repr__(self) -> str:
        return f"<Table {self.name} of {self._source!r}>"


class Snapshot:
    """One version for all reads, held by a lease until ``close`` or the end of an ``async with``.

    The lease is renewed by a task of the event loop while the snapshot is open. Every read answers
    from ``version`` or raises SnapshotExpiredError: when the lease was not renewed in time (by this
    process's monotonic clock; an event loop that stands still renews nothing) or was revoked,
    because a writer's ``max_lease_s`` or ``max_layers`` let the version go. Once it raised that, it
    always does. Tasks may share it. Made by ``Gate.snapshot``.
    """

    def __init__(self, reader: Reader, entry: CatalogEntry | None, held: ActiveLease) -> None:
        self.version = held.lease.version
        self._reader = reader
        self._entry = entry
        self._lease = held
        self._closed = False

    @property
    def namespace(self) -> str:
        """The namespace it is of: by an alias, the one that it named when the snapshot was taken."""
        return self._reader.identity.name

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def decided_at(self) -> datetime.datetime | None:
        """When the version was decided (UTC); None for version 0."""
        return None if self._entry is None else moment(self._entry.decided_at_us)

    def tables(self) -> list[str]:
        """The names of the tables there are at this version."""
        return [] if self._entry is None else sorted(self._entry.tables)

    def table(self, name: str) -> Table:
        """A table at this version. ConfigError: it is not there, and which tables are."""
        self._check()
        view_of(self._reader.store.where, self._reader.identity, self._entry_there(), name, {})
        return Table(self, name)

    async def read(self, table: str, fn: Callable[[TableReader], Awaitable[Result]]) -> Result:
        """For ``Table``: the answer of one read at this version."""
        with events.reading(self._reader.identity.name, table), one_call():
            return await fn(await self._held(table))

    @contextlib.asynccontextmanager
    async def hold(self, table: str) -> AsyncIterator[TableReader]:
        """For ``Scan``: the table at this version; the snapshot is not closed by it."""
        yield await self._held(table)

    async def _held(self, table: str) -> TableReader:
        self._check()
        return await self._reader.held(self._entry_there(), table, self._check)

    def _entry_there(self) -> CatalogEntry:
        if self._entry is None:
            raise rules.no_version_yet(self._reader.identity.name)
        return self._entry

    def _check(self) -> None:
        self._reader.check_open()
        if self._closed:
            raise rules.snapshot_closed(self.version)
        self._lease.check(self._reader.clock)

    async def close(self) -> None:
        """Give the lease back. May be repeated."""
        if self._closed:
            return
        self._closed = True
        await self._reader.renewals.give_back(self._lease)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Snapshot of version {self.version}, {self._reader.store.where}>"


class SnapshotContext(AbstractAsyncContextManager[Snapshot]):
    """What ``Gate.snapshot`` gives: ``async with`` takes the snapshot and closes it at the end; ``await``
    takes it and leaves closing to the caller.
    """

    def __init__(self, take: Callable[[], Awaitable[Snapshot]]) -> None:
        self._take = take
        self._snapshot: Snapshot | None = None

    def __await__(self) -> Generator[Any, None, Snapshot]:
        return self._take().__await__()

    async def __aenter__(self) -> Snapshot:
        self._snapshot = await self._take()
        return self._snapshot

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._snapshot is not None:
            await self._snapshot.close()
