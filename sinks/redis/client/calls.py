"""Calls to many servers at once: pipelined by server, sent again where that is safe.

A call is one command for the server that holds its key. ``Calls.run`` sends each server all of
its calls, a flight ahead of the replies, and deals with everything that has nothing to do with
tidegate: servers that moved, restarted, lost our functions. What a function refused comes back
as ``Refused``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import redis
import tenacity
from redis import exceptions

from tidegate.base.deadline import end_of, over_at
from tidegate.errors import ConfigError, StoreUnavailableError
from tidegate.sinks.redis.client.functions import script_of
from tidegate.sinks.redis.client.library import loading
from tidegate.sinks.redis.client.replies import (
    DENIED,
    FEW_CALLS,
    FLIGHT_BYTES,
    FLIGHT_CALLS,
    LOST,
    NOT_NOW,
    Call,
    NextAction,
    Refused,
    RetryLater,
    ServerState,
    answer_of,
    denied,
    encoded,
    no_answer,
    not_compared,
    origin_in,
    takes_no_functions,
    why_again,
)
from tidegate.sinks.redis.client.resp import pack
from tidegate.sinks.redis.client.servers import Node, Servers

AHEAD = 2
"""So many flights are sent before the first one's replies are read: the server never waits for us."""
FLIGHT_S = 0.0005
"""A flight that is kept small keeps a server for about so long."""


@dataclasses.dataclass
class _Exchange:
    """What one server is asked in one round: which calls are sent, and which have their reply."""

    node: Node
    calls: list[int]
    flight: int
    connection: Any = None
    fresh: bool = True
    sent: int = 0
    read: int = 0
    asked_at: float = 0.0
    failed: str = ""

    @property
    def ahead(self) -> int:
        """So many calls are on their way at most. Of flights that are kept small, so that others get in
        between, as many more as the way there and back has room for: no more of them wait at the server.
        """
        far = int(self.node.answer_s / FLIGHT_S) if self.flight < FLIGHT_CALLS else 0
        return (AHEAD + far) * self.flight


class Moves(Protocol):
    """Knows which key groups moved, and are whole where they are now."""

    def meant(self, key: bytes, server_id: bytes) -> bytes:
        """How a call for this key names the server."""

    def moved(self, call: Call, node: Node, origin: bytes) -> bool:
        """Whether the call's key group came whole from its origin to this server. It is remembered."""


class Calls:
    """Sends calls, on connections that are reused. May be used by several threads.

    ``listed`` are the ids of servers whose data may be relied on; ``accept`` looks again whether
    one of them is. ``moves`` knows of key groups that moved.
    """

    def __init__(
        self,
        servers: Servers,
        where: str,
        accept: Callable[[bytes], bool],
        listed: Callable[[], frozenset[bytes]],
        moves: Moves | None = None,
    ) -> None:
        self.servers, self.where, self._accept, self._listed = servers, where, accept, listed
        self._moves = moves
        self._functions = servers.settings.functions

    def one(self, call: Call) -> Any:
        """The reply to a call that may be repeated: no detour when all is well."""
        return self.few((call,))[0]

    def few(self, calls: Sequence[Call]) -> list[Any]:
        """The replies to calls that may be repeated: no detour when few are asked, of one server, and
        all is well.
        """
        try:
            node = self.servers.node_of(calls[0].key)
            if node.ready and len(calls) <= FEW_CALLS and self.servers.node_of(calls[-1].key) is node:
                connection, _ = node.take()
                try:
                    packed = b"".join([self._encoded(call, node) for call in calls])
                    connection.send_packed_command([packed])
                    replies = [connection.read_response(disable_decoding=True) for _ in calls]
                except BaseException:
                    connection.disconnect()
                    raise
                node.give(connection)
                return replies
        except (redis.RedisError, OSError):
            pass  # asked again, and dealt with, below
        return self.run(calls)

    def run(self, calls: Sequence[Call], *, once: bool = False, flight: int = FLIGHT_CALLS) -> list[Any]:
        """The replies, in order. Calls of one server are answered in order.

        ``once``: a call that may have reached its server is not sent again. ``flight``: so many calls go to
        a server together, and ``AHEAD`` times as many wait there at most; a server does all that wait before
        it turns to anybody else. StoreUnavailableError:
        no answer within ``timeout_s``; which of the calls took effect is unknown.
        StoreNotVerifiedError: a server answered that is not listed. ConfigError: the servers
        refuse us.
        """
        replies: list[Any] = [None] * len(calls)
        left = list(range(len(calls)))
        for attempt in self.retrying():
            with attempt:
                left, why = self._round(calls, left, replies, once=once, flight=flight)
                if left:
                    raise RetryLater(why)
        return replies

    def retrying(self) -> Iterator[tenacity.AttemptManager]:
        """Yield attempts until one does not raise RetryLater.

        StoreUnavailableError: none did within ``timeout_s`` of the begin of the call (``deadline.py``).
        """
        timeout_s = self.servers.settings.timeout_s
        try:
            yield from tenacity.Retrying(
                retry=tenacity.retry_if_exception_type(RetryLater),
                wait=tenacity.wait_exponential(multiplier=0.005, max=0.25),
                stop=over_at(end_of(timeout_s)),
                reraise=True,
            )
        except RetryLater as later:
            own = self.servers.settings.connection.get("ssl_certfile")
            raise no_answer(self.where, timeout_s, later, own) from later

    def node_of(self, key: bytes) -> Node:
        """The server that holds the key. StoreUnavailableError: nobody can tell within ``timeout_s``."""
        for attempt in self.retrying():
            with attempt:
                try:
                    return self.servers.node_of(key)
                except DENIED as error:
                    raise denied(self.where, error) from error
                except (redis.RedisError, OSError) as error:
                    self.servers.refresh()
                    raise RetryLater(str(error) or type(error).__name__) from error
        raise AssertionError

    def each_primary(self, parts: tuple[bytes, ...]) -> list[Any]:
        """The reply of every primary to one command that may be repeated."""
        for attempt in self.retrying():
            with attempt:
                try:
                    replies = [self.at(node, parts) for node in self.servers.primaries()]
                except DENIED as error:
                    raise denied(self.where, error) from error
                except (*LOST, *NOT_NOW) as error:
                    self.servers.refresh()
                    raise RetryLater(str(error) or type(error).__name__) from error
        return replies

    def each_primary_once(self, parts: tuple[bytes, ...]) -> list[Any]:
        """The reply of every primary to one command that may be repeated; None: it does not answer now."""
        replies: list[Any] = []
        for node in self.servers.primaries():
            replies.append(None)
            for _ in range(2):  # an idle connection may have been closed
                with contextlib.suppress(*LOST, *NOT_NOW):
                    replies[-1] = self.at(node, parts)
                    break
        return replies

    def each_primary_scan(self, pattern: str) -> list[Any]:
        """The keys that fit the pattern, of all primaries."""
        found: list[Any] = []
        for attempt in self.retrying():
            with attempt:
                found = []
                try:
                    for node in self.servers.primaries():
                        cursor = b""
                        while cursor != b"0":
                            scan = (b"SCAN", cursor or b"0", b"MATCH", pattern.encode(), b"COUNT", b"1000")
                            cursor, keys = self.at(node, scan)
                            found += keys
                except DENIED as error:
                    raise denied(self.where, error) from error
                except (*LOST, *NOT_NOW) as error:
                    self.servers.refresh()
                    raise RetryLater(str(error) or type(error).__name__) from error
        return found

    def wait_behind(self, call: Call, replicas: int, *, aof: bool) -> tuple[bool, int]:
        """Send a call that writes, whatever stands there, then wait for it on the same connection (T32):
        whether it is on its own server, fsynced there with ``aof``, and on how many of its replicas.

        StoreUnavailableError: no answer. ConfigError: the server has no WAITAOF, or no append-only file.
        """
        limit_s = self.servers.settings.connection["socket_timeout"]
        timeout_ms = b"%d" % int(1_000 * limit_s / 2)
        count = b"%d" % replicas
        wait = (b"WAITAOF", b"1", count, timeout_ms) if aof else (b"WAIT", count, timeout_ms)
        node = self.node_of(call.key)
        connection: Any = None
        try:
            connection, _ = node.take()
            connection.send_packed_command([self._encoded(call, node), pack(wait)])
            connection.read_response(disable_decoding=True)
            found = connection.read_response(disable_decoding=True)
        except redis.ResponseError as error:
            connection.disconnect()  # a reply may be on its way
            if "unknown command" in str(error):
                raise ConfigError(f"{self.where}: wait_aof needs Redis 7.2 or later: {error}") from error
            if "appendonly is disabled" in str(error):
                needed = "wait_aof needs appendonly yes, or leave it out"
                raise ConfigError(f"{self.where}: {node.address}: {needed}: {error}") from error
            raise StoreUnavailableError(f"{self.where}: {node.address}: {error}") from error
        except LOST as error:
            if connection is not None:
                connection.disconnect()
            self.servers.refresh()
            raise StoreUnavailableError(f"{self.where}: {node.address}: {error}") from error
        node.give(connection)
        if not aof:
            return True, int(found)
        local, on_replicas = found
        return bool(int(local)), int(on_replicas)

    @staticmethod
    def at(node: Node, parts: tuple[bytes, ...]) -> Any:
        """The reply of one server to one command, tried once."""
        connection, _ = node.take()
        try:
            connection.send_packed_command([pack(parts)])
            reply = connection.read_response(disable_decoding=True)
        except BaseException:
            connection.disconnect()
            node.close()
            raise
        node.give(connection)
        return reply

    def _round(
        self, calls: Sequence[Call], left: list[int], replies: list[Any], *, once: bool, flight: int
    ) -> tuple[list[int], str]:
        """Ask each server for what is left of its calls; those without an answer, and why."""
        why = ""
        later: list[int] = []
        asked: dict[int, Node] = {}
        exchanges: dict[int, _Exchange] = {}
        for at in left:
            try:
                node = self.servers.node_of(calls[at].key)
                exchanges.setdefault(id(node), _Exchange(node, [], flight)).calls.append(at)
                asked[at] = node
            except DENIED as error:
                raise denied(self.where, error) from error
            except (redis.RedisError, OSError) as error:
                why = str(error)
                later.append(at)
        open_ones = [each for each in exchanges.values() if self._begin(each)]
        while going := [each for each in open_ones if not each.failed and each.read < len(each.calls)]:
            for each in going:
                self._send(each, calls)
            for each in going:
                self._read(each, replies)
        for each in open_ones:
            if not each.failed:
                each.node.give(each.connection)
        for each in exchanges.values():
            if each.failed:
                why = f"{each.node.address}: {each.failed}"
                unread = each.calls[each.read :]
                if once and each.sent > each.read:
                    raise StoreUnavailableError(f"{self.where}: the answer was lost: {why}")
                later += unread
        unanswered = set(later)
        answered = {at: node for at, node in asked.items() if at not in unanswered}
        again, refused = self._sort_out(calls, answered, replies)
        return sorted(later + again), refused or why

    # -- one server ------------------------------------------------------------------------------

    def _begin(self, exchange: _Exchange) -> bool:
        """A connection to a server that has our functions; False: not now."""
        node = exchange.node
        try:
            exchange.connection, used = node.take()
            exchange.fresh = not used
            if self._functions and not node.ready:
                self._functions = self._load(node, exchange.connection)
            node.ready = True
        except DENIED as error:
            raise denied(self.where, error) from error
        except (*LOST, *NOT_NOW) as error:
            self._fail(exchange, error)
            return False
        except redis.ResponseError as error:
            raise takes_no_functions(self.where, node.address, error) from error
        return True

    def _fail(self, exchange: _Exchange, error: Exception) -> None:
        exchange.failed = str(error) or type(error).__name__
        if exchange.connection is not None:
            exchange.connection.disconnect()
        exchange.node.close()  # those that are idle are of the same age, or older
        if exchange.fresh:  # an idle connection that was closed says nothing about the server
            exchange.node.ready = False
            self.servers.refresh()

    def _send(self, exchange: _Exchange, calls: Sequence[Call]) -> None:
        """Flights, until enough of them wait for their replies or all is sent."""
        if exchange.sent == exchange.read:
            exchange.asked_at = time.monotonic()
        while exchange.sent < len(exchange.calls) and exchange.sent - exchange.read < exchange.ahead:
            flight: list[bytes] = []
            size = 0
            room = exchange.flight
            while exchange.sent < len(exchange.calls) and len(flight) < room and size < FLIGHT_BYTES:
                content = self._encoded(calls[exchange.calls[exchange.sent]], exchange.node)
                flight.append(content)
                size += len(content)
                exchange.sent += 1
            try:
                exchange.connection.send_packed_command([b"".join(flight)])  # else one write for each call
            except LOST as error:
                self._fail(exchange, error)
                return

    def _read(self, exchange: _Exchange, replies: list[Any]) -> None:
        """The replies to the oldest flight."""
        if exchange.failed:
            return
        for _ in range(min(exchange.flight, exchange.sent - exchange.read)):
            at = exchange.calls[exchange.read]
            try:
                exchange.node.limit(exchange.connection)  # some time went by, with another server maybe
                replies[at] = exchange.connection.read_response(disable_decoding=True)
            except exceptions.BusyLoadingError as busy:  # for redis-py it is a lost connection
                replies[at] = busy
            except redis.ResponseError as refused:
                replies[at] = refused
            except LOST as error:
                self._fail(exchange, error)
                return
            exchange.read += 1
            if exchange.asked_at:
                exchange.node.answered(time.monotonic() - exchange.asked_at)
                exchange.asked_at = 0.0

    def _encoded(self, call: Call, node: Node) -> bytes:
        known = node.server_id if call.at_server and node.server_id in self._listed() else b""
        if call.at_server and self._moves is not None and (meant := call.server or known):
            known = self._moves.meant(call.key, meant)
        return encoded(call, known, functions=self._functions)

    def _load(self, node: Node, connection: Any) -> bool:
        """Our functions on this server; False: functions are barred here, EVAL it is."""
        steps, found = loading(self.where, node.address), None
        while True:
            try:
                command = steps.send(found)
            except StopIteration as end:
                return bool(end.value)
            try:
                connection.send_packed_command([command])
                found = connection.read_response()
            except redis.ResponseError as error:
                found = error

    # -- replies -----------------------------------------------------------------------------------

    def _sort_out(
        self, calls: Sequence[Call], answered: Mapping[int, Node], replies: list[Any]
    ) -> tuple[list[int], str]:
        """Errors among the replies: which calls to send again, and why; what we refused ourselves.

        ``answered``: by which server. Who holds the key by now may be another one.
        """
        again: list[int] = []
        why, asked, proven = "", set[bytes](), dict[tuple[bytes, bytes], bool]()
        for at, node in answered.items():
            error = replies[at]
            if not isinstance(error, Exception):
                continue
            answer = answer_of(error, calls[at], self.where, node.address)
            if isinstance(answer, Refused):
                origin = origin_in(answer)
                if not origin or not self._is_whole(calls[at], node, origin, proven):
                    replies[at] = answer
                    continue
            elif isinstance(answer, ServerState):
                self._meet(node, answer.server_id, asked)
            elif answer is NextAction.LOAD_SCRIPT:
                self._load_script(node, calls[at].name)
            elif answer is NextAction.LOAD:
                node.ready = False
            elif answer is NextAction.EVAL:
                self._functions = False
            else:
                self.servers.refresh()
            again.append(at)
            why = why_again(node.address, error)
        return again, why

    def _is_whole(
        self, call: Call, node: Node, origin: bytes, proven: dict[tuple[bytes, bytes], bool]
    ) -> bool:
        """Whether a key group that moved is whole; asked once a round for all that came the same way."""
        way = call.server or node.server_id, origin
        if self._moves is None:
            return False
        if way not in proven or proven[way]:
            try:
                proven[way] = self._moves.moved(call, node, origin)
            except (redis.RedisError, OSError):
                proven[way] = False
        return proven[way]

    def _meet(self, node: Node, server_id: bytes, asked: set[bytes]) -> None:
        """A server gave its id: remember it if it is listed."""
        if server_id == b"replica":
            self.servers.refresh()
        elif server_id in asked or self._accept(server_id):
            asked.add(server_id)
            node.server_id = server_id
        else:
            raise not_compared(self.where, node.address)

    def _load_script(self, node: Node, name: str) -> None:
        """For EVALSHA. When the server is away, the call that is sent again tells."""
        try:
            self.at(node, (b"SCRIPT", b"LOAD", script_of(name).text))
        except DENIED as error:
            raise denied(self.where, error) from error
        except (*LOST, *NOT_NOW):
            self.servers.refresh()
        except redis.ResponseError as error:
            raise ConfigError(f"{self.where}: {node.address} does not take our script: {error}") from error
