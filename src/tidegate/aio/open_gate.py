"""Opening a gate for asyncio: ``connect``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.aio.alias_gate import by_alias
from tidegate.aio.gate import Gate
from tidegate.aio.snapshot import Reader
from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.reader import rules
from tidegate.sinks.aliases import Target
from tidegate.sinks.open_store import open_async_store


async def connect(
    url: str, namespace: str, options: Mapping[str, Any] | None = None, *, clock: Clock | None = None
) -> Gate:
    """A gate to one namespace in the store at ``url``, for the running event loop.

    ``options`` are the store client's own, ``namespace`` may be an alias. Nothing is written. Errors as
    ``tidegate.connect``.
    """
    rules.check_url(url)
    clock = clock or Clock()
    store = open_async_store(url, namespace, options, clock)
    try:
        with one_call():
            found = await store.identity()
            if found is None and await store.alias(namespace) is not None:
                return await by_alias(namespace, store, lambda target: gate_of(url, target, options, clock))
            identity = rules.checked_identity(found, store.where, url, namespace)
        return Gate(Reader(store, identity, clock))
    except BaseException:
        await store.close()
        raise


async def gate_of(url: str, target: Target, options: Mapping[str, Any] | None, clock: Clock) -> Gate:
    """For ``AliasGate``: a gate to what an alias names. Errors as ``reader.open_gate.gate_of``."""
    store = open_async_store(url, target.namespace, options, clock)
    try:
        return Gate(Reader(store, rules.checked_target(await store.identity(), store.where, target), clock))
    except BaseException:
        await store.close()
        raise
