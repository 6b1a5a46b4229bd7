"""The entry to the reader on an event loop: ``connect``, which returns a gate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tidegate.aio.alias_gate import by_alias
from tidegate.aio.gate import Gate
from tidegate.aio.mirror import Mirror
from tidegate.aio.redirects import by_redirects
from tidegate.aio.snapshot import AsyncReader
from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.reader import rules
from tidegate.reader.mirror.mirror import PathLike, Switched
from tidegate.reader.open_gate import connect as connect_in_threads
from tidegate.reader.open_gate import late_gate
from tidegate.reader.redirects import Follow
from tidegate.sinks.aliases import Target
from tidegate.sinks.open_store import open_async_store


async def connect(
    url: str,
    namespace: str,
    options: Mapping[str, Any] | None = None,
    *,
    wal: str | None = None,
    wal_options: Mapping[str, Any] | None = None,
    follow_redirects: Follow = False,
    clock: Clock | None = None,
) -> Gate:
    """Open a gate to one namespace in the store at ``url``, for the running event loop.

    ``options`` are the store client's own, ``namespace`` may be an alias. ``wal``: the URL of the namespace's
    log, which only ``Gate.changes`` reads. Nothing is written. Raises: as ``tidegate.connect``.
    """
    rules.check_url(url)
    if wal is not None:
        rules.check_url(wal, "log", "file:///path")
    clock = clock or Clock()
    if follow_redirects is not False:
        gate: Gate = await by_redirects(
            url, follow_redirects, lambda location: connect(location, namespace, options, clock=clock), clock
        )
    else:
        gate = await _connect(url, namespace, options, clock)
    gate.read_in_threads(
        lambda: connect_in_threads(
            url,
            namespace,
            options,
            wal=wal,
            wal_options=wal_options,
            follow_redirects=follow_redirects,
            clock=clock,
        )
    )
    return gate


def connect_mirror(
    url: str,
    namespace: str,
    tables: Iterable[str],
    options: Mapping[str, Any] | None = None,
    *,
    path: PathLike,
    bytes_max: int | None = None,
    on_version: Switched | None = None,
    follow_redirects: Follow = False,
) -> Mirror:
    """Open a mirror in a file, as ``tidegate.connect_mirror``: by ``async with``, or by ``await``."""
    return Mirror(
        lambda: late_gate(url, namespace, options, follow_redirects=follow_redirects),
        *(tables, on_version),
        path=path,
        bytes_max=bytes_max,
        owns_gate=True,
    )


async def _connect(url: str, namespace: str, options: Mapping[str, Any] | None, clock: Clock) -> Gate:
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
