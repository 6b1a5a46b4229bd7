"""Opening a store by its URL. Each backend is imported when its URL is first opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tidegate.base import forks
from tidegate.base.clock import Clock
from tidegate.base.extras import missing
from tidegate.base.text import brief
from tidegate.base.urls import path_of, redact, scheme_of
from tidegate.errors import ConfigError
from tidegate.options.client_options import SECONDS_OR_0, Form, checked, named
from tidegate.sinks.rules.reads import lost
from tidegate.sinks.store import Store

if TYPE_CHECKING:  # asyncio is half of the time of a reader's first call
    from tidegate.sinks.async_store import AsyncStore


def open_store(
    url: str, namespace: str, options: Mapping[str, Any] | None = None, clock: Clock | None = None
) -> Store:
    """Build the store that a URL names. It opens no connection and writes nothing.

    ``memory://name``: this process's memory. ``sqlite:///path``: a folder of SQLite files.
    ``redis://host:port/db`` and its kin: ``sinks/redis/client/settings.py``. ``cassandra://hosts/keyspace``:
    ``sinks/cassandra/client/settings.py``.
    ``options`` are the backend's own. ``clock`` is the time of leases and heartbeat if the
    backend has no clock of its own. Raises: ConfigError: the scheme or an option is unknown, or the URL
    cannot be parsed.
    """
    scheme = scheme_of(url)
    if scheme not in OPENERS:
        folder = "; a folder is sqlite:// and its absolute path" if url.startswith("/") else ""
        raise ConfigError(f"store {brief(redact(url))}: unknown scheme; known are {', '.join(KNOWN)}{folder}")
    where = f"store {redact(url)}"
    given = named(options, where)
    if scheme in OWN:
        given = checked(given, OWN[scheme], where)
    return OPENERS[scheme](url, namespace, clock, **given)


def open_async_store(
    url: str, namespace: str, options: Mapping[str, Any] | None, clock: Clock | None
) -> AsyncStore:
    """Build the store that a URL names, for the running event loop. Raises: as ``open_store``."""
    from tidegate.sinks.async_store import ThreadedStore

    store = open_store(url, namespace, options, clock)
    if url.partition(":")[0] not in REDIS:
        return ThreadedStore(store)
    from tidegate.sinks.redis.async_store import AsyncRedisStore

    return AsyncRedisStore(url, namespace, named(options, f"store {redact(url)}"))


def _open_memory(url: str, namespace: str, clock: Clock | None) -> Store:
    from tidegate.sinks.memory.store import MemoryStore

    return MemoryStore(unquote(url.removeprefix("memory://")), namespace, clock)


def _open_sqlite(url: str, namespace: str, clock: Clock | None, *, timeout_s: float = 30.0) -> Store:
    from tidegate.sinks.sqlite.store import SqliteStore

    path = path_of(url)
    if path is None or not path.strip("/"):
        raise ConfigError(f"store {redact(url)}: write sqlite:///absolute/path/of/a/folder")
    path = "/" + path.lstrip("/")  # two slashes: the same folder for us, a server's name for SQLite
    return SqliteStore(path, namespace, clock, timeout_s=timeout_s)


def _open_redis(url: str, namespace: str, _clock: Clock | None, **options: Any) -> Store:
    try:
        from tidegate.sinks.redis.store import RedisStore
    except ModuleNotFoundError as error:
        raise missing(f"store {redact(url)}", error) from error
    return RedisStore(url, namespace, **options)


def _open_cassandra(url: str, namespace: str, _: Clock | None, **options: Any) -> Store:
    try:
        from tidegate.sinks.cassandra.store import CassandraStore
    except ModuleNotFoundError as error:
        raise missing(f"store {redact(url)}", error) from error
    return CassandraStore(url, namespace, **options)


REDIS = ("redis", "rediss", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
KNOWN = (
    *("sqlite:///path", "redis://host:port (rediss, redis+sentinel, redis+cluster, ...)"),
    *("cassandra://host1,host2/keyspace", "memory://name"),
)
"""An example of each known URL."""
OWN: dict[str, dict[str, Form]] = {"memory": {}, "sqlite": {"timeout_s": SECONDS_OR_0}}
"""The options of stores without a client; a store with one checks them itself."""
OPENERS: dict[str, Callable[..., Store]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
    "cassandra": _open_cassandra,
    **dict.fromkeys(REDIS, _open_redis),
}


# -- stores shared within a process -----------------------------------------------------------


_shared: dict[tuple[Any, ...], Store] = {}
_shared_lock = forks.Lock()


def shared_store(url: str, namespace: str, uuid: str, options: Mapping[str, Any] | None = None) -> Store:
    """Return the process's one store for these arguments, opened at the first call; never close it.

    It is for tasks: Spark's workers run many tasks in one process, and are forked, so shared stores are keyed
    by process id (T13): a store opened before a fork is not used after it. A namespace that was dropped and
    created again under the same name has another ``uuid``, so its old store is not used either. Raises:
    ConfigError: the store contains another namespace than that one. StoreLostError: it has lost that one.
    """
    key = (os.getpid(), url, namespace, uuid, repr(sorted((options or {}).items())))
    with _shared_lock:
        if key not in _shared:
            _shared[key] = _checked(open_store(url, namespace, options), uuid)
        return _shared[key]


def _checked(store: Store, uuid: str) -> Store:
    identity = store.identity()
    if identity is None or identity.uuid != uuid:
        store.close()
        if identity is None:
            raise lost(store.where)
        raise ConfigError(
            f"{store.where}: this task is for namespace {uuid}, and the store has namespace {identity.uuid}"
        )
    return store
