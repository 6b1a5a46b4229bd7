"""The gate that follows redirects, on an event loop. ``reader/redirects.py`` has its control flow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tidegate.aio.gate import Gate
from tidegate.aio.spaces import SpacesGate
from tidegate.base.clock import Clock
from tidegate.base.steps import run_async
from tidegate.reader.redirects import Follow, RedirectFlow


async def by_redirects(
    url: str, follow: Follow, open_gate: Callable[[str], Awaitable[Gate]], clock: Clock
) -> RedirectGate:
    """Return the gate, open. Raises: as ``connect``."""
    gate = RedirectGate(url, follow, open_gate, clock)
    try:
        await run_async(gate.open_steps())
    except BaseException:
        await gate.close()
        raise
    return gate


class RedirectGate(RedirectFlow, SpacesGate):
    """A ``Gate`` that continues at the successor of a removed store, for ``follow_redirects``."""

    def __init__(
        self, url: str, follow: Follow, open_gate: Callable[[str], Awaitable[Gate]], clock: Clock
    ) -> None:
        super().__init__(self._opened, clock)
        self._begin(url, follow)
        self._connect = open_gate

    async def _opened(self, place: str) -> Gate:
        gate = await self._connect(self._url_of(place))
        try:
            self._check_same(gate)
        except BaseException:
            await gate.close()
            raise
        return gate
