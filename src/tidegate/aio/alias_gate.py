"""A gate by an alias, for asyncio: the rules are those of ``tidegate.reader.alias_gate``."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from tidegate.aio.gate import Gate, to_the_end
from tidegate.aio.snapshot import Result, Snapshot, SnapshotContext, TableReader
from tidegate.base.deadline import one_call, outside
from tidegate.base.source_offsets import Offsets
from tidegate.errors import ConfigError, SnapshotExpiredError, WaitTimeoutError
from tidegate.reader import rules
from tidegate.reader.alias_gate import LOOK_S
from tidegate.reader.alias_spaces import Opened, let_go
from tidegate.reader.rules import LEASE_S, TRIES, VersionInfo
from tidegate.sinks.aliases import Target
from tidegate.sinks.async_store import AsyncStore

logger = logging.getLogger("tidegate")

Answer = TypeVar("Answer")


async def by_alias(
    alias: str, store: AsyncStore, open_gate: Callable[[Target], Awaitable[Gate]]
) -> AliasGate:
    """The gate, with what the alias names open. Errors as ``connect``."""
    gate = AliasGate(alias, store, open_gate)
    try:
        await gate.version()
    except BaseException:
        await gate.close()
        raise
    return gate


class AliasGate(Gate):
    """What ``tidegate.aio.connect`` gives for an alias: a ``Gate`` whose calls follow it.

    ``namespace`` is the one that was read last. Besides the errors of ``Gate`` every call may raise
    ConfigError: the alias was dropped, or the namespace that it names.
    """

    def __init__(self, alias: str, store: AsyncStore, open_gate: Callable[[Target], Awaitable[Gate]]) -> None:
        self.alias = alias
        self._store, self._open_gate = store, open_gate
        self._opening = asyncio.Lock()
        self._spaces: dict[Target, Opened[Gate]] = {}
        self._now: Target | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    # -- which namespace ------------------------------------------------------------------------

    async def _named(self) -> Target:
        if self._closed:
            raise rules.gate_closed(self._store.where)
        with one_call():
            found = await self._store.alias(self.alias)
        return rules.checked_alias(found, self._store.where, self.alias)

    async def _call(self, ask: Callable[[Gate], Awaitable[Answer]]) -> Answer:
        """An answer of the namespace that the alias names; asked anew where the alias flips meanwhile, and
        the namespace is gone.
        """
        for _ in range(TRIES - 1):
            target = await self._named()
            try:
                return await self._ask(target, ask)
            except (ConfigError, SnapshotExpiredError):
                if await self._named() == target:
                    raise
        return await self._ask(await self._named(), ask)

    async def _ask(self, target: Target, ask: Callable[[Gate], Awaitable[Answer]]) -> Answer:
        async with self._inside(target) as space:
            assert space.gate is not None
            answer = await ask(space.gate)
            if isinstance(answer, Snapshot):
                space.taken.add(answer)
            return answer

    @contextlib.asynccontextmanager
    async def _inside(self, target: Target) -> AsyncIterator[Opened[Gate]]:
        space = self._spaces.setdefault(target, Opened())
        space.calls += 1
        try:
            if space.gate is None:
                async with self._opening:
                    await self._open(space, target)
            self._now = target
            yield space
        finally:
            space.calls -= 1
            for gate in let_go(self._spaces, self._now):
                self._let_end(gate)

    def _let_end(self, gate: Gate) -> None:
        """Close a gate beside the call that was the last one in it: whoever was answered does not wait for
        that, and has the answer (a snapshot, with its lease) also where they are cancelled meanwhile.
        """
        ending = outside().run(asyncio.get_running_loop().create_task, gate.close())
        self._ending.add(ending)
        ending.add_done_callback(self._ended)

    def _ended(self, ending: asyncio.Task[None]) -> None:
        self._ending.discard(ending)
        if not ending.cancelled() and (error := ending.exception()) is not None:
            logger.error("a namespace of %r was not closed: %s", self, error, exc_info=error)

    async def _open(self, space: Opened[Gate], target: Target) -> None:
        if space.gate is not None:
            return
        with one_call():
            gate = await self._open_gate(target)
        if self._closed:
            await gate.close()
            raise rules.gate_closed(self._store.where)
        gate.remember(space.seen)
        space.gate = gate

    # -- what a gate answers ---------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        """The namespace that was read last."""
        assert self._now is not None
        return self._now.namespace

    @property
    def key_groups(self) -> int:
        """How many key groups the namespace that was read last was made with."""
        gate = self._spaces[self._now].gate if self._now is not None else None
        if gate is None:
            raise rules.gate_closed(self._store.where)
        return gate.key_groups

    async def version(self) -> int:
        """The visible version of the namespace."""
        return await self._call(Gate.version)

    async def tables(self) -> list[str]:
        """The names of the tables there are at the visible version."""
        return await self._call(Gate.tables)

    def snapshot(
        self,
        version: int | None = None,
        *,
        as_of: datetime.datetime | None = None,
        lease_s: float = LEASE_S,
    ) -> SnapshotContext:
        """As ``Gate.snapshot``; it stays in the namespace that it was taken in, ``snapshot.namespace``."""

        async def taken(gate: Gate) -> Snapshot:
            return await gate.snapshot(version, as_of=as_of, lease_s=lease_s)

        return SnapshotContext(lambda: self._call(taken))

    async def wait_for(
        self, version: int | None = None, timeout: float = 30.0, *, offsets: Offsets | None = None
    ) -> int:
        """As ``Gate.wait_for``. A version is one of the namespace that the alias names when the wait begins;
        offsets are waited for wherever it points, and visible there on return.
        """
        wanted = rules.awaited(version, offsets, timeout)
        if offsets is None:
            return await self._call(functools.partial(Gate.wait_for, version=version, timeout=timeout))
        clock = (await self._gate()).clock
        end = clock.monotonic() + float(timeout)
        while True:
            target, left = await self._named(), end - clock.monotonic()
            ask = functools.partial(Gate.wait_for, timeout=max(min(left, LOOK_S), 0.0), offsets=offsets)
            with contextlib.suppress(WaitTimeoutError):
                visible = await self._call(ask)
                if await self._named() == target:
                    return visible
            if left <= 0:
                raise rules.waited(wanted, timeout, await self.version(), self.namespace)

    async def _gate(self) -> Gate:
        async def itself(gate: Gate) -> Gate:
            return gate

        return await self._call(itself)

    async def history(self, limit: int | None = None) -> list[VersionInfo]:
        """The visible versions of the namespace that can still be read, oldest first."""
        return await self._call(functools.partial(Gate.history, limit=limit))

    async def read(self, table: str, fn: Callable[[TableReader], Awaitable[Result]]) -> Result:
        """For ``Table``: the answer of one read at the newest version."""
        return await self._call(lambda gate: gate.read(table, fn))

    async def close(self) -> None:
        """Release the connections; its tables and snapshots end with it. May be repeated."""
        if self._closed:
            return
        self._closed = True
        async with contextlib.AsyncExitStack() as ending:  # all of it, also when it is cancelled
            ending.push_async_callback(lambda: to_the_end(self._store.close()))
            ending.push_async_callback(self._let_gates_end)
            for space in self._spaces.values():
                if space.gate is not None:
                    ending.push_async_callback(space.gate.close)

    async def _let_gates_end(self) -> None:
        """Also those of calls that end while the other gates are closed; each has its own limits."""
        while self._ending:
            await asyncio.wait(list(self._ending))

    def __repr__(self) -> str:
        return f"<Gate by alias {self.alias} of {self._store.where}>"
