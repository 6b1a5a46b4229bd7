"""The leases of a gate on an event loop, and the task that renews them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Coroutine
from typing import Any

from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.base.steps import run_async
from tidegate.reader.leases.active import ActiveLease, Hold
from tidegate.reader.leases.flow import CLOSE_S, LeaseFlow, is_final

logger = logging.getLogger("tidegate")


class AsyncLeaseKeeper(LeaseFlow):
    """The lease keeper of one gate: it takes, renews and releases leases."""

    def __init__(self, store: Any, clock: Clock) -> None:
        super().__init__(store, clock)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._aside: set[asyncio.Task[None]] = set()  # requests that take leases, or release cancelled ones

    async def take(self, version: int, ttl_s: float) -> Hold:
        """Hold a lease on a version, which is renewed from now on. Raises: as ``Store.lease``.

        A snapshot of the same version shares the lease, and the request for it. If that request of another
        task fails, this call sends its own.
        """
        hold = await self._take(version, ttl_s, share=True)
        while hold is None:
            hold = await self._take(version, ttl_s, share=False)
        return hold

    async def _take(self, version: int, ttl_s: float, *, share: bool) -> Hold | None:
        hold, is_first = self._hold(version, ttl_s, share=share)
        active = hold.active
        if is_first:
            active.request = self._start(self._request(active))
        try:
            if not active.request.done():
                await asyncio.shield(active.request)
        except asyncio.CancelledError:
            if self._drop(hold):
                self._start_release(active.lease.lease_id)
            if not active.holds and not active.granted:
                active.request.cancel()  # it releases the lease, which it may have taken
            raise
        if active.refused is None:
            return hold
        if is_first or is_final(active.refused):
            raise active.refused
        return None

    async def _request(self, active: ActiveLease) -> None:
        """Take a lease; it is released at once if no snapshot waits for it any more. No error is raised."""
        try:
            await run_async(self._pin(active))
            is_wanted = self._granted(active)
        except asyncio.CancelledError as cancelled:
            self._refused(active, cancelled)
            is_wanted = False  # perhaps it was taken
        except Exception as error:  # noqa: BLE001 - the calls that wait for it raise it
            self._refused(active, error)
            return
        if not is_wanted:
            with one_call(fresh=True):
                await run_async(self._release(active.lease.lease_id))
        elif self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif active.due < self._wakes_at:
            self._changed.set()

    async def give_back(self, hold: Hold) -> None:
        """End a hold. The last one's lease is released if the store answers; else it expires by itself."""
        if self._drop(hold):
            try:
                with one_call():
                    await run_async(self._release(hold.active.lease.lease_id))
            except asyncio.CancelledError:
                self._start_release(hold.active.lease.lease_id)  # perhaps it was not sent
                raise

    async def close(self) -> None:
        """Take no leases any more, release all, and end the task. Repeatable.

        It waits for leases that are being taken, since these requests release them.
        """
        self._closing = True
        try:
            await self._wait_for_aside()
            with one_call():
                await asyncio.gather(*(run_async(self._release(each)) for each in self._forget_all()))
        finally:
            self._closed = True
            self._changed.set()
        if self._task is not None:  # it ends with the store's answer, which has its own limit
            await asyncio.wait([self._task])
        await self._wait_for_aside()

    async def _wait_for_aside(self) -> None:
        """Wait for all requests aside, also for those that begin meanwhile."""
        loop = asyncio.get_running_loop()
        end = loop.time() + CLOSE_S
        while self._aside:
            left = end - loop.time()
            if left <= 0:
                logger.error("%s: %d leases were not answered in time", self._store.where, len(self._aside))
                return
            await asyncio.wait(list(self._aside), timeout=left)

    # -- the task ----------------------------------------------------------------------------------

    async def renew_due(self) -> None:
        """Renew the leases that are due, all at once: none waits for another one's reply."""
        await asyncio.gather(*(run_async(self._renew(active)) for active in self._due()))

    async def _run(self) -> None:
        try:
            while not self._closed:
                self._changed.clear()
                await self.renew_due()
                due = [active.due for active in self._alive()]
                while self._left:
                    self._start_release(self._left.popleft())
                if not due:
                    return
                self._wakes_at = min(due)
                with contextlib.suppress(asyncio.TimeoutError):
                    left = max(0.0, self._wakes_at - self._clock.monotonic())
                    await asyncio.wait_for(self._changed.wait(), left)
                self._wakes_at = -math.inf
        finally:
            self._task = None

    def _start_release(self, lease_id: str) -> None:
        """Release a lease in a task of its own, with a deadline of its own."""

        async def release() -> None:
            with one_call(fresh=True):
                await run_async(self._release(lease_id))

        self._start(release())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)
        return task
