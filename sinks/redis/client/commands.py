"""Commands to Redis servers, one at a time: to the server of a key, or to every primary; and repeated tries.

``calls.py`` has the calls of many keys, pipelined by server.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import redis
import tenacity

from tidegate.base.deadline import end_of, over_at
from tidegate.sinks.redis.client.replies import (
    DENIED,
    LOST,
    Cause,
    RetryLater,
    denied,
    no_answer,
    pack,
    passes,
    plain,
    refused_command,
    why_not_found,
)
from tidegate.sinks.redis.client.servers import Node, Servers
from tidegate.sinks.redis.client.shapes import SHAPES, fits, wrong_reply

Result = TypeVar("Result")


class Commands:
    """A sender of commands on pooled connections. May be used by several threads."""

    def __init__(self, servers: Servers, where: str) -> None:
        self.servers, self.where = servers, where

    def retrying(self) -> Iterator[tenacity.AttemptManager]:
        """Yield attempts until one does not raise RetryLater.

        Raises: StoreUnavailableError: none succeeded within ``timeout_s`` of the start of the call
        (``deadline.py``).
        """
        timeout_s, cause = self.servers.settings.timeout_s, Cause()
        try:
            yield from tenacity.Retrying(
                after=cause,
                retry=tenacity.retry_if_exception_type(RetryLater),
                wait=tenacity.wait_exponential(multiplier=0.005, max=0.25),
                stop=over_at(end_of(timeout_s)),
                reraise=True,
            )
        except RetryLater as later:
            own = self.servers.settings.connection.get("ssl_certfile")
            known = self.servers.has_answered
            raise no_answer(self.where, timeout_s, cause.of(later), own, has_answered=known) from later

    def node_of(self, key: bytes) -> Node:
        """Return the server that holds the key. Raises: StoreUnavailableError: not found within
        ``timeout_s``.
        """
        for attempt in self.retrying():
            with attempt:
                try:
                    return self.servers.node_of(key)
                except (redis.RedisError, OSError) as error:
                    why_not_found(self.where, error)
                    raise self._later(error) from error
        raise AssertionError

    def _later(self, error: Exception) -> RetryLater:
        """Return the reason to try again, after the servers are looked up again."""
        self.servers.refresh()
        return RetryLater(str(error) or type(error).__name__)

    def on_each_primary(self, work: Callable[[Node], Result]) -> dict[str, Result]:
        """Return the result of ``work``, which must be repeatable, for every primary, by address."""
        for attempt in self.retrying():
            with attempt:
                address: object = None
                try:
                    results = {}
                    for node in self.servers.primaries():
                        address = node.address
                        results[str(node.address)] = work(node)
                    return results
                except DENIED as error:
                    raise denied(self.where, error) from error
                except LOST as error:
                    raise self._later(error) from error
                except redis.ResponseError as error:
                    if not passes(error):
                        raise refused_command(self.where, address, error) from error
                    raise self._later(error) from error
        raise AssertionError

    def each_primary(self, parts: tuple[bytes, ...]) -> list[Any]:
        """Return the reply of every primary to one repeatable command."""
        return list(self.on_each_primary(lambda node: self.at(node, parts)).values())

    def each_primary_once(self, parts: tuple[bytes, ...]) -> list[Any]:
        """Return the reply of every primary to one repeatable command; None where one does not answer now."""
        replies: list[Any] = []
        for node in self.servers.primaries():
            replies.append(None)
            for _ in range(2):  # an idle connection may have been closed
                try:
                    replies[-1] = self.at(node, parts)
                    break
                except LOST:
                    pass
                except DENIED as error:
                    raise denied(self.where, error) from error
                except redis.ResponseError as error:
                    if not passes(error):
                        raise refused_command(self.where, node.address, error) from error
        return replies

    def each_primary_scan(self, pattern: str) -> list[Any]:
        """Return the keys that match the pattern, of all primaries."""

        def scanned(node: Node) -> list[Any]:
            keys, cursor = [], b""
            while cursor != b"0":
                scan = (b"SCAN", cursor or b"0", b"MATCH", pattern.encode(), b"COUNT", b"1000")
                cursor, page = self.at(node, scan)
                keys += page
            return keys

        return list(itertools.chain.from_iterable(self.on_each_primary(scanned).values()))

    @staticmethod
    def at(node: Node, parts: tuple[bytes, ...]) -> Any:
        """Return the reply of one server to one command, tried once. Raises: redis.RedisError, OSError."""
        (reply,) = node.ask((pack(parts),))
        if isinstance(reply, Exception):
            raise reply
        call = plain(b"", *parts)
        if parts[0].decode() in SHAPES and not fits(call, reply):
            node.close()  # its other connections are of the same server, or proxy
            raise wrong_reply(call)
        return reply
