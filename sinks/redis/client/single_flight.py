"""Single flight: concurrent requests for the same work share one run and its result."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from tidegate.base.deadline import outside

Result = TypeVar("Result")


class SingleFlight(Generic[Result]):
    """One shared run of ``make``: callers that arrive while it runs get its result, or its failure.

    A hundred tasks at a silent server therefore wait as long as one. A caller that is cancelled, or
    whose deadline passes, leaves the run to the others: it belongs to no call (``deadline.py``), unless
    ``context`` returns the one of the caller that begins it. ``close`` ends it, and waiting callers get
    ``closed()``.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[Result]],
        closed: Callable[[], Exception],
        context: Callable[[], contextvars.Context] = outside,
    ) -> None:
        self._make, self._closed, self._context = make, closed, context
        self._task: asyncio.Task[Result] | None = None
        self._is_closing = False

    @property
    def running(self) -> bool:
        """Whether a run is in progress."""
        return self._task is not None

    async def result(self) -> Result:
        """Return the result of a run that had not ended at the time of this call."""
        if self._task is None or self._task.done():
            self._task = self._context().run(asyncio.get_running_loop().create_task, self._run())
            self._task.add_done_callback(self._ended)
        return await asyncio.shield(self._task)

    async def close(self) -> None:
        """End the run, if there is one."""
        task = self._task
        if task is not None:
            self._is_closing = True
            await asyncio.sleep(0)  # a task that has not begun would end as cancelled, and its waiters too
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> Result:
        try:
            return await self._make()
        except asyncio.CancelledError:
            if not self._is_closing:
                raise  # the loop ends
            raise self._closed() from None
        finally:
            self._is_closing = False

    def _ended(self, task: asyncio.Task[Result]) -> None:
        if self._task is task:
            self._task = None
        if not task.cancelled():
            task.exception()  # marks it as retrieved: perhaps no caller waits any more
