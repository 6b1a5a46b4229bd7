"""The gate of an alias, on an event loop. ``reader/alias_gate.py`` has its control flow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from tidegate.aio.gate import Gate, to_the_end
from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call, outside
from tidegate.reader import rules
from tidegate.reader.alias_gate import AliasFlow, Opened
from tidegate.reader.table import run_async
from tidegate.sinks.aliases import Target
from tidegate.sinks.async_store import AsyncStore

logger = logging.getLogger("tidegate")


async def by_alias(
    alias: str, store: AsyncStore, open_gate: Callable[[Target], Awaitable[Gate]], clock: Clock
) -> AliasGate:
    """Return the gate, and open the namespace that the alias names. Raises: as ``connect``."""
    gate = AliasGate(alias, store, open_gate, clock)
    try:
        await run_async(gate.open_steps())
    except BaseException:
        await gate.close()
        raise
    return gate


class AliasGate(AliasFlow, Gate):
    """A ``Gate`` whose calls follow an alias; ``tidegate.aio.connect`` returns it for one.

    ``namespace`` is the one that was read last. Raises: the errors of ``Gate``; also, at every call,
    ConfigError: the alias was dropped. StoreLostError: the namespace that it names is gone.
    """

    def __init__(
        self, alias: str, store: AsyncStore, open_gate: Callable[[Target], Awaitable[Gate]], clock: Clock
    ) -> None:
        super().__init__(alias, store, open_gate, clock)
        self._opening = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()

    def _read_alias(self) -> Awaitable[Target | None]:
        target: Awaitable[Target | None] = self._store.alias(self.alias)
        return target

    async def _enter(self, target: Target) -> Opened:
        space = self._spaces.setdefault(target, Opened())
        space.calls += 1
        try:
            if space.gate is None:
                async with self._opening:
                    await self._open_space(space, target)
        except BaseException:
            self._leave(space)
            raise
        self._now = target
        return space

    async def _open_space(self, space: Opened, target: Target) -> None:
        if space.gate is not None:
            return
        with one_call():
            gate = await self._open_gate(target)
        if self._closed:
            await gate.close()
            raise rules.gate_closed(self._store.where)
        gate.remember(space.seen)
        space.gate = gate

    def _leave(self, space: Opened) -> None:
        """End a call in the namespace, and start to close the gates that are idle then.

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
            stack.push_async_callback(lambda: to_the_end(self._store.close()))
            stack.push_async_callback(self._wait_until_closed)
            for space in self._spaces.values():
                if space.gate is not None:
                    stack.push_async_callback(space.gate.close)

    async def _wait_until_closed(self) -> None:
        """Wait for evicted gates, also of calls that end meanwhile; each has its own limits."""
        while self._closing:
            await asyncio.wait(list(self._closing))
