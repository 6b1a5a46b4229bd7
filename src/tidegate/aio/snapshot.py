"""Reads at a version with ``await``: snapshots, tables and scans. ``reader/flow/`` has the control flow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.aio.leases import AsyncLeaseKeeper
from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.base.extras import pa
from tidegate.base.steps import Result, Steps, run_async
from tidegate.errors import ConfigError, SnapshotExpiredError
from tidegate.reader import rules
from tidegate.reader.flow.reader import Reader
from tidegate.reader.flow.snapshot import SnapshotFlow
from tidegate.reader.rules import TRIES, check_table
from tidegate.reader.table import OfProcess, TableReader, view_of
from tidegate.sinks.async_store import AsyncStore, AsyncSupportsReadWithPointer
from tidegate.sinks.records import Identity
from tidegate.sinks.rules.reads import windows
from tidegate.values.decode import CHUNK_ROWS, Value
from tidegate.wal.record import TableSchema

if TYPE_CHECKING:
    from typing_extensions import Self


class AsyncReader(Reader):
    """The ``Reader`` of an event loop."""

    store_with_pointer = AsyncSupportsReadWithPointer
    keeper = AsyncLeaseKeeper

    def __init__(self, store: AsyncStore, identity: Identity, clock: Clock) -> None:
        super().__init__(store, identity, clock)
        self._loop = asyncio.get_running_loop()

    def check_open(self) -> None:
        """Refuse reads after the gate was closed, or in another event loop. Raises: ConfigError."""
        super().check_open()
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigError(
                f"this gate to {self.store.where} was connected in another event loop: connect in this one"
            )

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Return a coroutine that pauses between two polls."""
        return asyncio.sleep(seconds)


class Source(Protocol):
    """The source of a table's reads: a gate (the newest version at each read) or a snapshot."""

    def read(self, table: str, fn: Callable[..., Steps[Result]], *args: Any) -> Steps[Result]:
        """Do one read: ``fn`` with the table's reader and ``args``."""
        ...

    async def pin(self, table: str, until: contextlib.AsyncExitStack) -> TableReader:
        """Give the table's reader at one version, which is pinned until ``until`` is closed.

        It is no context manager made from a generator: asyncio closes such a one itself when a loop ends,
        beside the rows that were read within it.
        """
        ...


class Table(OfProcess):
    """One table, read at its gate's newest version or at its snapshot's. Tasks may share it.

    A key is the key column's value, or a tuple of them for a key of several columns.
    """

    def __init__(self, source: Source, name: str) -> None:
        check_table(name)
        self.name = name
        self._source = source

    async def get(self, key: Any) -> Value | None:
        """Read the key's value, None when it is absent.

        Raises: BadRecordError: the key is not of the table's type. ConfigError: there is no such table.
        SnapshotExpiredError: the snapshot's version is no longer pinned. StoreUnavailableError: no answer
        within the store's ``timeout_s``, for all requests of the call together.
        """
        return await run_async(self._source.read(self.name, TableReader.get, key))

    async def get_many(self, keys: Iterable[Any]) -> dict[Any, Value]:
        """Read the values of these keys, all at one version, by key, without absent keys.

        More than 100,000 keys are read in parts, each with a deadline of its own. Raises: as ``get``;
        ConfigError also for one key instead of several, and for two keys that no dict can tell apart.
        """
        keys = rules.keys_of(keys)
        return await run_async(self._source.read(self.name, TableReader.get_many, keys))

    def scan(self, key_group: int | None = None) -> Scan:
        """Read all rows, at one version: an async iterator of (key, value), also ``await ....to_arrow()``.

        ``key_group``: only its rows. The key groups of a snapshot are a partition of its rows: several
        processes can divide a scan among them. Each page of rows has a deadline of its own, and so has the
        lease on the version. A gate's version that is retired before its first row was read is left for a
        newer one. Raises, when rows are fetched: as ``get``; ConfigError also for a key group that the
        namespace does not have.
        """
        return Scan(self._source, self.name, key_group)

    async def schema(self) -> TableSchema:
        """Read the names and Spark types of the key's and the value's columns at the version read."""
        return await run_async(self._source.read(self.name, TableReader.schema))

    def __repr__(self) -> str:
        return f"<Table {self.name} of {self._source!r}>"


class Scan(OfProcess, AsyncIterator[tuple[Any, Value]]):
    """All rows of a table or of one key group, at one version, as (key, value), in no particular order.

    Rows are fetched on demand. It pins its version until the last row was returned, or until ``close``; it
    is an async context manager, too. One task at a time.
    """

    def __init__(self, source: Source, table: str, key_group: int | None = None) -> None:
        self._source, self._table, self._key_group = source, table, key_group
        self._exit = contextlib.AsyncExitStack()
        self._reader: TableReader | None = None
        self._rows: AsyncGenerator[tuple[Any, Value], None] | None = None
        self._first: tuple[Any, Value] | None = None
        self._closed = False

    async def _start(self) -> TableReader:
        if self._reader is not None:
            return self._reader
        for _ in range(TRIES - 1):  # the version may be retired before its first row is read (T28)
            with contextlib.suppress(SnapshotExpiredError):
                return await self._begin()
        return await self._begin()

    async def _begin(self) -> TableReader:
        """Pin a version, and read up to its first row."""
        async with contextlib.AsyncExitStack() as opened:
            with one_call():
                reader = await self._source.pin(self._table, opened)
            self._rows = rows = _rows_of(reader, self._key_group)
            opened.push_async_callback(rows.aclose)
            self._first = await anext(rows, None)
            self._reader, self._exit = reader, opened.pop_all()
        return reader

    async def __anext__(self) -> tuple[Any, Value]:
        if self._closed:
            raise StopAsyncIteration
        try:
            await self._start()
            assert self._rows is not None
            first, self._first = self._first, None
            return await anext(self._rows) if first is None else first
        except BaseException:
            await self.close()
            raise

    async def to_arrow(self) -> Any:
        """Return the remaining rows as a ``pyarrow.Table`` of key and value columns."""
        values = (await self._start()).view.values
        chunks: list[Any] = []
        rows: list[tuple[Any, Value]] = []
        try:
            async for row in self:
                rows.append(row)
                if len(rows) == CHUNK_ROWS:
                    chunks.append(values.to_arrow(rows))
                    rows = []
            return pa.concat_tables([*chunks, values.to_arrow(rows)])
        finally:
            await self.close()

    async def close(self) -> None:
        """Release the version; no more rows are returned. Repeatable."""
        self._closed = True
        await self._exit.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _rows_of(
    reader: TableReader, key_group: int | None = None
) -> AsyncGenerator[tuple[Any, Value], None]:
    """Yield all live rows or those of one key group, decoded. Raises: ConfigError."""
    view = reader.view
    for groups in windows(view.groups_to_scan(key_group)):
        reader.check()
        scan = reader.store.scan_groups(view.at, groups)
        async with contextlib.aclosing(scan) as batches:
            async for batch in batches:
                await asyncio.sleep(0)  # other tasks run, the renewal of leases among them
                reader.check()
                for row in view.rows(batch):
                    yield row


class Snapshot(SnapshotFlow):
    """One version for all reads, pinned by a lease until ``close`` or the end of an ``async with``.

    ``Gate.snapshot`` creates it. The lease is renewed by a task of the event loop while the snapshot is
    open. Every read answers from ``version`` or raises SnapshotExpiredError: if the lease was not renewed in
    time (by this process's monotonic clock; a blocked event loop renews nothing), or was revoked because a
    writer's ``max_lease_s`` or ``max_layers`` ended it. After the first such error every read raises it.
    Tasks may share it.
    """

    def table(self, name: str) -> Table:
        """Return a table at this version. Raises: ConfigError: it does not exist; it names those that do."""
        self._check()
        view_of(self._reader.store.where, self._reader.identity, self._entry_here(), name, {})
        return Table(self, name)

    async def pin(self, table: str, until: contextlib.AsyncExitStack) -> TableReader:
        """Give the table's reader, for ``Scan``; ``until`` does not close the snapshot."""
        until.enter_context(self._noting())
        return await run_async(self._table(table))

    async def close(self) -> None:
        """Release the lease. Repeatable."""
        await run_async(self._close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class SnapshotContext(AbstractAsyncContextManager[Snapshot]):
    """The result of ``Gate.snapshot``: ``async with`` takes the snapshot and closes it at the end; ``await``
    takes it, and the caller closes it.
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
