"""From a URL to a store. Each backend is imported when its URL is first opened."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from tidegate.clock import Clock
from tidegate.errors import ConfigError
from tidegate.options import redact
from tidegate.sinks.store import Store

LATER = ("cassandra", "redis", "redis+cluster", "redis+sentinel", "rediss")
"""Schemes that are reserved for releases to come."""


def open_store(
    url: str, namespace: str, options: Mapping[str, Any] | None = None, clock: Clock | None = None
) -> Store:
    """The store that a URL names. Opens no connection and writes nothing.

    ``memory://name``: this process's memory. ``sqlite:///path``: a folder of SQLite files.
    ``options`` are the backend's own. ``clock`` is the time of leases and heartbeat where the
    backend has no clock of its own.

    ConfigError: the scheme or an option is not known, or the URL cannot be read.
    """
    scheme = url.partition(":")[0]
    if scheme in LATER:
        raise ConfigError(f"store {redact(url)}: {scheme} is not available in this release; use sqlite")
    if scheme not in OPENERS:
        raise ConfigError(f"store {redact(url)}: unknown scheme; known are {', '.join(sorted(OPENERS))}")
    opener = OPENERS[scheme]
    known = _options_of(opener)
    unknown = sorted(set(options or {}) - set(known))
    if unknown:
        there = f"there are {', '.join(known)}" if known else "it has none"
        raise ConfigError(f"store {redact(url)}: unknown option {', '.join(unknown)}; {there}")
    return opener(url, namespace, clock, **dict(options or {}))


def _options_of(opener: Callable[..., Store]) -> list[str]:
    parameters = inspect.signature(opener).parameters.values()
    return sorted(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)


def _open_memory(url: str, namespace: str, clock: Clock | None) -> Store:
    from tidegate.sinks.memory_store import MemoryStore

    split = urlsplit(url)
    return MemoryStore(unquote(split.netloc + split.path), namespace, clock)


def _open_sqlite(url: str, namespace: str, clock: Clock | None, *, timeout_s: Any = 30.0) -> Store:
    from tidegate.sinks.sqlite_store import SqliteStore

    split = urlsplit(url)
    path = unquote(split.path)
    if path.startswith("//"):  # the same folder for us, a server's name for SQLite
        path = "/" + path.lstrip("/")
    if not url.startswith("sqlite:///") or not path.strip("/") or split.query or split.fragment:
        raise ConfigError(f"store {redact(url)}: write sqlite:///absolute/path/of/a/folder")
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise ConfigError(f"store {redact(url)}: timeout_s is {timeout_s!r}; it must be a number of seconds")
    return SqliteStore(path, namespace, clock, timeout_s=timeout_s)


OPENERS: dict[str, Callable[..., Store]] = {"memory": _open_memory, "sqlite": _open_sqlite}


# -- stores shared within a process -----------------------------------------------------------


_shared: dict[tuple[Any, ...], Store] = {}
_shared_lock = threading.Lock()


def shared_store(url: str, namespace: str, options: Mapping[str, Any] | None = None) -> Store:
    """The process's one store for these arguments, opened at the first call; never close it.

    For tasks: Spark's workers run many tasks in one process, and are forked, so that what is
    shared is keyed by process id (T13): nothing opened before a fork is used after it.
    """
    key = (os.getpid(), url, namespace, repr(sorted((options or {}).items())))
    with _shared_lock:
        if key not in _shared:
            _shared[key] = open_store(url, namespace, options)
        return _shared[key]


def _after_fork() -> None:
    global _shared_lock  # noqa: PLW0603 - a thread of the parent may have held it
    _shared_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
