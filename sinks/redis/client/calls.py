"""Calls to many servers at once: pipelined by server, sent again where that is safe.

A call is one command for the server that holds its key. ``Calls.run`` sends each server all of its
calls, in flights (pipeline batches), the next before the replies to the last. It handles everything
that has nothing to do with tidegate: servers that moved, restarted, or lost the functions. A
function's refusal is returned as ``Refused``.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import redis
from redis import exceptions

from tidegate.errors import ConfigError, StoreUnavailableError
from tidegate.sinks.redis.client.commands import Commands
from tidegate.sinks.redis.client.functions import script_of
from tidegate.sinks.redis.client.library import loading
from tidegate.sinks.redis.client.replies import (
    CUT_BY_SERVER,
    DENIED,
    FEW_CALLS,
    FLIGHT_BYTES,
    FLIGHT_CALLS,
    LOST,
    Call,
    NextAction,
    Refused,
    RetryLater,
    ServerState,
    answer_of,
    denied,
    encoded,
    not_compared,
    origin_in,
    pack,
    passes,
    takes_no_functions,
    why_again,
    why_not_found,
)
from tidegate.sinks.redis.client.servers import Node, Servers
from tidegate.sinks.redis.client.shapes import fits, wrong_reply
from tidegate.sinks.redis.client.steps import run

AHEAD = 2
"""Flights sent before the first one's replies are read, so that the server never waits for the client."""
FLIGHT_S = 0.0005
"""The approximate time for which a small flight occupies a server."""


@dataclasses.dataclass
class _Exchange:
    """One server's share of a round: the calls sent, and those with a reply."""

    node: Node
    calls: list[int]
    flight: int
    one_flight: bool = False
    """Whether a flight is sent only after the replies to the one before."""
    connection: Any = None
    fresh: bool = True
    sent: int = 0
    read: int = 0
    asked_at: float = 0.0
    failed: str = ""

    @property
    def ahead(self) -> int:
        """The most calls in flight.

        Small flights let other clients' calls in between. Of them the round-trip time has room for
        more: these are on the wire, not queued at the server.
        """
        if self.one_flight:
            return self.flight
        far = int(self.node.answer_s / FLIGHT_S) if self.flight < FLIGHT_CALLS else 0
        return (AHEAD + far) * self.flight


class Moves(Protocol):
    """Knowledge about key groups that moved and are whole at their new server."""

    def meant(self, key: bytes, server_id: bytes) -> bytes:
        """Return the server as a call for this key names it."""

    def moved(self, call: Call, node: Node, origin: bytes) -> bool:
        """Return whether the call's key group moved whole from its origin to this server, and remember it."""


class Calls(Commands):
    """A sender of calls on pooled connections. May be used by several threads.

    ``listed`` returns the ids of servers whose data may be relied on; ``accept`` checks again
    whether a server is one of them. ``moves`` knows the key groups that moved.
    """

    def __init__(
        self,
        servers: Servers,
        where: str,
        accept: Callable[[bytes], bool],
        listed: Callable[[], frozenset[bytes]],
        moves: Moves | None = None,
    ) -> None:
        super().__init__(servers, where)
        self._accept, self._listed = accept, listed
        self._moves = moves
        self._functions = servers.settings.functions

    def one(self, call: Call) -> Any:
        """Return the reply to a repeatable call, on the fast path if there is no error."""
        return self.few((call,))[0]

    def few(self, calls: Sequence[Call]) -> list[Any]:
        """Return the replies to repeatable calls; on the fast path if there are few, for one
        server, without errors.
        """
        try:
            node = self.servers.node_of(calls[0].key)
            if node.ready and len(calls) <= FEW_CALLS and self.servers.node_of(calls[-1].key) is node:
                connection, _ = node.take()
                try:
                    packed = b"".join([self._encoded(call, node) for call in calls])
                    connection.send_packed_command([packed])
                    replies = [connection.read_at_once(disable_decoding=True) for _ in calls]
                    for call, reply in zip(calls, replies, strict=True):
                        if not fits(call, reply):
                            raise wrong_reply(call)
                except BaseException:
                    connection.disconnect()
                    raise
                node.give(connection)
                return replies
        except Exception:  # noqa: BLE001, S110 - the parser has many; sent again, and handled, below
            pass
        return self.run(calls)

    def run(self, calls: Sequence[Call], *, once: bool = False, flight: int = FLIGHT_CALLS) -> list[Any]:
        """Return the replies, in order. Calls of one server are answered in order.

        ``once``: a call that may have reached its server is not sent again. ``flight``: the number
        of calls sent to a server together; at most ``AHEAD`` times as many are queued there. A
        server executes its queue before it serves another client.

        Raises: StoreUnavailableError: no answer within ``timeout_s``, and any of the calls may have
        taken effect. StoreNotVerifiedError: a server answered that is not listed. ConfigError: the
        servers refuse this user.
        """
        replies: list[Any] = [None] * len(calls)
        left, was_cut = list(range(len(calls))), False
        for attempt in self.retrying():
            with attempt:
                left, why = self._round(calls, left, replies, once=once, flight=flight, one_flight=was_cut)
                if left:
                    if any(said in why for said in CUT_BY_SERVER):
                        was_cut, flight = True, max(1, flight // 2)  # its replies may be too large together
                    raise RetryLater(why)
        return replies

    def wait_behind(self, call: Call, replicas: int, *, aof: bool) -> tuple[bool, int]:
        """Send a writing call, ignore its reply, then wait for the write on the same connection (T32).

        Return whether it is on its own server (fsynced, with ``aof``), and on how many replicas.

        Raises: StoreUnavailableError: no answer. ConfigError: the server has no WAITAOF, or no
        append-only file.
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
            written = connection.read_response(disable_decoding=True)
            confirmed = connection.read_response(disable_decoding=True)
            counts = confirmed if aof else [confirmed]
            if not (fits(call, written) and isinstance(counts, list) and len(counts) == 1 + aof):
                raise wrong_reply(call)
            if any(type(count) is not int for count in counts):
                raise wrong_reply(call)
        except redis.ResponseError as error:
            connection.disconnect()  # a reply may be in flight
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
            return True, int(confirmed)
        local, on_replicas = confirmed
        return bool(int(local)), int(on_replicas)

    def _round(
        self,
        calls: Sequence[Call],
        left: list[int],
        replies: list[Any],
        *,
        once: bool,
        flight: int,
        one_flight: bool,
    ) -> tuple[list[int], str]:
        """Send each server the rest of its calls; return those without an answer, and why."""
        why = ""
        later: list[int] = []
        nodes: dict[int, Node] = {}
        exchanges: dict[int, _Exchange] = {}
        for index in left:
            try:
                node = self.servers.node_of(calls[index].key)
                exchanges.setdefault(id(node), _Exchange(node, [], flight, one_flight)).calls.append(index)
                nodes[index] = node
            except (redis.RedisError, OSError) as error:
                why = why_not_found(self.where, error)
                later.append(index)
        open_ones = [each for each in exchanges.values() if self._begin(each)]
        while going := [each for each in open_ones if not each.failed and each.read < len(each.calls)]:
            for each in going:
                self._send(each, calls)
            for each in going:
                self._read(each, calls, replies)
        for each in open_ones:
            if not each.failed:
                each.node.give(each.connection)
        for each in exchanges.values():
            if each.failed:
                why = f"{each.node.address}: {each.failed}"
                unread = each.calls[each.read :]
                if once and each.sent > each.read:
                    raise StoreUnavailableError(f"{self.where}: the reply was lost: {why}")
                later += unread
        unanswered = set(later)
        answered = {index: node for index, node in nodes.items() if index not in unanswered}
        again, refused = self._sort_out(calls, answered, replies)
        return sorted(later + again), refused or why

    # -- one server ------------------------------------------------------------------------------

    def _begin(self, exchange: _Exchange) -> bool:
        """Connect to a server and load the functions there; return False when that fails for now."""
        node = exchange.node
        try:
            exchange.connection, used = node.take()
            exchange.fresh = not used
            if self._functions and not node.ready:
                self._functions = self._load(node, exchange.connection)
            node.ready = True
        except DENIED as error:
            raise denied(self.where, error) from error
        except LOST as error:
            self._fail(exchange, error)
            return False
        except redis.ResponseError as error:
            if passes(error):
                self._fail(exchange, error)
                return False
            raise takes_no_functions(self.where, node.address, error) from error
        return True

    def _fail(self, exchange: _Exchange, error: Exception) -> None:
        exchange.failed = str(error) or type(error).__name__
        if exchange.connection is not None:
            exchange.connection.disconnect()
        exchange.node.close()  # its idle connections are at least as old
        if exchange.fresh:  # an idle connection that was closed proves nothing about the server
            exchange.node.ready = False
            self.servers.refresh()

    def _send(self, exchange: _Exchange, calls: Sequence[Call]) -> None:
        """Send flights until enough of them wait for their replies or all calls are sent."""
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
                exchange.connection.send_packed_command([b"".join(flight)])  # else one write per call
            except LOST as error:
                self._fail(exchange, error)
                return

    def _read(self, exchange: _Exchange, calls: Sequence[Call], replies: list[Any]) -> None:
        """Read the replies to the oldest flight."""
        if exchange.failed:
            return
        for _ in range(min(exchange.flight, exchange.sent - exchange.read)):
            index = exchange.calls[exchange.read]
            try:
                exchange.node.limit(exchange.connection)  # time has passed, perhaps with another server
                replies[index] = exchange.connection.read_response(disable_decoding=True)
                if not fits(calls[index], replies[index]):
                    raise wrong_reply(calls[index])
            except exceptions.BusyLoadingError as busy:  # redis-py takes it for a lost connection
                replies[index] = busy
            except exceptions.AuthenticationError as refused:  # likewise
                if not exchange.fresh:  # a new connection has the login of now
                    self._fail(exchange, refused)
                    return
                replies[index] = refused
            except redis.ResponseError as refused:
                replies[index] = refused
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
        """Load the functions on this server; return False where they are barred and EVAL is used."""

        def ask(command: bytes) -> Any:
            connection.send_packed_command([command])
            return connection.read_response()

        return run(loading(self.where, node.address), ask, (redis.ResponseError,))

    # -- replies -----------------------------------------------------------------------------------

    def _sort_out(
        self, calls: Sequence[Call], answered: Mapping[int, Node], replies: list[Any]
    ) -> tuple[list[int], str]:
        """Sort out the errors among the replies: return the calls to send again, and why; store refusals.

        ``answered`` names the server of each reply. By now another server may hold the key.
        """
        again: list[int] = []
        why, accepted_ids, proven = "", set[bytes](), dict[tuple[bytes, bytes], bool]()
        for index, node in answered.items():
            error = replies[index]
            if not isinstance(error, Exception):
                continue
            answer = answer_of(error, calls[index], self.where, node.address)
            if isinstance(answer, Refused):
                origin = origin_in(answer)
                if not origin or not self._is_whole(calls[index], node, origin, proven):
                    replies[index] = answer
                    continue
            elif isinstance(answer, ServerState):
                self._meet(node, answer.server_id, accepted_ids)
            elif answer is NextAction.LOAD_SCRIPT:
                self._load_script(node, calls[index].name)
            elif answer is NextAction.LOAD:
                node.ready = False
            elif answer is NextAction.EVAL:
                self._functions = False
            else:
                if answer is NextAction.LEAVE:
                    node.drop()
                self.servers.refresh()
            again.append(index)
            why = why_again(node.address, error)
        return again, why

    def _is_whole(
        self, call: Call, node: Node, origin: bytes, proven: dict[tuple[bytes, bytes], bool]
    ) -> bool:
        """Return whether a key group that moved is whole; checked once a round for all of the same move."""
        way = call.server or node.server_id, origin
        if self._moves is None:
            return False
        if way not in proven or proven[way]:
            try:
                proven[way] = self._moves.moved(call, node, origin)
            except (redis.RedisError, OSError):
                proven[way] = False
        return proven[way]

    def _meet(self, node: Node, server_id: bytes, accepted_ids: set[bytes]) -> None:
        """Remember the id of a server that identified itself, if it is listed."""
        if server_id == b"replica":
            node.drop()
            self.servers.refresh()
        elif server_id in accepted_ids or self._accept(server_id):
            accepted_ids.add(server_id)
            node.server_id = server_id
        else:
            raise not_compared(self.where, node.address)

    def _load_script(self, node: Node, name: str) -> None:
        """Load the script for EVALSHA. If the server is away, the repeated call finds that out."""
        try:
            self.at(node, (b"SCRIPT", b"LOAD", script_of(name).text))
        except DENIED as error:
            raise denied(self.where, error) from error
        except LOST:
            self.servers.refresh()
        except redis.ResponseError as error:
            if passes(error):
                self.servers.refresh()
                return
            raise ConfigError(f"{self.where}: {node.address} does not take our script: {error}") from error
