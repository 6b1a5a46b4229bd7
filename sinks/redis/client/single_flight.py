"""Many tasks that want the same thing done: it is done once, and all have its result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from tidegate.base.deadline import outside

Result = TypeVar("Result")


class SingleFlight(Generic[Result]):
    """Runs ``make`` for whoever asks; who asks while it runs waits for the same run, and meets its failure.

    So a hundred tasks before a server that is silent wait as long as one. Who is cancelled leaves
    it running for the others, and so does whoever's call is over: it belongs to no call (``deadline.py``).
    ``close`` ends it: those who wait get ``closed()``.
    """

    def __init__(self, make: Callable[[], Awaitable[Result]], closed: Callable[[], Exception]) -> None:
        self._make, self._closed = make, closed
        self._task: asyncio.Task[Result] | None = None

    @property
    def running(self) -> bool:
        """Whether somebody asked and has no result yet."""
        return self._task is not None

    async def result(self) -> Result:
        """The result of a run that had not ended when this was called."""
        if self._task is None:
            self._task = outside().run(asyncio.get_running_loop().create_task, self._run())
            self._task.add_done_callback(self._ended)
        return await asyncio.shield(self._task)

    async def close(self) -> None:
        """End the run, if there is one."""
        task = self._task
        if task is not None:
            await asyncio.sleep(0)  # one that has not begun would end as cancelled, and so would who waits
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> Result:
        try:
            return await self._make()
        except asyncio.CancelledError:
            raise self._closed() from None

    def _ended(self, task: asyncio.Task[Result]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # whoever waited was told; perhaps nobody did any more
