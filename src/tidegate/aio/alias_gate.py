"""The gate of an alias, on an event loop. ``reader/alias_gate.py`` has its control flow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tidegate.aio.gate import Gate
from tidegate.aio.in_threads import to_the_end
from tidegate.aio.spaces import SpacesGate
from tidegate.base.clock import Clock
from tidegate.base.steps import run_async
from tidegate.reader.alias_gate import AliasFlow
from tidegate.sinks.aliases import Target
from tidegate.sinks.async_store import AsyncStore


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


class AliasGate(AliasFlow, SpacesGate):
    """A ``Gate`` whose calls follow an alias; ``tidegate.aio.connect`` returns it for one.

    ``namespace`` is the one that was read last. Raises: the errors of ``Gate``; also, at every call,
    ConfigError: the alias was dropped. StoreLostError: the namespace that it names is gone.
    """

    def __init__(
        self, alias: str, store: AsyncStore, open_gate: Callable[[Target], Awaitable[Gate]], clock: Clock
    ) -> None:
        super().__init__(open_gate, clock)
        self.alias, self.where, self._store = alias, store.where, store

    def _read_alias(self) -> Awaitable[Target | None]:
        target: Awaitable[Target | None] = self._store.alias(self.alias)
        return target

    async def _close_own(self) -> None:
        await to_the_end(self._store.close())
