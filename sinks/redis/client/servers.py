"""Which server holds which key, and connections to them. One class per way to run Redis.

Connections are kept per server and process: what was opened before a fork is not used after it
(T13). An idle one that the server has closed meanwhile is noticed when it is used, and opened anew.
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
    """The answer to CLUSTER SLOTS: last slot, first slot and primary of each range, in order.

    A server that does not know its own address is where it was asked.
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
    """Which of the ranges has the slot. redis.ClusterDownError: none has."""
    at = bisect.bisect_left(ranges, slot, key=lambda each: each[0])
    if at == len(ranges) or ranges[at][1] > slot:
        raise exceptions.ClusterDownError(f"slot {slot} has no server")
    return at


def no_cluster(address: Address) -> ConfigError:
    """The error for a server that stands alone."""
    return ConfigError(f"{address} is no Cluster: write redis://{address}")


def within(left_s: float, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a connection, which waits no longer than this at a time."""
    limits = ("socket_timeout", "socket_connect_timeout")
    return {**settings, **{name: min(settings[name], left_s) for name in limits}}


def without_words(error: redis.RedisError, settings: RedisSettings) -> redis.RedisError:
    """The error of a server that refuses a login, without the words that it quotes: the password is one.

    Redis quotes them in one way. A proxy, or what is no Redis at all, may repeat them in any other.
    """
    said, _, _ = str(error).partition(", with args beginning with")
    said = hide_forms(said, settings.secrets)
    return error if said == str(error) else type(error)(said)


def _limit(connection: Any, limit_s: float) -> None:
    socket = connection._sock  # noqa: SLF001 - not every release of redis-py has another way
    if socket is not None and socket.gettimeout() != limit_s:
        socket.settimeout(limit_s)


class Node:
    """One server: connections to it, and what was learned about it.

    ``server_id`` is the replication id it last gave and that was found listed; ``ready`` says
    that it has our functions. Both are hints: the server refuses when they are wrong. ``answer_s`` is
    the shortest time that it took for an answer, so hardly more than the way there and back; 0: none yet.
    """

    def __init__(self, address: Address, settings: RedisSettings) -> None:
        self.address = address
        self.server_id = b""
        self.ready = False
        self.answer_s = 0.0
        self._settings = settings
        self._idle: collections.deque[tuple[int, Any]] = collections.deque()

    def take(self) -> tuple[Any, bool]:
        """A connection for the caller alone, and whether it was used before. redis.TimeoutError: the call
        is over.
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
        """What is sent and read next is waited for no longer than is left of the call. redis.TimeoutError:
        nothing is.
        """
        _limit(connection, min(self._settings.connection["socket_timeout"], self._left()))

    def answered(self, after_s: float) -> None:
        """Note how long an answer took that nothing waited in front of."""
        self.answer_s = min(self.answer_s or after_s, after_s)

    def _left(self) -> float:
        left_s = left_of(self._settings.timeout_s)
        if left_s <= 0:
            raise redis.TimeoutError(f"no time was left to ask {self.address}")
        return left_s

    def give(self, connection: Any) -> None:
        """Keep it for the next one. Only with no reply outstanding."""
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
    """The primaries there are, as last looked at. May be used by several threads."""

    def __init__(self, settings: RedisSettings) -> None:
        self.settings = settings
        self.looks = 0
        """Goes up whenever the primaries are found to be others, or to have other slots."""
        self._nodes: dict[Address, Node] = {}
        self._lock = forks.Lock()

    @abc.abstractmethod
    def node_of(self, key: bytes) -> Node:
        """The primary that holds the key. redis.RedisError: it cannot be found now."""

    @abc.abstractmethod
    def primaries(self) -> list[Node]:
        """All primaries that hold keys, by address."""

    @abc.abstractmethod
    def refresh(self) -> None:
        """Forget what was looked at: it is looked at again when next needed."""

    def look_from(self, node: Node) -> None:
        """Look at the primaries now, as this one sees them. redis.RedisError, OSError: they cannot be."""
        self.refresh()

    def node_at(self, address: Address) -> Node:
        """The one node of this address."""
        with self._lock:
            return self._nodes.setdefault(address, Node(address, self.settings))

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
    """What it means that a Sentinel answered with an error."""
    if "unknown command" not in str(error).lower():
        return without_words(error, settings)
    hosts = ",".join(str(seed) for seed in settings.seeds)
    return ConfigError(f"{hosts}: this is no Sentinel; write redis://{settings.seeds[0]} for a single server")


def primary_among(masters: Mapping[str, Any], sentinel: Any, settings: RedisSettings) -> Address | None:
    """The primary of the URL's name among those that a Sentinel knows; None: it knows none that is up."""
    state = masters.get(settings.master)
    if state is None or not sentinel.check_master_state(state, settings.master):
        return None
    return Address(state["ip"], int(state["port"]))


def no_primary(settings: RedisSettings, failed: Sequence[str]) -> redis.ConnectionError:
    """The error of Sentinels that do not answer or know no primary. Not redis-py's own: most of its releases
    put every argument of the client into it, its password too.
    """
    return redis.ConnectionError(
        f"no Sentinel knows a primary {settings.master!r} that is up{': ' * bool(failed)}{'; '.join(failed)}"
    )


class SentinelServers(Servers):
    """Whichever server the Sentinels call the primary."""

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(settings)
        self._primary: Node | None = None

    def node_of(self, key: bytes) -> Node:
        primary = self._primary
        if primary is None:
            seeds = [tuple(seed) for seed in self.settings.seeds]
            make: Any = Sentinel  # it comes without types
            left_s = max(left_of(self.settings.timeout_s) / len(seeds), LEAST_S)
            # One that is silent is asked once: the next one may answer. Its client would try again and again.
            once = {"retry": Retry(NoBackoff(), 0)}
            sentinel = make(seeds, sentinel_kwargs={**within(left_s, self.settings.sentinel), **once})
            try:
                primary = self._primary = self.node_at(self._ask(sentinel))
            finally:
                for client in sentinel.sentinels:
                    client.close()
        return primary

    def _ask(self, sentinel: Any) -> Address:
        """The primary by the first Sentinel that knows one."""
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
        """Ask any server that answers; those known before the ones of the URL."""
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
    """The servers that the settings mean. Connects to nothing."""
    kinds: dict[str, type[Servers]] = {
        "one": OneServer,
        "sentinel": SentinelServers,
        "cluster": ClusterServers,
    }
    return kinds[settings.kind](settings)
