"""The leases of a gate on an event loop, and the task that renews them."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Coroutine
from typing import Any

from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.reader.leases import ActiveLease, LeaseFlow
from tidegate.reader.table import run_async
from tidegate.sinks.rules.leases import Lease


class AsyncLeaseKeeper(LeaseFlow):
    """The lease keeper of one gate: it takes, renews and releases leases."""

    def __init__(self, store: Any, clock: Clock) -> None:
        super().__init__(store, clock)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._releases: set[asyncio.Task[None]] = set()  # of tasks that were cancelled
        self._closed = False

    async def take(self, version: int, ttl_s: float) -> ActiveLease:
        """Take a new lease on a version, and renew it from now on. Raises: as ``Store.lease``."""
        lease = Lease(self._clock.new_id(), version)
        deadline = self._clock.monotonic() + ttl_s
        try:
            await self._store.lease(lease, ttl_s)
        except asyncio.CancelledError:
            self._start_release(lease.lease_id)  # perhaps it was taken
            raise
        active = ActiveLease(lease, ttl_s, deadline)
        self._leases[lease.lease_id] = weakref.ref(active)
        self._changed.set()
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return active

    async def give_back(self, active: ActiveLease) -> None:
        """Stop the renewals of a lease, and release it if the store answers; else it expires by itself."""
        self._leases.pop(active.lease.lease_id, None)
        if active.is_ours and not self._closed:
            try:
                with one_call():
                    await run_async(self._release(active.lease.lease_id))
            except asyncio.CancelledError:
                self._start_release(active.lease.lease_id)  # perhaps it was not sent
                raise

    async def close(self) -> None:
        """Release all leases and end the task. Repeatable."""
        leases = [active for ref in self._leases.values() if (active := ref()) is not None]
        try:
            with one_call():
                await asyncio.gather(*(self.give_back(active) for active in leases))
        finally:
            self._closed = True
            self._changed.set()
        running = [*self._releases, *([self._task] if self._task is not None else [])]
        if running:  # each ends with the store's answer, which has its own limit
            await asyncio.wait(running)

    # -- the task ----------------------------------------------------------------------------------

    async def renew_due(self) -> None:
        """Renew the leases that are due, all at once: none waits for another one's reply."""
        now = self._clock.monotonic()
        due = [active for active in self._alive() if active.due <= now]
        await asyncio.gather(*(run_async(self._renew(active)) for active in due))

    async def _run(self) -> None:
        try:
            while not self._closed:
                self._changed.clear()
                await self.renew_due()
                due = [active.due for active in self._alive()]
                if not due:
                    return
                left = max(0.0, min(due) - self._clock.monotonic())
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), left)
        finally:
            self._task = None

    def _start_release(self, lease_id: str) -> None:
        """Release a lease in a task of its own, with a deadline of its own."""

        async def release() -> None:
            with one_call(anew=True):
                await run_async(self._release(lease_id))

        work: Coroutine[Any, Any, None] = release()
        task = asyncio.get_running_loop().create_task(work)
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)
