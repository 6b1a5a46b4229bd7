"""Leases of one asyncio gate, renewed from one task while they are held."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Coroutine
from typing import Any

from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.errors import TidegateError
from tidegate.reader.leases import ActiveLease, alive_of
from tidegate.sinks.async_store import AsyncStore
from tidegate.sinks.rules.leases import Lease


class AsyncRenewals:
    """Takes, renews and gives back the leases of one gate. The rules are those of ``renewal.py``."""

    def __init__(self, store: AsyncStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._held: dict[str, weakref.ref[ActiveLease]] = {}  # by lease id
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._aside: set[asyncio.Task[None]] = set()
        self._closed = False

    async def take(self, version: int, ttl_s: float) -> ActiveLease:
        """A new lease on a version, from now on renewed. Errors as ``Store.lease``."""
        lease = Lease(self._clock.new_id(), version)
        deadline = self._clock.monotonic() + ttl_s
        try:
            await self._store.lease(lease, ttl_s)
        except asyncio.CancelledError:
            self._start_aside(self._release_anew(lease.lease_id))  # perhaps it was taken
            raise
        held = ActiveLease(lease, ttl_s, deadline)
        self._held[lease.lease_id] = weakref.ref(held)
        self._changed.set()
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return held

    async def give_back(self, held: ActiveLease) -> None:
        """Renew it no more, and give it back if the store answers; if not, it runs out by itself."""
        self._held.pop(held.lease.lease_id, None)
        if held.is_ours and not self._closed:
            try:
                with one_call():
                    await self._release(held.lease.lease_id)
            except asyncio.CancelledError:
                self._start_aside(self._release_anew(held.lease.lease_id))  # perhaps it was not sent
                raise

    async def close(self) -> None:
        """Give all leases back and end the task. May be repeated."""
        held = [one for ref in self._held.values() if (one := ref()) is not None]
        try:
            with one_call():
                await asyncio.gather(*(self.give_back(one) for one in held))
        finally:
            self._closed = True
            self._changed.set()
        going = [*self._aside, *([self._task] if self._task is not None else [])]
        if going:  # each ends with the store's answer, which has its own limit
            await asyncio.wait(going)

    # -- the task ----------------------------------------------------------------------------------

    async def renew_due(self) -> None:
        """Renew what is due by now, all at once: one that waits keeps no other waiting."""
        now = self._clock.monotonic()
        due = [held for held in alive_of(self._held, now) if held.due <= now]
        await asyncio.gather(*(self._renew(held) for held in due))

    async def _renew(self, held: ActiveLease) -> None:
        with one_call(anew=True):  # not a part of the call that took the lease
            await self._renew_once(held)

    async def _renew_once(self, held: ActiveLease) -> None:
        asked_at = self._clock.monotonic()
        try:
            await self._store.lease(held.lease, held.ttl_s)
        except Exception as error:  # noqa: BLE001 - one lease's error may not end the renewal of the others
            held.not_renewed(asked_at, error)
        else:
            held.renewed(asked_at)
            if held.lease.lease_id not in self._held:  # perhaps this came after its release
                await self._release(held.lease.lease_id)

    async def _release(self, lease_id: str) -> None:
        with contextlib.suppress(TidegateError):
            await self._store.release(lease_id)

    async def _release_anew(self, lease_id: str) -> None:
        with one_call(anew=True):
            await self._release(lease_id)

    async def _run(self) -> None:
        try:
            while not self._closed:
                self._changed.clear()
                await self.renew_due()
                now = self._clock.monotonic()
                due = [held.due for held in alive_of(self._held, now)]
                if not due:
                    return
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), max(0.0, min(due) - now))
        finally:
            self._task = None

    def _start_aside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)
