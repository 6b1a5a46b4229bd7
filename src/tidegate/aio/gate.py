"""The gate: a reader's client of one namespace, on an event loop. ``reader/flow/`` has its control flow."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from tidegate.aio.in_threads import Changes, Diff, GateInThreads, to_the_end
from tidegate.aio.mirror import Mirror
from tidegate.aio.snapshot import Snapshot, SnapshotContext, Table
from tidegate.base.source_offsets import Offsets
from tidegate.base.steps import run_async
from tidegate.reader.flow.gate import GateFlow
from tidegate.reader.gate import Gate as BlockingGate
from tidegate.reader.mirror.mirror import PathLike, Switched
from tidegate.reader.rules import LEASE_S, VersionInfo
from tidegate.reader.table import KeysByTable, TableReader, ValuesByTable
from tidegate.sinks.rules.version_ref import Version

if TYPE_CHECKING:
    from typing_extensions import Self


class Gate(GateFlow):
    """A client that reads one namespace: its newest visible version, and older ones that are still readable.

    Any number of tasks of its event loop may read at the same time. A request that is cancelled
    changes nothing for the others. It remembers the newest version that it has seen, and raises
    VersionRegressedError when the store shows an older one (I9). It is an async context manager.
    """

    _snapshot_class = Snapshot
    _in_threads: GateInThreads | None = None

    def read_in_threads(self, connect: Callable[[], BlockingGate]) -> None:
        """Read diffs and changes by the gate that ``connect`` returns; ``tidegate.aio.connect`` sets it."""
        self._in_threads = GateInThreads(connect)

    def _blocking(self) -> BlockingGate:
        assert self._in_threads is not None, "only tidegate.aio.connect makes gates for users"
        return self._in_threads.gate()

    async def version(self) -> int:
        """Read the visible version; 0 before the first.

        Raises: VersionRegressedError: the store shows an older version than before, or another
        history. StoreUnavailableError: no answer.
        """
        return await run_async(self._version_steps())

    async def tables(self) -> list[str]:
        """List the names of the tables at the visible version."""
        return await run_async(self._tables_steps())

    def table(self, name: str) -> Table:
        """Return a table, which is read at the newest visible version each time.

        Several reads may see several versions: take a ``snapshot`` if they must be consistent.
        """
        return Table(self, name)

    async def get_many(self, keys: KeysByTable) -> ValuesByTable:
        """Read the values of keys of several tables, all at one version: as ``tidegate.Gate.get_many``."""
        return await run_async(self._get_many_steps(keys))

    def snapshot(
        self,
        version: Version | None = None,
        *,
        as_of: datetime.datetime | None = None,
        lease_s: float = LEASE_S,
    ) -> SnapshotContext:
        """Take one version for many reads: the newest, ``version``, or the newest decided by ``as_of``.

        ``async with gate.snapshot() as snap:`` closes it at the end; ``snap = await gate.snapshot()``
        leaves that to the caller. Lease, limits and errors as ``tidegate.Gate.snapshot``; all errors are
        raised where it is awaited or entered.
        """
        return SnapshotContext(lambda: run_async(self._snapshot_steps(version, as_of, lease_s)))

    async def wait_for(
        self, version: Version | None = None, timeout: float = 30.0, *, offsets: Offsets | None = None
    ) -> int:
        """Wait until ``version`` is visible, or a version that has read a Kafka topic up to ``offsets``.

        It returns the visible version, which may be a later one. ``version`` and ``offsets`` as
        ``tidegate.Gate.wait_for``.

        Raises: WaitTimeoutError: it was not visible within ``timeout`` seconds. StoreUnavailableError: a
        read of the store had no answer within its ``timeout_s``. ConfigError: give one of the two, and a
        ``timeout`` that ends. VersionRegressedError: the version is of another history.
        """
        return await run_async(self._wait_steps(version, timeout, offsets))

    async def history(self, limit: int | None = None) -> list[VersionInfo]:
        """List the visible versions that can still be read, oldest first; the newest ``limit`` of them."""
        return await run_async(self._history_steps(limit))

    def diff(
        self, before: Version, after: Version | None = None, tables: Iterable[str] | None = None
    ) -> Diff:
        """Compare two readable versions: an async iterator of ``Change``, also ``await ....counts()``.

        Arguments and errors as ``tidegate.Gate.diff``; all errors are raised where it is awaited. It is
        read in threads, by connections of its own. Close it, or use it by ``async with``, if you do not read
        it to its end.
        """
        return Diff(lambda: self._blocking().diff(before, after, tables))

    def changes(self, version: Version, table: str, key_group: int | None = None) -> Changes:
        """Read the rows that a version wrote into a table: an async iterator of ``WrittenRow``.

        They come from the log, so the gate must be connected with ``wal``. Arguments and errors as
        ``tidegate.Gate.changes``; all errors are raised where it is awaited. It is read in threads.
        """
        return Changes(lambda: self._blocking().changes(version, table, key_group))

    def mirror(
        self,
        tables: Iterable[str],
        *,
        path: PathLike | None = None,
        bytes_max: int | None = None,
        on_version: Switched | None = None,
    ) -> Mirror:
        """Read whole tables into memory, or into the file at ``path``, and keep them at the newest version.

        ``async with gate.mirror(["users"]) as mirror:`` reads them, and closes the mirror at the end.
        Arguments and errors as ``tidegate.Gate.mirror``; all errors are raised where it is awaited. It is
        read in threads, by connections of its own. ``on_version`` is called in the event loop with each new
        content: a plain function, whose errors go to the loop's exception handler.
        """
        return Mirror(self._blocking, tables, on_version, path=path, bytes_max=bytes_max)

    async def close(self) -> None:
        """Release the connections; its tables and snapshots end with it. Repeatable."""
        if not self._reader.closed:
            self._reader.check_open()  # in another event loop nothing can be closed
            self._reader.closed = True
            await to_the_end(self._end())

    async def _end(self) -> None:
        try:
            await self._reader.leases.close()
        finally:
            try:
                await self._reader.store.close()
            finally:
                await self._close_threads()

    async def _close_threads(self) -> None:
        if self._in_threads is not None:
            await asyncio.to_thread(self._in_threads.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def pin(self, table: str, until: contextlib.AsyncExitStack) -> TableReader:
        """Give the table's reader at the newest version, for ``Scan``; its lease ends with ``until``."""
        snapshot = await until.enter_async_context(self.snapshot())
        return await snapshot.pin(table, until)
