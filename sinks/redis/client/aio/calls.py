"""Calls to many servers at once from an event loop: ``client/calls.py`` without threads, for reads.

Any number of tasks may send at the same time; their calls share few connections (``channel.py``).
``sinks/redis/client/replies.py`` defines, for both modules, what a reply means and when a call may
be sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol

import redis
import tenacity

from tidegate.base.deadline import end_of, over_at
from tidegate.errors import ConfigError
from tidegate.sinks.redis.client.aio.channel import AsyncNode, NoTurnError
from tidegate.sinks.redis.client.aio.servers import AsyncServers, View
from tidegate.sinks.redis.client.library import loading
from tidegate.sinks.redis.client.replies import (
    CUT_BY_SERVER,
    DENIED,
    FEW_CALLS,
    FLIGHT_BYTES,
    FLIGHT_CALLS,
    LOST,
    Call,
    Cause,
    NextAction,
    Refused,
    RetryLater,
    ServerState,
    answer_of,
    denied,
    encoded,
    load_script,
    no_answer,
    not_compared,
    origin_in,
    passes,
    plain,
    takes_no_functions,
    why_again,
    why_not_found,
)
from tidegate.sinks.redis.client.settings import RedisSettings
from tidegate.sinks.redis.client.steps import run_async

AHEAD = 2
"""The most flights (pipeline batches) of one request that are in flight to one server."""

Listed = Callable[[], frozenset[bytes]]
"""Returns the ids of the servers whose data may be relied on at the moment."""


class AsyncMoves(Protocol):
    """Knowledge about key groups that moved and are whole at their new server."""

    def meant(self, key: bytes, server_id: bytes) -> bytes:
        """Return the server as a call for this key names it."""

    async def moved(self, call: Call, node: AsyncNode, origin: bytes) -> bool:
        """Return whether the call's key group moved whole from its origin to this server, and remember it."""


class AsyncCalls:
    """A sender of repeatable calls.

    ``accept`` checks again whether a server is listed. ``moves`` knows the key groups that moved.
    """

    _has_answered = False

    def __init__(
        self,
        settings: RedisSettings,
        where: str,
        accept: Callable[[bytes, Listed], Awaitable[bool]],
        moves: AsyncMoves,
    ) -> None:
        self.servers, self.where, self._accept = AsyncServers(settings), where, accept
        self._moves = moves
        self._functions = settings.functions
        self.closed = False

    async def one(self, call: Call, listed: Listed) -> Any:
        """Return the reply to one call, on the fast path if there is no error. Raises: as ``run``."""
        return (await self.few((call,), listed))[0]

    async def few(self, calls: Sequence[Call], listed: Listed) -> list[Any]:
        """Return the replies; on the fast path if there are few calls, all for one server, and no errors.

        Raises: as ``run``.
        """
        view = self.servers.known
        if view is not None and 0 < len(calls) <= FEW_CALLS:
            try:
                node = view.node_of(calls[0].key)
                if node.ready and view.node_of(calls[-1].key) is node:
                    replies = await node.ask([self._encoded(call, node, listed) for call in calls], calls)
                    if not any(isinstance(reply, Exception) for reply in replies):
                        return replies
            except (redis.RedisError, OSError):
                pass  # sent again, and handled, below
        return await self.run(calls, listed)

    async def run(self, calls: Sequence[Call], listed: Listed) -> list[Any]:
        """Return the replies, in order; a function's refusal is a ``Refused``. All calls must be repeatable.

        Raises: StoreUnavailableError: no answer within ``timeout_s`` of the start of the user's
        call (``deadline.py``). StoreNotVerifiedError: a server answered that is not listed.
        ConfigError: the servers refuse this user.
        """
        replies: list[Any] = [None] * len(calls)
        left, flight = list(range(len(calls))), FLIGHT_CALLS
        async for attempt in self._retrying():
            with attempt:
                left, why = await self._round(calls, left, replies, listed, flight)
                if left:
                    if any(said in why for said in CUT_BY_SERVER):
                        flight = max(1, flight // 2)  # its replies may be too large together
                    raise RetryLater(why)
        return replies

    async def close(self) -> None:
        """Close all connections; pending replies fail. Repeatable."""
        self.closed = True
        await self.servers.close()

    async def _retrying(self) -> AsyncIterator[tenacity.AttemptManager]:
        timeout_s, cause = self.servers.settings.timeout_s, Cause()
        try:
            async for attempt in tenacity.AsyncRetrying(
                after=cause,
                retry=tenacity.retry_if_exception_type(RetryLater),
                wait=tenacity.wait_exponential(multiplier=0.005, max=0.25),
                stop=over_at(end_of(timeout_s)),
                reraise=True,
            ):
                yield attempt
        except RetryLater as later:
            own = self.servers.settings.connection.get("ssl_certfile")
            known = self._has_answered
            raise no_answer(self.where, timeout_s, cause.of(later), own, has_answered=known) from later

    async def _round(
        self, calls: Sequence[Call], left: list[int], replies: list[Any], listed: Listed, flight: int
    ) -> tuple[list[int], str]:
        """Send each server the rest of its calls; return those without an answer, and why."""
        if self.closed:
            raise ConfigError(f"{self.where}: it was closed during the call")
        view: View | None = None
        by_node: dict[AsyncNode, list[int]] = {}
        try:
            view = await self.servers.view()
            for index in left:
                by_node.setdefault(view.node_of(calls[index].key), []).append(index)
        except (redis.RedisError, OSError) as error:
            self.servers.forget(view)
            return left, why_not_found(self.where, error)
        # Wait for every exchange, whatever the others raised: no work of this round outlives it.
        results = await asyncio.gather(
            *(
                self._exchange(view, node, calls, mine, replies, listed, flight)
                for node, mine in by_node.items()
            ),
            return_exceptions=True,
        )
        again, why = [], ""
        for result in results:
            if isinstance(result, BaseException):
                raise result
            if result[0]:
                again += result[0]
                why = result[1]
        return sorted(again), why

    # -- one server ------------------------------------------------------------------------------

    async def _exchange(
        self,
        view: View,
        node: AsyncNode,
        calls: Sequence[Call],
        mine: list[int],
        replies: list[Any],
        listed: Listed,
        most: int,
    ) -> tuple[list[int], str]:
        """Exchange one server's calls; return those to send again, and why."""
        read, ahead = 0, AHEAD if most == FLIGHT_CALLS else 1  # after a cut: one after another
        flights: list[tuple[int, asyncio.Future[list[Any]]]] = []
        try:
            await self._make_ready(node)
            waiting = self._flights(calls, mine, node, listed, most)
            while True:
                while len(flights) < ahead and (next_flight := next(waiting, None)):
                    contents, its_calls = next_flight
                    flights.append((len(contents), asyncio.ensure_future(node.ask(contents, its_calls))))
                if not flights:
                    break
                size, flight = flights[0]
                arrived = await flight
                del flights[0]
                for index, reply in zip(mine[read : read + size], arrived, strict=True):
                    replies[index] = reply
                read += size
                self._has_answered = True
            why = ""
        except DENIED as error:
            raise denied(self.where, error) from error
        except NoTurnError as error:
            why = f"{node.address}: {error}"
        except (*LOST, redis.ResponseError) as error:
            if isinstance(error, redis.ResponseError) and not passes(error):
                raise takes_no_functions(self.where, node.address, error) from error
            node.ready = False
            self.servers.forget(view)
            why = f"{node.address}: {str(error) or type(error).__name__}"
        finally:
            for _, flight in flights:
                flight.cancel()
            await asyncio.gather(*(flight for _, flight in flights), return_exceptions=True)
        again, refused = await self._sort_out(view, node, calls, mine[:read], replies, listed)
        return again + mine[read:], refused or why

    def _flights(
        self, calls: Sequence[Call], mine: list[int], node: AsyncNode, listed: Listed, most: int
    ) -> Iterator[tuple[list[bytes], list[Call]]]:
        flight: list[bytes] = []
        its_calls: list[Call] = []
        size = 0
        for index in mine:
            content = self._encoded(calls[index], node, listed)
            flight.append(content)
            its_calls.append(calls[index])
            size += len(content)
            if len(flight) == most or size >= FLIGHT_BYTES:
                yield flight, its_calls
                flight, its_calls, size = [], [], 0
        if flight:
            yield flight, its_calls

    def _encoded(self, call: Call, node: AsyncNode, listed: Listed) -> bytes:
        known = node.server_id if call.at_server and node.server_id in listed() else b""
        if call.at_server and (meant := call.server or known):
            known = self._moves.meant(call.key, meant)
        return encoded(call, known, functions=self._functions)

    async def _make_ready(self, node: AsyncNode) -> None:
        """Load the functions on this server, or note that they are barred and use EVAL."""
        if self._functions and not node.ready:
            self._functions = await self._load(node)
        node.ready = True

    async def _load(self, node: AsyncNode) -> bool:
        async def ask(command: bytes) -> Any:
            (reply,) = await node.ask((command,))
            return reply

        return await run_async(loading(self.where, node.address), ask)

    # -- replies -----------------------------------------------------------------------------------

    async def _sort_out(
        self,
        view: View,
        node: AsyncNode,
        calls: Sequence[Call],
        answered: list[int],
        replies: list[Any],
        listed: Listed,
    ) -> tuple[list[int], str]:
        """Sort out the errors among the replies: return the calls to send again, and why; store refusals."""
        again: list[int] = []
        why, met, proven = "", set[bytes](), dict[tuple[bytes, bytes], bool]()
        for index in answered:
            error = replies[index]
            if not isinstance(error, Exception):
                continue
            answer = answer_of(error, calls[index], self.where, node.address)
            if isinstance(answer, Refused):
                origin = origin_in(answer)
                if not origin or not await self._is_whole(calls[index], node, origin, proven):
                    replies[index] = answer
                    continue
            elif isinstance(answer, ServerState):
                await self._meet(view, node, answer.server_id, met, listed)
            elif answer is NextAction.LOAD_SCRIPT:
                await self._load_script(node, calls[index].name)
            elif answer is NextAction.LOAD:
                node.ready = False
            elif answer is NextAction.EVAL:
                self._functions = False
            else:
                if answer is NextAction.LEAVE:
                    node.drop()
                self.servers.forget(view)
            again.append(index)
            why = why_again(node.address, error)
        return again, why

    async def _is_whole(
        self, call: Call, node: AsyncNode, origin: bytes, proven: dict[tuple[bytes, bytes], bool]
    ) -> bool:
        """Return whether a key group that moved is whole; a negative answer holds for the whole round."""
        way = call.server or node.server_id, origin
        if way not in proven or proven[way]:
            try:
                proven[way] = await self._moves.moved(call, node, origin)
            except (redis.RedisError, OSError):
                proven[way] = False
        return proven[way]

    async def each_primary(self, view: View, content: bytes) -> list[Any]:
        """Return the reply of every primary to one command; None where one does not answer now."""
        nodes = list(dict.fromkeys(node for _, _, node in view.ranges))
        info = [plain(b"", b"INFO")]
        answers = await asyncio.gather(*(node.ask([content], info) for node in nodes), return_exceptions=True)
        replies: list[Any] = []
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, (redis.RedisError, OSError)):
                raise answer
            reply = answer if isinstance(answer, BaseException) else answer[0]
            replies.append(None if isinstance(reply, BaseException) else reply)
        return replies

    async def _meet(
        self, view: View, node: AsyncNode, server_id: bytes, met: set[bytes], listed: Listed
    ) -> None:
        """Remember the id of a server that identified itself, if it is listed."""
        if server_id in met:
            return
        if server_id == b"replica":
            node.drop()
            self.servers.forget(view)
        elif await self._accept(server_id, listed):
            node.server_id = server_id
        else:
            raise not_compared(self.where, node.address)
        met.add(server_id)

    async def _load_script(self, node: AsyncNode, name: str) -> None:
        try:
            await node.ask((load_script(name),))
        except DENIED as error:
            raise denied(self.where, error) from error
        except (*LOST, redis.ResponseError) as error:
            if isinstance(error, redis.ResponseError) and not passes(error):
                raise takes_no_functions(self.where, node.address, error) from error
            raise RetryLater(f"{node.address}: {error}") from error
