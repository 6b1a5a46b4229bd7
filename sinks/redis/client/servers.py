"""Discovery of the server that holds a key, and connections. One class per way to run Redis.

Connections are pooled per server and process: one opened before a fork is not used after it (T13).
An idle one that the server has closed meanwhile fails on use, and another is opened.
"""

from __future__ import annotations

import abc
import bisect
import collections
import os
from collections.abc import Mapping, Sequence
from typing import Any

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.retry import Retry
from redis.sentinel import Sentinel

from tidegate.base import forks
from tidegate.base.deadline import left_of
from tidegate.base.urls import Address, hide_forms
from tidegate.errors import ConfigError
from tidegate.sinks.redis.client.settings import RedisSettings
from tidegate.sinks.redis.keys import slot_of

IDLE_MAX = 64
LEAST_S = 0.001


def slot_ranges(slots: list[Any], asked: Address) -> list[tuple[int, int, Address]]:
    """Decode the reply to CLUSTER SLOTS: last slot, first slot and primary of each range, in order.

    A server that does not know its own address has the address that was asked.
    """
    return sorted(
        (
            int(last),
            int(first),
            Address(primary[0].decode() if primary[0] else asked.host, int(primary[1])),
        )
        for first, last, primary, *_ in slots
    )


def place_of(slot: int, ranges: Sequence[tuple[int, int, Any]]) -> int:
    """Return the index of the range with the slot. Raises: redis.ClusterDownError, none has it."""
    at = bisect.bisect_left(ranges, slot, key=lambda each: each[0])
    if at == len(ranges) or ranges[at][1] > slot:
        raise exceptions.ClusterDownError(f"slot {slot} has no server")
    return at


def no_cluster(address: Address) -> ConfigError:
    """Return the error for a server that is not in a Cluster."""
    return ConfigError(f"{address} is no Cluster: write redis://{address}")


def within(left_s: float, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a connection with no time-out longer than ``left_s``."""
    limits = ("socket_timeout", "socket_connect_timeout")
    return {**settings, **{name: min(settings[name], left_s) for name in limits}}


def without_words(error: redis.RedisError, settings: RedisSettings) -> redis.RedisError:
    """Return the error of a refused login, without the words that it quotes: the password is one.

    Redis quotes them in one way. A proxy, or a server that is no Redis at all, may repeat them in
    any other.
    """
    said, _, _ = str(error).partition(", with args beginning with")
    said = hide_forms(said, settings.secrets)
    return error if said == str(error) else type(error)(said)


def _limit(connection: Any, limit_s: float) -> None:
    socket = connection._sock  # noqa: SLF001 - redis-py has no other way in all its releases
    if socket is not None and socket.gettimeout() != limit_s:
        socket.settimeout(limit_s)


class Node:
    """One server: connections to it, and what was learned about it.

    ``server_id`` is the replication id it last gave and that was found listed; ``ready`` means that
    it has the functions. Both are hints: the server refuses when they are wrong. ``answer_s`` is
    the shortest time of any answer, so hardly more than the round trip; 0: none yet.
    """

    def __init__(self, address: Address, settings: RedisSettings) -> None:
        self.address = address
        self.server_id = b""
        self.ready = False
        self.answer_s = 0.0
        self._settings = settings
        self._idle: collections.deque[tuple[int, Any]] = collections.deque()

    def take(self) -> tuple[Any, bool]:
        """Return a connection for exclusive use, and whether it was used before.

        Raises: redis.TimeoutError, the call's deadline has passed.
        """
        left_s = self._left()
        while self._idle:
            try:
                pid, connection = self._idle.pop()
            except IndexError:  # another thread took the last one
                break
            if pid == os.getpid():
                _limit(connection, min(self._settings.connection["socket_timeout"], left_s))
                return connection, True
        kind: Any = SSLConnection if self._settings.tls else Connection
        connection = kind(
            host=self.address.host,
            port=self.address.port,
            protocol=2,
            **within(left_s, self._settings.connection),
        )
        refused = None
        try:
            connection.connect()
        except (redis.ResponseError, redis.AuthenticationError) as error:
            refused = without_words(error, self._settings)
        if refused is not None:  # raised here, so that it has no context
            raise refused
        return connection, False

    def limit(self, connection: Any) -> None:
        """Limit the next send and read to the rest of the call's time.

        Raises: redis.TimeoutError, the deadline has passed.
        """
        _limit(connection, min(self._settings.connection["socket_timeout"], self._left()))

    def answered(self, after_s: float) -> None:
        """Note the time of an answer to a request that nothing was queued before."""
        self.answer_s = min(self.answer_s or after_s, after_s)

    def _left(self) -> float:
        left_s = left_of(self._settings.timeout_s)
        if left_s <= 0:
            raise redis.TimeoutError(f"no time was left to ask {self.address}")
        return left_s

    def give(self, connection: Any) -> None:
        """Return a connection to the pool. It must have no reply outstanding."""
        if len(self._idle) < IDLE_MAX:
            self._idle.append((os.getpid(), connection))
        else:
            connection.disconnect()

    def close(self) -> None:
        while self._idle:
            pid, connection = self._idle.pop()
            if pid == os.getpid():
                connection.disconnect()


class Servers(abc.ABC):
    """The primaries of the last look-up. May be used by several threads."""

    def __init__(self, settings: RedisSettings) -> None:
        self.settings = settings
        self.looks = 0
        """Increases whenever a look-up finds other primaries, or other slots."""
        self._nodes: dict[Address, Node] = {}
        self._lock = forks.Lock()

    @abc.abstractmethod
    def node_of(self, key: bytes) -> Node:
        """Return the primary that holds the key. Raises: redis.RedisError, it cannot be found now."""

    @abc.abstractmethod
    def primaries(self) -> list[Node]:
        """Return all primaries that hold keys, by address."""

    @abc.abstractmethod
    def refresh(self) -> None:
        """Discard the last look-up: the next use looks up again."""

    def look_from(self, node: Node) -> None:
        """Look up the primaries now, as this one sees them. Raises: redis.RedisError, OSError, it fails."""
        self.refresh()

    def node_at(self, address: Address) -> Node:
        """Return the one node of this address."""
        node = self._nodes.get(address)
        if node is None:
            with self._lock:
                node = self._nodes.setdefault(address, Node(address, self.settings))
        return node

    def close(self) -> None:
        with self._lock:
            for node in self._nodes.values():
                node.close()


class OneServer(Servers):
    """A single server that never changes its address."""

    def node_of(self, key: bytes) -> Node:
        return self.node_at(self.settings.seeds[0])

    def primaries(self) -> list[Node]:
        return [self.node_at(self.settings.seeds[0])]

    def refresh(self) -> None:
        pass


def refused_by_sentinel(settings: RedisSettings, error: redis.ResponseError) -> Exception:
    """Return the error for a Sentinel that answered with an error."""
    if "unknown command" not in str(error).lower():
        return without_words(error, settings)
    hosts = ",".join(str(seed) for seed in settings.seeds)
    return ConfigError(f"{hosts}: this is no Sentinel; write redis://{settings.seeds[0]} for a single server")


def primary_among(masters: Mapping[str, Any], sentinel: Any, settings: RedisSettings) -> Address | None:
    """Return the URL's primary among those that a Sentinel knows; None: none is up."""
    state = masters.get(settings.master)
    if state is None or not sentinel.check_master_state(state, settings.master):
        return None
    return Address(state["ip"], int(state["port"]))


def no_primary(settings: RedisSettings, failed: Sequence[str]) -> redis.ConnectionError:
    """Return the error for Sentinels that do not answer or know no primary.

    Not redis-py's own error: most of its releases put every argument of the client into it, its
    password too.
    """
    return redis.ConnectionError(
        f"no Sentinel knows a primary {settings.master!r} that is up{': ' * bool(failed)}{'; '.join(failed)}"
    )


class SentinelServers(Servers):
    """The server that the Sentinels name as the primary."""

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(settings)
        self._primary: Node | None = None

    def node_of(self, key: bytes) -> Node:
        primary = self._primary
        if primary is None:
            seeds = [tuple(seed) for seed in self.settings.seeds]
            make: Any = Sentinel  # it has no type information
            left_s = max(left_of(self.settings.timeout_s) / len(seeds), LEAST_S)
            # One attempt per Sentinel: the next one may answer. Its client would retry the same one.
            once = {"retry": Retry(NoBackoff(), 0)}
            sentinel = make(seeds, sentinel_kwargs={**within(left_s, self.settings.sentinel), **once})
            try:
                primary = self._primary = self.node_at(self._ask(sentinel))
            finally:
                for client in sentinel.sentinels:
                    client.close()
        return primary

    def _ask(self, sentinel: Any) -> Address:
        """Return the primary according to the first Sentinel that knows one."""
        failed = []
        for seed, client in zip(self.settings.seeds, sentinel.sentinels, strict=True):
            try:
                found: Address | Exception | None = primary_among(
                    client.sentinel_masters(), sentinel, self.settings
                )
            except (redis.ConnectionError, redis.TimeoutError) as error:
                failed.append(f"{seed}: {without_words(error, self.settings)}")
                continue
            except redis.ResponseError as error:
                found = refused_by_sentinel(self.settings, error)
            if isinstance(found, Exception):  # raised here, so that it has no context
                raise found
            if found is not None:
                return found
        raise no_primary(self.settings, failed)

    def primaries(self) -> list[Node]:
        return [self.node_of(b"")]

    def refresh(self) -> None:
        self._primary = None


class ClusterServers(Servers):
    """A Cluster: slots in ranges, each with its primary."""

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(settings)
        self._ranges: list[tuple[int, int, Node]] | None = None
        self._last_seen: list[tuple[int, int, Node]] = []

    def node_of(self, key: bytes) -> Node:
        ranges = self._ranges or self._look()
        return ranges[place_of(slot_of(key), ranges)][2]

    def primaries(self) -> list[Node]:
        nodes = {node.address: node for _, _, node in self._ranges or self._look()}
        return [nodes[address] for address in sorted(nodes)]

    def refresh(self) -> None:
        self._ranges = None

    def look_from(self, node: Node) -> None:
        self._look(node.address)

    def _look(self, *first: Address) -> list[tuple[int, int, Node]]:
        """Ask any server that answers; known servers before those of the URL."""
        error: Exception | None = None
        with self._lock:
            known = [*first, *self._nodes, *self.settings.seeds]
        for address in dict.fromkeys(known):
            node = self.node_at(address)
            try:
                connection, _ = node.take()
                connection.send_command("CLUSTER", "SLOTS")
                slots = connection.read_response()
            except redis.ResponseError as refused:
                if "cluster support disabled" in str(refused):
                    raise no_cluster(address) from None
                error = refused
            except (redis.RedisError, OSError) as failed:
                error = failed
            else:
                node.give(connection)
                found = [
                    (last, first, self.node_at(primary))
                    for last, first, primary in slot_ranges(slots, address)
                ]
                self.looks += found != self._last_seen
                self._ranges = self._last_seen = found
                return found
        raise redis.ConnectionError(f"no server of the Cluster answered: {error}")


def servers_of(settings: RedisSettings) -> Servers:
    """Return the servers of the settings. Connects to nothing."""
    kinds: dict[str, type[Servers]] = {
        "one": OneServer,
        "sentinel": SentinelServers,
        "cluster": ClusterServers,
    }
    return kinds[settings.kind](settings)
