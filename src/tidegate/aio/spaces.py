"""A gate over several gates, on an event loop. ``reader/spaces.py`` has its control flow."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

from tidegate.aio.gate import Gate
from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call, outside
from tidegate.errors import ConfigError
from tidegate.reader import rules
from tidegate.reader.spaces import Opened, SpacesFlow
from tidegate.sinks.redis.client.single_flight import SingleFlight

logger = logging.getLogger("tidegate")


class SpacesGate(SpacesFlow, Gate):
    """A gate over several, on an event loop. ``open_gate`` returns a coroutine for the gate of a place."""

    def __init__(self, open_gate: Callable[[Any], Awaitable[Gate]], clock: Clock) -> None:
        super().__init__(clock)
        self._open_gate = open_gate
        self._closing: set[asyncio.Task[None]] = set()

    async def _enter(self, place: Hashable) -> Opened:
        space = self._spaces.setdefault(place, Opened())
        space.calls += 1
        try:
            while space.gate is None:
                if space.opening is None:
                    opened = functools.partial(self._open_space, space, place)
                    space.opening = SingleFlight(opened, self._was_closed, contextvars.copy_context)
                await space.opening.result()
        except BaseException:
            self._leave(space)
            raise
        self._now = place
        return space

    def _sleep(self, seconds: float) -> Any:
        return asyncio.sleep(seconds)

    def _was_closed(self) -> ConfigError:
        return rules.gate_closed(self.where)

    async def _open_space(self, space: Opened, place: Hashable) -> None:
        space.calls += 1  # the calls that wait may be cancelled
        try:
            with one_call():
                gate = await self._open_gate(place)
            if self._closed:
                await gate.close()
                raise self._was_closed()
            if space.seen is not None:
                gate.remember(space.seen)
            space.gate = gate
        finally:
            space.calls -= 1

    def _leave(self, space: Opened) -> None:
        """End a call in the place, and start to close the gates that are idle then.

        They are closed in tasks: the caller does not wait for that. It has its answer (a snapshot, with its
        lease) even if it is cancelled meanwhile.
        """
        space.calls -= 1
        for gate in self._evict():
            closing = outside().run(asyncio.get_running_loop().create_task, gate.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closed_one)

    def _closed_one(self, closing: asyncio.Task[None]) -> None:
        self._closing.discard(closing)
        if not closing.cancelled() and (error := closing.exception()) is not None:
            logger.error("a namespace of %r was not closed: %s", self, error, exc_info=error)

    async def close(self) -> None:
        """Release the connections; its tables and snapshots end with it. Repeatable."""
        if self._closed:
            return
        self._closed = True
        async with contextlib.AsyncExitStack() as stack:  # all of it, even if it is cancelled
            stack.push_async_callback(self._close_own)
            stack.push_async_callback(self._close_threads)
            stack.push_async_callback(self._wait_until_closed)
            for space in self._spaces.values():
                if space.gate is not None:
                    stack.push_async_callback(space.gate.close)
                elif space.opening is not None:
                    stack.push_async_callback(space.opening.close)

    async def _close_own(self) -> None:
        """Release what is not a gate's."""

    async def _wait_until_closed(self) -> None:
        """Wait for evicted gates, also of calls that end meanwhile; each has its own limits."""
        while self._closing:
            await asyncio.wait(list(self._closing))
