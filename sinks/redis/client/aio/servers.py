"""Discovery of the server that holds a key, from an event loop (``client/servers.py`` is for threads)."""

from __future__ import annotations

from typing import Any, NamedTuple

from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from tidegate.base.urls import Address
from tidegate.sinks.redis.client.aio.channel import AsyncNode, Plain, Tls, closed, in_time
from tidegate.sinks.redis.client.replies import NOT_FOUND_IN_TIME
from tidegate.sinks.redis.client.settings import RedisSettings
from tidegate.sinks.redis.client.single_flight import SingleFlight
from tidegate.sinks.redis.client.steps import (
    CLUSTER_ANSWERS,
    CLUSTER_SLOTS,
    SENTINEL_ANSWERS,
    place_of,
    primary_by,
    ranges_by,
    run_async,
    sentinel_by,
)
from tidegate.sinks.redis.keys import SLOTS, slot_of


class View(NamedTuple):
    """One look-up of the primaries: last slot, first slot and server of each range."""

    ranges: tuple[tuple[int, int, AsyncNode], ...]

    def node_of(self, key: bytes) -> AsyncNode:
        """Return the primary that holds the key. Raises: redis.ClusterDownError: no server does."""
        if len(self.ranges) == 1:
            return self.ranges[0][2]
        return self.ranges[place_of(slot_of(key), self.ranges)][2]


class AsyncServers:
    """The primaries of the last look-up, and the connections to them."""

    def __init__(self, settings: RedisSettings) -> None:
        self.settings = settings
        self.known: View | None = None
        self._nodes: dict[Address, AsyncNode] = {}
        self._looking = SingleFlight(self._look, closed)

    async def view(self) -> View:
        """Return the primaries, looked up if needed. Raises: redis.RedisError, OSError: it fails now."""
        if self.known is not None:
            return self.known
        return await in_time(self._looking.result(), self.settings, NOT_FOUND_IN_TIME)

    async def view_from(self, node: AsyncNode) -> View:
        """Return the primaries as this server sees them now. Raises: redis.RedisError, OSError: it fails."""
        if self.settings.kind != "cluster":
            return await self.view()
        view = await self._ask_cluster(node.address)
        await self._keep({node.address for _, _, node in view.ranges})
        self.known = view
        return view

    def forget(self, view: View | None) -> None:
        """Look up again when next needed, unless that has happened since ``view``."""
        if self.known is view:
            self.known = None

    async def close(self) -> None:
        """Close all connections. Repeatable."""
        await self._looking.close()
        await self._keep(set())

    async def _keep(self, addresses: set[Address]) -> None:
        """Keep only the connections to these servers; calls pending at others are sent again elsewhere."""
        for address in set(self._nodes) - addresses:
            await self._nodes.pop(address).close()

    def _node(self, address: Address) -> AsyncNode:
        if address not in self._nodes:
            self._nodes[address] = AsyncNode(address, self.settings)
        return self._nodes[address]

    async def _look(self) -> View:
        kind = self.settings.kind
        if kind == "cluster":
            view = await self._ask_cluster()
        else:
            address = await self._ask_sentinels() if kind == "sentinel" else self.settings.seeds[0]
            view = View(((SLOTS - 1, 0, self._node(address)),))
        await self._keep({node.address for _, _, node in view.ranges})
        self.known = view
        return view

    async def _ask_sentinels(self) -> Address:
        limits = {**self.settings.sentinel, "retry": Retry(NoBackoff(), 0)}
        sentinel = sentinel_by(Sentinel, self.settings, limits, (Plain, Tls))
        try:
            steps = primary_by(sentinel, self.settings)
            return await run_async(steps, lambda client: client.sentinel_masters(), SENTINEL_ANSWERS)
        finally:
            for client in sentinel.sentinels:
                await client.aclose()

    async def _ask_cluster(self, *first: Address) -> View:
        """Ask any server that answers; known servers before those of the URL."""

        async def ask(address: Address) -> Any:
            (slots,) = await self._node(address).ask((CLUSTER_SLOTS,))
            return slots

        known = [*first, *self._nodes, *self.settings.seeds]
        ranges = await run_async(ranges_by(known), ask, CLUSTER_ANSWERS)
        return View(tuple((last, start, self._node(primary)) for last, start, primary in ranges))
