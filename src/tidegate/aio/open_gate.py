"""The entry to the reader on an event loop: ``connect``, which returns a gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.aio.alias_gate import by_alias
from tidegate.aio.gate import Gate
from tidegate.aio.redirects import by_redirects
from tidegate.aio.snapshot import AsyncReader
from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.reader import rules
from tidegate.sinks.aliases import Target
from tidegate.sinks.open_store import open_async_store


async def connect(
    url: str,
    namespace: str,
    options: Mapping[str, Any] | None = None,
    *,
    follow_redirects: bool = False,
    clock: Clock | None = None,
) -> Gate:
    """Open a gate to one namespace in the store at ``url``, for the running event loop.

    ``options`` are the store client's own, ``namespace`` may be an alias. Nothing is written. Raises: as
    ``tidegate.connect``.
    """
    rules.check_url(url)
    clock = clock or Clock()
    if follow_redirects:
        return await by_redirects(url, lambda at: connect(at, namespace, options, clock=clock), clock)
    store = open_async_store(url, namespace, options, clock)
    try:
        with one_call():
            identity = await store.identity()
            if identity is None and await store.alias(namespace) is not None:
                return await by_alias(
                    namespace, store, lambda target: gate_of(url, target, options, clock), clock
                )
            identity = rules.checked_identity(identity, url, namespace)
        return Gate(AsyncReader(store, identity, clock))
    except BaseException:
        await store.close()
        raise


async def gate_of(url: str, target: Target, options: Mapping[str, Any] | None, clock: Clock) -> Gate:
    """Open a gate to an alias's target, for ``AliasGate``. Raises: as ``reader.open_gate.gate_of``."""
    store = open_async_store(url, target.namespace, options, clock)
    try:
        identity = rules.checked_target(await store.identity(), store.where, target)
        return Gate(AsyncReader(store, identity, clock))
    except BaseException:
        await store.close()
        raise
