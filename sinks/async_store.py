"""The store interface for a reader in an event loop, and an adapter that runs any store in threads.

The methods are those of ``store.Store``, with the same guarantees and errors. Each may be
cancelled: the store is then as if the request had been made and its answer lost.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from typing import Any, TypeVar

from tidegate.sinks.aliases import Target
from tidegate.sinks.records import CatalogEntry, Identity, Pointer, ReadAt, Reads
from tidegate.sinks.rules.leases import Lease
from tidegate.sinks.store import Store
from tidegate.wal.record import TableSchema

CLOSE_S = 30.0
"""The time that ``close`` waits for requests that were cancelled and still run in their threads."""

Result = TypeVar("Result")


class AsyncStore(abc.ABC):
    """The reading half of ``Store``. Tasks of one event loop may share it."""

    where: str

    @abc.abstractmethod
    async def identity(self) -> Identity | None: ...

    @abc.abstractmethod
    async def alias(self, alias: str) -> Target | None: ...

    @abc.abstractmethod
    async def pointer(self) -> Pointer: ...

    @abc.abstractmethod
    async def catalog(self, oldest: int = 0, newest: int | None = None) -> list[CatalogEntry]: ...

    @abc.abstractmethod
    async def schemas(self) -> dict[str, TableSchema]: ...

    async def schemas_of(self, ids: Collection[str]) -> dict[str, TableSchema]:
        """As ``Store.schemas_of``."""
        del ids
        return await self.schemas()

    async def get(self, at: ReadAt, key: bytes) -> bytes | None:
        """Read one key's value, None when it is absent; ``get_many`` of one key."""
        values = await self.get_many(at, [key])
        content: bytes | None = values.to_pylist()[0]
        return content

    @abc.abstractmethod
    async def get_many(self, at: ReadAt, keys: Sequence[bytes]) -> Any: ...

    @abc.abstractmethod
    def scan_groups(self, at: ReadAt, groups: Sequence[int]) -> AsyncGenerator[Any, None]:
        """Yield the live rows of several key groups, as ``Store.scan_groups``, without the key groups."""

    @abc.abstractmethod
    async def lease(self, lease: Lease, ttl_s: float) -> None: ...

    @abc.abstractmethod
    async def release(self, lease_id: str) -> None: ...

    @abc.abstractmethod
    async def await_newer(self, version: int, timeout_s: float) -> bool: ...

    @abc.abstractmethod
    async def close(self) -> None: ...


class AsyncSupportsReadWithPointer(AsyncStore):
    """A store that reads rows and the pointer in one round trip, as ``SupportsReadWithPointer``."""

    @abc.abstractmethod
    async def pointer_with_entry(self, known: int) -> Pointer: ...

    @abc.abstractmethod
    async def get_with_pointer(self, at: ReadAt, key: bytes) -> tuple[bytes | None, Pointer]: ...

    @abc.abstractmethod
    async def get_many_with_pointer(self, reads: Reads) -> tuple[list[Any] | None, Pointer]: ...


class ThreadedStore(AsyncStore):
    """A store whose requests run in the event loop's threads (``asyncio.to_thread``)."""

    def __init__(self, store: Store) -> None:
        self.where = store.where
        self._store = store
        self._running: set[asyncio.Future[Any]] = set()
        self._leasing: dict[str, asyncio.Future[Any]] = {}  # by lease id

    async def identity(self) -> Identity | None:
        return await self._in_thread(self._store.identity)

    async def alias(self, alias: str) -> Target | None:
        return await self._in_thread(lambda: self._store.aliases().get(alias))

    async def pointer(self) -> Pointer:
        return await self._in_thread(self._store.pointer)

    async def catalog(self, oldest: int = 0, newest: int | None = None) -> list[CatalogEntry]:
        return await self._in_thread(lambda: self._store.catalog(oldest, newest))

    async def schemas(self) -> dict[str, TableSchema]:
        return await self._in_thread(self._store.schemas)

    async def get_many(self, at: ReadAt, keys: Sequence[bytes]) -> Any:
        return await self._in_thread(lambda: self._store.get_many(at, keys))

    async def scan_groups(self, at: ReadAt, groups: Sequence[int]) -> AsyncGenerator[Any, None]:
        batches = self._store.scan_groups(at, groups)
        while (page := await self._in_thread(lambda: next(batches, None))) is not None:
            yield page[1]

    async def lease(self, lease: Lease, ttl_s: float) -> None:
        running = self._begun(lambda: self._store.lease(lease, ttl_s))
        self._leasing[lease.lease_id] = running
        running.add_done_callback(lambda _: self._leasing.pop(lease.lease_id, None))
        await asyncio.shield(running)

    async def release(self, lease_id: str) -> None:
        if (taking := self._leasing.get(lease_id)) is not None:
            await asyncio.wait([taking])  # the taking task was cancelled: an earlier release does nothing
        await self._in_thread(lambda: self._store.release(lease_id))

    async def await_newer(self, version: int, timeout_s: float) -> bool:
        """Return False: these stores cannot notify, so the reader polls."""
        return False

    async def close(self) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=CLOSE_S)
        await asyncio.to_thread(self._store.close)

    async def _in_thread(self, ask: Callable[[], Result]) -> Result:
        return await asyncio.shield(self._begun(ask))  # a thread cannot be cancelled; ``close`` waits for it

    def _begun(self, ask: Callable[[], Result]) -> asyncio.Future[Result]:
        running = asyncio.ensure_future(asyncio.to_thread(ask))
        self._running.add(running)
        running.add_done_callback(self._ended)
        return running

    def _ended(self, running: asyncio.Future[Any]) -> None:
        self._running.discard(running)
        if not running.cancelled():
            running.exception()  # its caller got it, or was cancelled
