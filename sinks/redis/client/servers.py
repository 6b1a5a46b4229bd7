"""Discovery of the server that holds a key, and connections. One class per way to run Redis.

Connections are pooled per server and process: one opened before a fork is not used after it (T13).
An idle one that the server has closed meanwhile fails on use, and another is opened.
"""

from __future__ import annotations

import abc
import collections
import math
import os
import select
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from time import monotonic
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.retry import Retry
from redis.sentinel import Sentinel

from tidegate.base import forks
from tidegate.base.deadline import left_of
from tidegate.base.urls import Address
from tidegate.sinks.redis.client.replies import DENIED, LOST, NO_TIME_LEFT
from tidegate.sinks.redis.client.settings import RedisSettings, without_words
from tidegate.sinks.redis.client.shapes import no_reply
from tidegate.sinks.redis.client.steps import (
    CLUSTER_ANSWERS,
    CLUSTER_SLOTS,
    SENTINEL_ANSWERS,
    place_of,
    primary_by,
    ranges_by,
    run,
    sentinel_by,
)
from tidegate.sinks.redis.keys import slot_of

IDLE_MAX = 64
AGE_MAX_S = 15.0
"""The age at which a connection is not used again: its name may lead to another server by now, while the
old one still answers. A reader follows a name within this time."""
LEAST_S = 0.001


def within(left_s: float, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a connection with no time-out longer than ``left_s``."""
    limits = ("socket_timeout", "socket_connect_timeout")
    return {**settings, **{name: min(settings[name], left_s) for name in limits}}


def _limit(connection: Any, limit_s: float) -> None:
    socket = connection._sock  # noqa: SLF001 - redis-py has no other way in all its releases
    if socket is not None:
        socket.limit(limit_s)


class LimitedSocket:
    """A socket whose sends and reads together end in time: its own time-out begins again with each byte."""

    def __init__(self, socket: Any, limit_s: float) -> None:
        self._socket, self._timeout_s = socket, -1.0
        self.limit(limit_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def limit(self, limit_s: float) -> None:
        """Begin the time of the next sends and reads."""
        self._ends = monotonic() + limit_s
        if self._timeout_s != limit_s:
            self.settimeout(limit_s)

    def settimeout(self, timeout_s: float | None) -> None:
        self._socket.settimeout(timeout_s)
        self._timeout_s = math.inf if timeout_s is None else timeout_s

    def recv_into(self, *given: Any) -> Any:
        self._check()
        return self._socket.recv_into(*given)

    def recv(self, *given: Any) -> Any:  # of a parser without hiredis
        self._check()
        return self._socket.recv(*given)

    def sendall(self, *given: Any) -> None:
        self._check()
        self._socket.sendall(*given)

    def _check(self) -> None:
        """Shorten the time-out once a tenth of it has passed. Raises: TimeoutError: no time is left."""
        left_s = self._ends - monotonic()
        if left_s < 0.9 * self._timeout_s:
            if left_s <= 0:
                raise TimeoutError("timed out")
            self.settimeout(left_s)


class Idle(collections.deque[Any]):
    """Idle connections to one server with one set of settings, shared by all namespaces of the process.

    Each is ``Opened``. ``since``: those opened before are not used again. ``users``: the ``id`` of its nodes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.since = -math.inf
        self.users: set[int] = set()

    def is_usable(self, connection: Any) -> bool:
        """Whether a connection may take another request: of this process, young, and not dropped."""
        oldest = max(self.since, monotonic() - AGE_MAX_S)
        return bool(connection.opened_by == os.getpid() and connection.opened_at >= oldest)


def send_no_name(connection: Any) -> None:
    """Make a connection send no CLIENT SETINFO.

    redis-py ignores the replies to it: the server's last words may be among them.
    """
    connection.driver_info = connection.lib_name = connection.lib_version = None


def readable(socket: Any) -> Callable[[], bool]:
    """Return a function for whether a socket can be read: data, or its end, has arrived."""
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN)
    return lambda: bool(poll.poll(0))


class Opened:
    """A mixin of connections: the process that opened it, and when, by ``time.monotonic``.

    The last words of a server before it ends the connection are read as the reply.

    ``read_at_once``: redis-py's own ``read_response``, with all of its errors.
    """

    read_at_once: Any

    opened_by = 0
    opened_at = -math.inf
    _tls_pending = False

    def connect(self: Any, *given: Any, **named: Any) -> Any:
        self.opened_by, self.opened_at = os.getpid(), monotonic()
        send_no_name(self)
        connected = super().connect(*given, **named)  # type: ignore[misc]
        self._is_readable = readable(self._sock)
        return connected

    def _connect(self: Any) -> LimitedSocket:
        return LimitedSocket(super()._connect(), self.socket_timeout)  # type: ignore[misc]

    def __init_subclass__(cls) -> None:
        cls.read_at_once = super().read_response  # type: ignore[misc]

    def send_packed_command(self: Any, command: Any, *given: Any, **named: Any) -> None:
        """Send commands. Of a connection that has ended this is no error: the next read finds its end.

        The server's last words before it ended the connection are read first, as the reply.

        Raises: redis.TimeoutError: the server takes no more bytes.
        """
        if self._sock is None:
            super().send_packed_command(command, *given, **named)  # type: ignore[misc]
            return
        try:
            for part in [command] if isinstance(command, bytes) else command:
                self._sock.sendall(part)
        except TimeoutError:
            self.disconnect()
            raise redis.TimeoutError("Timeout writing to socket") from None
        except OSError:
            pass
        except BaseException:
            self.disconnect()
            raise

    def read_response(self: Any, *given: Any, **named: Any) -> Any:
        """Return a reply. Raises: WrongReplyError: what arrived is none, as redis-py has many errors for."""
        try:
            return super().read_response(*given, **named)  # type: ignore[misc]
        except (*LOST, redis.ResponseError):
            raise
        except Exception:  # noqa: BLE001 - of the parser; its text may quote a login
            self.disconnect()
        raise no_reply()

    def is_told(self: Any) -> bool:
        return not self._tls_pending and self.has_surplus()  # of TLS, what arrives unasked is a ticket

    def has_surplus(self: Any) -> bool:
        """Whether something arrived that no call waits for: a reply, or the end. As redis-py's pool asks."""
        reader, socket = getattr(self._parser, "_reader", None), self._sock
        if reader is None or socket is None or (self._tls_pending and socket.pending()):
            try:
                return bool(self.can_read(0))
            except (redis.RedisError, OSError):
                return True
        return bool(reader.has_data() or self._is_readable())


class _Plain(Opened, Connection):
    """A connection without TLS."""


class _Tls(Opened, SSLConnection):
    """A connection with TLS."""

    _tls_pending = True


_SHARED: weakref.WeakValueDictionary[tuple[Any, ...], Idle] = weakref.WeakValueDictionary()
_SHARED_LOCK = forks.BriefLock()


def _idle_of(address: Address, settings: RedisSettings) -> Idle:
    options = [
        (name, value if isinstance(value, Hashable) else repr(value))
        for name, value in sorted(settings.connection.items())
    ]
    key = address, settings.tls, *options
    with _SHARED_LOCK:
        idle = _SHARED.get(key)
        if idle is None:
            idle = _SHARED[key] = Idle()
        return idle


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
        self._idle = _idle_of(address, settings)
        self._users = self._idle.users

    def __del__(self) -> None:
        self._users.discard(id(self))  # of a store that nobody closed

    def take(self) -> tuple[Any, bool]:
        """Return a connection for exclusive use, and whether it was used before.

        Raises: redis.TimeoutError: the call's deadline has passed.
        """
        left_s = self._left()
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took the last one
                break
            if self._idle.is_usable(connection) and not connection.has_surplus():
                _limit(connection, min(self._settings.connection["socket_timeout"], left_s))
                return connection, True
            if connection.opened_by == os.getpid():
                connection.disconnect()
        try:
            return self._open(left_s), False
        except DENIED:
            if self._settings.provider is None or not self._settings.provider.forget():
                raise
        return self._open(self._left()), False

    def _open(self, left_s: float) -> Any:
        """Open a connection and log in."""
        kind: Any = _Tls if self._settings.tls else _Plain
        connection = kind(
            host=self.address.host,
            port=self.address.port,
            protocol=2,
            **within(left_s, self._settings.connection),
        )
        refused = None
        try:
            connection.connect()
            if connection.is_told():  # before any request: the server's last words
                connection.read_response()
                raise no_reply()
        except (redis.ResponseError, redis.AuthenticationError) as error:
            refused = without_words(error, self._settings)
        except BaseException:  # of a login's function, too
            connection.disconnect()
            raise
        if refused is not None:  # raised here, so that it has no context
            raise refused
        return connection

    def ask(self, contents: Sequence[bytes]) -> list[Any]:
        """Return the replies to some commands in one round trip, tried once; error replies are among them.

        Raises: redis.RedisError or OSError: the connection was lost.
        """
        connection, _ = self.take()
        replies: list[Any] = []
        try:
            connection.send_packed_command(contents)
            for _ in contents:
                try:
                    replies.append(connection.read_response(disable_decoding=True))
                except redis.ResponseError as refusal:
                    replies.append(refusal)
        except BaseException:
            connection.disconnect()
            self.close()
            raise
        self.give(connection)
        return replies

    def limit(self, connection: Any) -> None:
        """Limit the next send and read to the rest of the call's time.

        Raises: redis.TimeoutError: the deadline has passed.
        """
        _limit(connection, min(self._settings.connection["socket_timeout"], self._left()))

    def answered(self, after_s: float) -> None:
        """Note the time of an answer to a request that nothing was queued before."""
        self.answer_s = min(self.answer_s or after_s, after_s)

    def _left(self) -> float:
        left_s = left_of(self._settings.timeout_s)
        if left_s <= 0:
            raise redis.TimeoutError(f"{NO_TIME_LEFT} to {self.address}")
        return left_s

    def give(self, connection: Any) -> None:
        """Return a connection to the pool. It must have no reply outstanding."""
        if len(self._idle) < IDLE_MAX and self._idle.is_usable(connection):
            self._idle.append(connection)
            self._users.add(id(self))
        else:
            connection.disconnect()

    def drop(self) -> None:
        """Use no connection again that is open now: the server says that another one has taken over."""
        self._idle.since = monotonic()
        self.server_id, self.ready = b"", False
        self.close()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took the last one
                return
            if connection.opened_by == os.getpid():
                connection.disconnect()

    def leave(self) -> None:
        """Close the idle connections, unless another namespace uses them."""
        self._users.discard(id(self))
        if not self._users:
            self.close()


class Servers(abc.ABC):
    """The primaries of the last look-up. May be used by several threads."""

    def __init__(self, settings: RedisSettings) -> None:
        self.settings = settings
        self.looks = 0
        """Increases whenever a look-up finds other primaries, or other slots."""
        self._nodes: dict[Address, Node] = {}
        self._lock = forks.BriefLock()

    @abc.abstractmethod
    def node_of(self, key: bytes) -> Node:
        """Return the primary that holds the key. Raises: redis.RedisError: it cannot be found now."""

    @abc.abstractmethod
    def primaries(self) -> list[Node]:
        """Return all primaries that hold keys, by address."""

    @abc.abstractmethod
    def refresh(self) -> None:
        """Discard the last look-up: the next use looks up again."""

    def look_from(self, node: Node) -> None:
        """Look up the primaries now, as this one sees them. Raises: redis.RedisError, OSError: it fails."""
        self.refresh()

    def node_at(self, address: Address) -> Node:
        """Return the one node of this address."""
        node = self._nodes.get(address)
        if node is None:
            with self._lock:
                node = self._nodes.setdefault(address, Node(address, self.settings))
        return node

    @property
    def has_answered(self) -> bool:
        """Whether any server has answered a request."""
        return any(node.answer_s for node in list(self._nodes.values()))

    def close(self) -> None:
        with self._lock:
            for node in self._nodes.values():
                node.leave()


class OneServer(Servers):
    """A single server that never changes its address."""

    def node_of(self, key: bytes) -> Node:
        return self.node_at(self.settings.seeds[0])

    def primaries(self) -> list[Node]:
        return [self.node_at(self.settings.seeds[0])]

    def refresh(self) -> None:
        pass


class SentinelServers(Servers):
    """The server that the Sentinels name as the primary."""

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(settings)
        self._primary: Node | None = None

    def node_of(self, key: bytes) -> Node:
        primary = self._primary
        if primary is None:
            left_s = max(left_of(self.settings.timeout_s) / len(self.settings.seeds), LEAST_S)
            limits = {**within(left_s, self.settings.sentinel), "retry": Retry(NoBackoff(), 0)}
            sentinel = sentinel_by(Sentinel, self.settings, limits, (_Plain, _Tls))
            try:
                steps = primary_by(sentinel, self.settings)
                address = run(steps, lambda client: client.sentinel_masters(), SENTINEL_ANSWERS)
                primary = self._primary = self.node_at(address)
            finally:
                for client in sentinel.sentinels:
                    client.close()
        return primary

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
        with self._lock:
            known = [*first, *self._nodes, *self.settings.seeds]
        answer = run(
            ranges_by(known), lambda address: self.node_at(address).ask((CLUSTER_SLOTS,))[0], CLUSTER_ANSWERS
        )
        ranges = [(last, start, self.node_at(primary)) for last, start, primary in answer]
        self.looks += ranges != self._last_seen
        self._ranges = self._last_seen = ranges
        return ranges


def servers_of(settings: RedisSettings) -> Servers:
    """Return the servers of the settings. Connects to nothing."""
    kinds: dict[str, type[Servers]] = {
        "one": OneServer,
        "sentinel": SentinelServers,
        "cluster": ClusterServers,
    }
    return kinds[settings.kind](settings)
