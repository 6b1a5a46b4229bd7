"""The gate for asyncio. Its rules are those of ``reader/rules.py``, as for threads."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidegate.aio.snapshot import Reader, Result, Snapshot, SnapshotContext, Table, TableReader
from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.base.source_offsets import Offsets
from tidegate.errors import BadRecordError, ConfigError, SnapshotExpiredError
from tidegate.observe import events
from tidegate.reader import rules
from tidegate.reader.rules import LEASE_S, TRIES, OptimisticRead, VersionInfo
from tidegate.sinks.async_store import AsyncSupportsReadWithPointer
from tidegate.sinks.records import CatalogEntry, Pointer

if TYPE_CHECKING:
    from typing_extensions import Self


async def to_the_end(closing: Coroutine[Any, Any, None]) -> None:
    """Close all of it, also when whoever closes is cancelled: nobody can close it again."""
    task = asyncio.get_running_loop().create_task(closing)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])  # each part of it has its own limit
        raise


class Gate:
    """A namespace as a reader sees it: its newest visible version, and older ones still kept.

    Any number of tasks of its event loop may read at the same time. A request that is cancelled
    changes nothing for the others. It remembers the newest version it has seen and raises
    VersionRegressedError when the store shows an older one (I9). An async context manager.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._seen = Pointer()
        self._entry: CatalogEntry | None = None

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        return self._reader.identity.name

    @property
    def key_groups(self) -> int:
        """How many key groups the namespace was made with."""
        return self._reader.identity.key_groups

    async def version(self) -> int:
        """The visible version; 0 before the first.

        VersionRegressedError: the store shows an older version than before, or another
        history. StoreUnavailableError: no answer.
        """
        return (await self._look()).visible

    async def tables(self) -> list[str]:
        """The names of the tables there are at the visible version."""
        with one_call():
            pointer = await self._look()
            return sorted((await self._entry_of(pointer)).tables) if pointer.visible else []

    def table(self, name: str) -> Table:
        """A table, read at the newest visible version each time.

        Several reads may see several versions: take a ``snapshot`` where they must fit together.
        """
        return Table(self, name)

    def snapshot(
        self,
        version: int | None = None,
        *,
        as_of: datetime.datetime | None = None,
        lease_s: float = LEASE_S,
    ) -> SnapshotContext:
        """One version for many reads: the newest, ``version``, or the newest decided by ``as_of``.

        ``async with gate.snapshot() as snap:`` closes it at the end; ``snap = await gate.snapshot()``
        leaves that to you. Lease, limits and errors as ``tidegate.Gate.snapshot``; all errors are
        raised where it is awaited or entered.
        """
        return SnapshotContext(lambda: self._taken(version, as_of, lease_s))

    async def wait_for(
        self, version: int | None = None, timeout: float = 30.0, *, offsets: Offsets | None = None
    ) -> int:
        """Wait until ``version`` is visible, or what was read from a Kafka topic up to ``offsets``; the
        visible version then, which may be a later one. As ``Gate.wait_for``.

        WaitTimeoutError: it was not visible within ``timeout`` seconds. StoreUnavailableError: a look at the
        store had no answer within its ``timeout_s``. ConfigError: give one of the two, and a
        ``timeout`` that ends.
        """
        wanted = rules.awaited(version, offsets, timeout)
        clock = self._reader.clock
        end, pause = clock.monotonic() + float(timeout), 0.0
        while True:
            visible, come = await self._come(wanted)
            if come:
                return visible
            asked_at = clock.monotonic()
            left = end - asked_at
            if left <= 0:
                raise rules.waited(wanted, timeout, visible, self.namespace)
            told = await self._reader.store.await_newer(visible, left)
            pause = rules.pause_of(pause, clock.monotonic() - asked_at, told=told)
            if pause:
                await asyncio.sleep(min(pause, left))

    async def _come(self, wanted: rules.Awaited) -> tuple[int, bool]:
        with one_call():
            visible = await self.version()
            return visible, await self._has_come(visible, wanted)

    async def _has_come(self, visible: int, wanted: rules.Awaited) -> bool:
        if isinstance(wanted, int):
            return visible >= wanted
        entries = await self._reader.store.catalog(*rules.offsets_stand_in(visible))
        return rules.have_passed(entries, wanted)

    async def history(self, limit: int | None = None) -> list[VersionInfo]:
        """The visible versions that can still be read, oldest first; the newest ``limit`` of them."""
        if limit is not None:
            rules.check_whole_number("limit", limit)
        with one_call():
            visible = (await self._look()).visible
            entries = await self._reader.store.catalog(rules.oldest_of(limit, visible), visible)
        return [rules.info_of(entry) for entry in entries]

    @property
    def clock(self) -> Clock:
        """For ``AliasGate``: the clock that it waits by."""
        return self._reader.clock

    @property
    def seen(self) -> Pointer:
        """For ``AliasGate``: the newest pointer that was seen."""
        return self._seen

    def remember(self, seen: Pointer) -> None:
        """For ``AliasGate``: what an earlier gate to this namespace has seen (I9)."""
        self._seen = seen

    async def close(self) -> None:
        """Release the connections; its tables and snapshots end with it. May be repeated."""
        if not self._reader.closed:
            self._reader.closed = True
            await to_the_end(self._end())

    async def _end(self) -> None:
        try:
            await self._reader.renewals.close()
        finally:
            await self._reader.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Gate to {self._reader.store.where}>"

    # -- for tables: reads at the newest version ---------------------------------------------------

    async def read(self, table: str, fn: Callable[[TableReader], Awaitable[Result]]) -> Result:
        """For ``Table``: the answer of one read at the newest version."""

        async def once() -> Result:
            pointer = await self._look()
            if not pointer.visible:
                raise rules.no_version_yet(self.namespace)
            entry = await self._entry_of(pointer)
            return await fn(await self._reader.held(entry, table, self._reader.check_open))

        with events.reading(self.namespace, table), one_call():
            answer = await self._read_optimistically(table, fn)
            return await self._again(once) if answer is None else answer[0]

    async def _read_optimistically(
        self, table: str, fn: Callable[[TableReader], Awaitable[Result]]
    ) -> tuple[Result] | None:
        """The answer at the version that was the newest at the last look, with a look in the same round trip;
        None where there is a newer one by now, or the fn needed no rows, or the store cannot.
        """
        entry, before, store = self._entry, self._seen, self._reader.store
        if (
            entry is None
            or not rules.is_of(entry, before)
            or not isinstance(store, AsyncSupportsReadWithPointer)
        ):
            return None
        ahead = OptimisticRead(store)
        # What is wrong at that version may be right at the newest: a table that is new, for one.
        with contextlib.suppress(SnapshotExpiredError, ConfigError, BadRecordError):
            answer = await fn(await self._reader.held(entry, table, self._reader.check_open, ahead))
            if ahead.pointer is not None and rules.is_of(entry, self._seen_now(before, ahead.pointer)):
                return (answer,)
        return None

    @contextlib.asynccontextmanager
    async def hold(self, table: str) -> AsyncIterator[TableReader]:
        """For ``Scan``: the table at the newest version, under a lease of its own."""
        async with self.snapshot() as snapshot, snapshot.hold(table) as held:
            yield held

    async def _again(self, once: Callable[[], Awaitable[Result]]) -> Result:
        """T28: the newest version was retired between looking and reading; look again."""
        for _ in range(TRIES - 1):
            with contextlib.suppress(SnapshotExpiredError):
                return await once()
        return await once()

    # -- versions ----------------------------------------------------------------------------------

    async def _look(self) -> Pointer:
        """The store's pointer, never older than what this gate had seen before it asked (I9)."""
        self._reader.check_open()
        before = self._seen
        with one_call():
            pointer = await self._reader.store.pointer()
        return self._seen_now(before, pointer)

    def _seen_now(self, before: Pointer, pointer: Pointer) -> Pointer:
        """The pointer; remembered if it is newer than what was seen."""
        rules.check_seen(self._reader.store.where, before, pointer)
        if pointer.visible > self._seen.visible:
            self._seen = pointer
            events.seen(self.namespace, pointer.visible)
        return pointer

    async def _entry_of(self, pointer: Pointer) -> CatalogEntry:
        known = self._entry
        if known is None or not rules.is_of(known, pointer):
            known = await self._reader.entry(pointer.visible)
            rules.check_entry(self._reader.store.where, known, pointer)
            self._entry = known
        return known

    async def _taken(self, version: int | None, as_of: datetime.datetime | None, lease_s: float) -> Snapshot:
        with one_call():
            return await self._take(version, as_of, lease_s)

    async def _take(self, version: int | None, as_of: datetime.datetime | None, lease_s: float) -> Snapshot:
        rules.check_snapshot(version, as_of, lease_s)
        if as_of is not None:
            entries = await self._reader.store.catalog(0, (await self._look()).visible)
            version = rules.version_as_of(entries, as_of, self.namespace)
        if version is not None:
            rules.check_is_visible(version, (await self._look()).visible, self.namespace)
            return await self._pin(version, lease_s)

        async def newest() -> Snapshot:
            return await self._pin(rules.newest_of(await self._look(), self.namespace), lease_s)

        return await self._again(newest)

    async def _pin(self, version: int, lease_s: float) -> Snapshot:
        """A snapshot of the version. The lease comes first, then the horizon is looked at: a store
        that cannot do both at once has announced the horizon before it looked for leases.
        """
        reader = self._reader
        held = await reader.renewals.take(version, lease_s)
        try:
            rules.check_kept(reader.store.where, version, (await self._look()).horizon)
            return Snapshot(reader, await reader.entry(version) if version else None, held)
        except BaseException:
            await reader.renewals.give_back(held)
            raise
