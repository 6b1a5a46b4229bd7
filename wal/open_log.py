"""Logs by URL. Each backend is imported only when it is requested."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tidegate.base.extras import missing
from tidegate.base.text import brief
from tidegate.base.urls import path_of, redact
from tidegate.errors import ConfigError
from tidegate.options.client_options import Form, checked, named, seconds
from tidegate.wal.log import Log

SCHEMES = {"memory": "memory://name", "file": "file:///path", "kafka": "kafka://host1:9092,host2:9092"}
"""Known schemes, each with an example."""


OWN: dict[str, dict[str, Form]] = {"memory": {}, "file": {"lock_timeout_s": seconds(most=86_400)}}
"""The options of logs without a client; a log with one checks them itself."""


def open_log(url: str, namespace: str, options: Mapping[str, Any] | None = None) -> Log:
    """Return the log at this URL for this namespace. Touches nothing yet: see ``Log.create``.

    Raises: ConfigError when the URL, the namespace or an option does not fit.
    """
    scheme = url.partition("://")[0] if "://" in url else ""
    where = f"the log {redact(url)}"
    given = named(options, where)
    if scheme in OWN:
        given = checked(given, OWN[scheme], where)
    match scheme:
        case "memory":
            return _memory(url, namespace, given)
        case "file":
            return _file(url, namespace, given)
        case "kafka":
            return _kafka(url, namespace, given)
        case _:
            msg = f"{brief(redact(url))} is not a URL of a log; known are {', '.join(SCHEMES.values())}"
            raise ConfigError(msg)


def _memory(url: str, namespace: str, _: dict[str, Any]) -> Log:
    from tidegate.wal.memory_log import MemoryLog

    return MemoryLog(url.removeprefix("memory://"), namespace)


def _file(url: str, namespace: str, options: dict[str, Any]) -> Log:
    from tidegate.wal.file.log import FileLog

    path = path_of(url)
    if path is None:
        msg = f"{brief(redact(url))} is not a log's folder: write file:/// and the absolute path, as in file:///path"
        raise ConfigError(msg)
    return FileLog(path, namespace, **options)


def _kafka(url: str, namespace: str, options: dict[str, Any]) -> Log:
    try:
        from tidegate.wal.kafka.log import KafkaLog
    except ImportError as error:
        raise missing("a log in Kafka", error) from None
    from tidegate.wal.kafka.settings import settings_of

    return KafkaLog(settings_of(url, options), namespace)


_shared: dict[tuple[object, ...], Log] = {}


def shared_log(url: str, namespace: str, uuid: str, options: Mapping[str, Any] | None = None) -> Log:
    """Return this process's one log for these arguments; for tasks, whose process may live on (T13).

    Cached by process id, so that no log made before a fork is used after it, and by the namespace's
    ``uuid``, so that no log of a dropped namespace is used for its successor. Never closed.
    """
    option_items = tuple(sorted((name, repr(value)) for name, value in (options or {}).items()))
    key = (os.getpid(), url, namespace, uuid, option_items)
    existing = _shared.get(key)
    if existing is not None:
        return existing
    made = open_log(url, namespace, options)
    # No lock, which a fork could leave held: setdefault is atomic, and the loser of a race closes its own.
    winner = _shared.setdefault(key, made)
    if winner is not made:
        made.close()
    return winner
