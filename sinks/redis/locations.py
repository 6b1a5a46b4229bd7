"""Locations of tasks, kept in Redis beside a namespace's pointer: a hash that ``drop`` removes with the rest.

It has the methods of ``tidegate.spark.placement.locality.MetadataStore``: a driver that starts on
another host thereby knows the locations of the caches. No guarantee rests on it: it is a plain hash
without versions.
"""

from __future__ import annotations

from typing import Any

from tidegate.base.names import check_name
from tidegate.base.urls import redact
from tidegate.sinks.redis.client.calls import Calls
from tidegate.sinks.redis.client.replies import plain
from tidegate.sinks.redis.client.servers import servers_of
from tidegate.sinks.redis.client.settings import settings_of
from tidegate.sinks.redis.keys import beside


class RedisMetadataStore:
    """A few values by key, on the server that holds the namespace's pointer.

    ``url`` and ``options`` as for a store. Opens no connection before the first call. Repeatable:
    every call. Raises: StoreUnavailableError: no answer within ``timeout_s``. ConfigError: the
    server refuses this user.
    """

    def __init__(self, url: str, namespace: str, **options: Any) -> None:
        self._key = beside(check_name("namespace", namespace), "locality")
        self._url = url
        servers = servers_of(settings_of(url, options))
        self._calls = Calls(servers, f"locality of {namespace} in {redact(url)}", lambda _: True, frozenset)

    def __repr__(self) -> str:
        return f"RedisMetadataStore({redact(self._url)!r})"

    def put(self, key: bytes, value: bytes) -> None:
        self._call(b"HSET", key, value)

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._call(b"HGET", key)
        return value

    def remove(self, key: bytes) -> None:
        self._call(b"HDEL", key)

    def all(self) -> dict[bytes, bytes]:
        reply = self._call(b"HGETALL")
        if isinstance(reply, dict):
            return reply
        return dict(zip(reply[::2], reply[1::2], strict=True))

    def close(self) -> None:
        """Close the connections. The instance may be used again."""
        self._calls.servers.close()

    def _call(self, command: bytes, *arguments: bytes) -> Any:
        return self._calls.run([plain(self._key, command, self._key, *arguments)])[0]
