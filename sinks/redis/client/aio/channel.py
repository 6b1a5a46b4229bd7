"""Connections of an event loop: each is shared by many tasks, and replies are matched by order.

A flight is one pipeline batch: one or more calls whose replies are awaited together. It keeps its
position in its connection's queue until its replies have arrived, even if no task waits for them
any more: a cancelled request takes no reply from the next one.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import heapq
import itertools
import math
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, TypeVar

import redis
from redis import exceptions
from redis.asyncio.connection import Connection, SSLConnection

from tidegate.base.deadline import end_of, left_of
from tidegate.base.urls import Address
from tidegate.sinks.redis.client.replies import DENIED, LOST, NO_REPLY_LEFT, NO_TIME_LEFT, NOT_IN_TIME, Call
from tidegate.sinks.redis.client.servers import AGE_MAX_S, readable, send_no_name
from tidegate.sinks.redis.client.settings import RedisSettings, without_words
from tidegate.sinks.redis.client.shapes import fits, no_reply, wrong_reply
from tidegate.sinks.redis.client.single_flight import SingleFlight

CONNECTIONS = 4
"""The most connections to each server."""
SHARE = 64
"""Another connection is opened when each one has this number of pending flights."""
FLIGHTS_MAX = 256
"""The most pending flights to one server; further requests wait."""

Result = TypeVar("Result")


class Flight:
    """Calls that were sent together: ``done`` is set when the last of their replies has arrived."""

    __slots__ = ("calls", "done", "end", "replies", "sent_at")

    def __init__(self, calls: int, loop: asyncio.AbstractEventLoop, left_s: float) -> None:
        self.calls = calls
        self.done: asyncio.Future[list[Any]] = loop.create_future()
        self.replies: list[Any] = []
        self.sent_at = loop.time()
        self.end = self.sent_at + left_s


class Channel:
    """One open connection.

    Error replies are returned unchanged. A connection that is lost, or silent for ``limit_s`` with
    a reply outstanding, fails every flight on it. A flight past its own deadline fails alone.
    """

    def __init__(self, connection: Any, limit_s: float, landed: Callable[[], None] | None = None) -> None:
        self.out: collections.deque[Flight] = collections.deque()
        self.failed: Exception | None = None
        self.until = monotonic() + AGE_MAX_S  # after that it takes no further flight
        self._connection, self._limit_s = connection, limit_s
        transport = connection._writer.transport  # noqa: SLF001 - likewise
        self._is_readable = readable(transport.get_extra_info("socket"))
        self._may_have_ticket = transport.get_extra_info("ssl_object") is not None  # of TLS, before any reply
        self._landed = landed or (lambda: None)
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._has_answered = False
        self._is_told = False  # the server of a new connection said something unasked: no request is sent
        self._unsent: list[bytes] = []
        self._wake = asyncio.Event()
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at = math.inf
        self._tasks = [self._loop.create_task(each) for each in (self._write(), self._read())]

    def send(self, contents: Sequence[bytes], left_s: float = math.inf) -> asyncio.Future[list[Any]]:
        """Send calls and return a future of their replies, or of redis.TimeoutError after ``left_s``.

        Never blocks; the future may be cancelled. ``landed`` is called when the replies have
        arrived or are lost, whether or not a task still waits for them, and also when this raises.
        """
        is_open = self.failed is None and not self.out and (self._has_answered or not self._may_have_ticket)
        if is_open and self._has_surplus():
            if self._has_answered:
                self.fail(no_reply())
            else:
                self._is_told = True
        if self.failed is not None:
            self._landed()
            raise self.failed
        flight = Flight(len(contents), self._loop, left_s)
        self.out.append(flight)
        if not self._is_told:
            self._unsent.extend(contents)
            self._wake.set()
        if self._watch is None or flight.end < self._watch_at:
            self._look_at(min(flight.sent_at + self._limit_s, flight.end))
        return flight.done

    def _has_surplus(self) -> bool:
        """Whether something arrived that no flight waits for, and that the reader has not seen yet."""
        stream = self._connection._reader  # noqa: SLF001 - there is no public name
        if stream is None or stream.at_eof():
            return True
        return bool(getattr(stream, "_buffer", b"") or self._is_readable())

    async def _write(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                unsent, self._unsent = self._unsent, []
                await self._connection.send_packed_command(unsent)
        except (*LOST, asyncio.CancelledError) as error:
            self.fail(error)

    async def _read(self) -> None:
        try:
            while True:
                reply = await self._reply()
                self._heard_at = self._loop.time()
                if self._is_told or not self.out:
                    raise self._unasked(reply)
                self._has_answered = True
                flight = self.out[0]
                flight.replies.append(reply)
                if len(flight.replies) == flight.calls:
                    self.out.popleft()
                    self._landed()
                    if not flight.done.done():  # else it was cancelled, and no task waits
                        flight.done.set_result(flight.replies)
        except (*LOST, redis.ResponseError, asyncio.CancelledError) as error:
            self.fail(error)
        except Exception:  # noqa: BLE001 - of the parser, which has many
            self.fail(no_reply())
        finally:
            await self._disconnect()

    def _unasked(self, reply: Any) -> Exception:
        """Return the error for a reply that no request waits for: the words of a new connection's server."""
        if not isinstance(reply, Exception):
            return redis.ConnectionError("the server sent a reply without a request")
        return redis.ConnectionError(str(reply)) if self._has_answered else reply

    async def _reply(self) -> Any:
        if not self._has_answered:
            self._connection.bytes_first()
        try:
            return await self._connection.read_at_once(disable_decoding=True, disconnect_on_error=False)
        except (exceptions.BusyLoadingError, exceptions.AuthenticationError) as refused:
            return refused  # redis-py takes them for lost connections
        except redis.ResponseError as refused:
            return refused

    def _look_at(self, when: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch, self._watch_at = self._loop.call_at(when, self._look), when

    def _look(self) -> None:
        """Check that the server still answers: the oldest flight may wait ``limit_s`` without any reply.

        Flights past their deadline fail; they keep their position in the queue.
        """
        self._watch = None
        if not self.out or self.failed is not None:
            return
        now = self._loop.time()
        silent_at = max(self._heard_at, self.out[0].sent_at) + self._limit_s
        if silent_at <= now:
            self.fail(redis.TimeoutError(f"no reply for {self._limit_s:g} s"))
            return
        for flight in self.out:
            if flight.end <= now and not flight.done.done():
                flight.done.set_exception(redis.TimeoutError(NO_REPLY_LEFT))
                flight.done.exception()  # a task that was cancelled meanwhile does not fetch it
        ends = [flight.end for flight in self.out if not flight.done.done()]
        self._look_at(min([silent_at, *ends]))

    def fail(self, error: BaseException) -> None:
        """End the connection; pending flights fail."""
        if self.failed is not None:
            return
        lost = error if isinstance(error, Exception) else closed()
        self.failed = lost
        if self._watch is not None:
            self._watch.cancel()
        while self.out:
            flight = self.out.popleft()
            self._landed()
            if not flight.done.done():
                flight.done.set_exception(lost)
                flight.done.exception()  # marks it as retrieved if the sender was cancelled
        mine = asyncio.current_task()
        for task in self._tasks:
            if task is not mine:
                task.cancel()

    async def close(self) -> None:
        """Close the connection; pending flights fail. Repeatable."""
        self.fail(asyncio.CancelledError())
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._disconnect()  # for a reader that was cancelled before it started

    async def _disconnect(self) -> None:
        with contextlib.suppress(redis.RedisError, OSError):
            await self._connection.disconnect()  # waits for the transport, no longer than a connect


async def in_time(work: Coroutine[Any, Any, Result], settings: RedisSettings, late: str) -> Result:
    """Await ``work`` until the call's deadline (``deadline.py``). Raises: redis.TimeoutError with
    ``late``.
    """
    left_s = left_of(settings.timeout_s)
    if left_s == math.inf:
        return await work
    try:
        return await asyncio.wait_for(work, left_s)
    except asyncio.TimeoutError:
        raise redis.TimeoutError(late) from None


def closed() -> redis.ConnectionError:
    """Return the error for requests that are pending while the connections are closed."""
    return redis.ConnectionError("the connection was closed")


class _Ended:
    """A mixin that ends the transport with the connection, however that ends; its errors are as ``Opened``'s.

    By itself a TLS transport waits for the server's closing message, and one with unsent bytes
    waits until they are taken, beyond every deadline.
    """

    read_at_once: Any

    async def connect(self: Any, *given: Any, **named: Any) -> None:
        send_no_name(self)
        await super().connect(*given, **named)  # type: ignore[misc]

    async def disconnect(self: Any, *given: Any, **named: Any) -> None:
        writer = self._writer  # redis-py has no public name for it
        try:
            await super().disconnect(*given, **named)  # type: ignore[misc]
        finally:
            if writer is not None:
                writer.transport.abort()

    def __init_subclass__(cls) -> None:
        cls.read_at_once = super().read_response  # type: ignore[misc]

    async def send_packed_command(self: Any, command: Any, *_: Any, **__: Any) -> None:
        """Send commands, as ``Opened``'s: the next read finds the end of a connection that has ended."""
        writer = self._writer
        if writer is None:
            return
        try:
            writer.writelines([command] if isinstance(command, bytes) else command)
            await asyncio.wait_for(writer.drain(), self.socket_timeout)
        except asyncio.TimeoutError:
            await self.disconnect(nowait=True)
            raise redis.TimeoutError("Timeout writing to socket") from None
        except OSError:
            pass

    def bytes_first(self: Any) -> None:
        """Let the bytes that arrived before the connection was lost be read, then its end.

        By itself a stream raises the loss at once.
        """
        stream = self._reader
        if stream is not None and stream.exception() is not None and stream._buffer:  # noqa: SLF001
            stream._exception = None  # noqa: SLF001 - there is no public name
            stream.feed_eof()

    async def read_response(self: Any, *given: Any, **named: Any) -> Any:
        self.bytes_first()
        try:
            return await super().read_response(*given, **named)  # type: ignore[misc]
        except (*LOST, redis.ResponseError):
            raise
        except Exception:  # noqa: BLE001 - of the parser; its text may quote a login
            self._writer and self._writer.transport.abort()
        raise no_reply()


class Plain(_Ended, Connection):
    """A connection without TLS."""


class Tls(_Ended, SSLConnection):
    """A connection with TLS."""


async def connected(address: Address, settings: RedisSettings) -> Any:
    """Open a connection and log in. Raises: redis.RedisError or OSError: not in time, or refused."""
    try:
        return await _connected(address, settings)
    except DENIED:
        if settings.provider is None or not settings.provider.forget():
            raise
    return await _connected(address, settings)


async def _connected(address: Address, settings: RedisSettings) -> Any:
    limits, refused = settings.connection, None
    kind: Any = Tls if settings.tls else Plain
    connection = kind(host=address.host, port=address.port, protocol=2, **limits)
    try:
        await asyncio.wait_for(
            connection.connect(), limits["socket_connect_timeout"] + limits["socket_timeout"]
        )
    except asyncio.TimeoutError:
        await _abandon(connection)
        raise redis.TimeoutError(f"no connection to {address} in time") from None
    except (redis.ResponseError, redis.AuthenticationError) as error:
        await _abandon(connection)
        refused = without_words(error, settings)
    except BaseException:
        await _abandon(connection)
        raise
    if refused is not None:  # raised here, so that it has no context
        raise refused
    connection.socket_timeout = None  # the channel's reader always waits; the channel has its own limit
    return connection


async def _abandon(connection: Any) -> None:
    """Drop a connection that was not established.

    A transport closes its socket in the loop's next turn, and a refused connection may be the last
    work of the loop, so this takes one more turn.
    """
    await connection.disconnect(nowait=True)
    await asyncio.sleep(0)


class NoTurnError(redis.TimeoutError):
    """An error of a request that was not sent before its deadline: it proves nothing about the server."""


class Slots:
    """The slots for pending flights at one server. A free one is for the call with the earliest deadline.

    A call that has begun therefore sends all its requests before a later call sends its first: of more calls
    than the server can answer in time some succeed. All waiting flights share one timer.
    """

    def __init__(self, count: int) -> None:
        self.free = count
        self.reason = f"{count} requests were pending all the time"
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []  # a heap, by deadline
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def take(self) -> bool:
        """Take a slot if one is free; no flight waits then."""
        if not self.free:
            return False
        self.free -= 1
        return True

    async def wait(self, end: float) -> None:
        """Take a slot, at ``end`` at the latest, by ``time.monotonic``. Raises: NoTurnError."""
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (end, next(self._order), turn))
        if end < self._timer_at:
            self._look_at(end)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release()
            raise

    def release(self) -> None:
        """Hand the slot over to the next flight, or free it."""
        while self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():  # else it was cancelled
                turn.set_result(None)
                return
        self.free += 1

    def _look_at(self, end: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer, self._timer_at = loop.call_later(max(0.0, end - monotonic()), self._look), end

    def _look(self) -> None:
        """Fail the flights whose deadline has passed."""
        self._timer, self._timer_at = None, math.inf
        now = monotonic()
        while self._waiting and (self._waiting[0][0] <= now or self._waiting[0][2].done()):
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():
                turn.set_exception(NoTurnError(self.reason))
                turn.exception()  # a task that was cancelled meanwhile does not fetch it
        if self._waiting:
            self._look_at(self._waiting[0][0])


class AsyncNode:
    """One server: connections to it, and what was learned about it (as ``redis_servers.Node``)."""

    def __init__(self, address: Address, settings: RedisSettings) -> None:
        self.address = address
        self.server_id = b""
        self.ready = False
        self._settings = settings
        self._channels: list[Channel] = []
        self._opening = SingleFlight(self._connect, closed)
        self._slots = Slots(FLIGHTS_MAX)
        self._closed = False

    async def ask(self, contents: Sequence[bytes], calls: Sequence[Call] = ()) -> list[Any]:
        """Return the replies to one flight; error replies are among them. Those to ``calls`` have their form.

        Raises: redis.RedisError or OSError: the connection was lost, or the call's deadline passed
        (``deadline.py``). The calls may or may not have taken effect.
        """
        if left_of(self._settings.timeout_s) <= 0:
            raise NoTurnError(NO_TIME_LEFT)
        if not self._slots.take():
            await self._slots.wait(end_of(self._settings.timeout_s))
        try:
            channel = self._free()
            if channel is None:
                channel = await in_time(self._open(), self._settings, NOT_IN_TIME)
        except BaseException:
            self._slots.release()
            raise
        replies = await channel.send(contents, left_of(self._settings.timeout_s))
        for call, reply in zip(calls, replies, strict=False):
            if not isinstance(reply, Exception) and not fits(call, reply):
                channel.fail(wrong_reply(call))  # the other flights on it may have replies of others
                raise wrong_reply(call)
        return replies

    def _free(self) -> Channel | None:
        """Return the connection with the fewest pending flights; None: open another one."""
        best, now, young = None, monotonic(), 0
        for channel in self._channels:
            if channel.failed is None and now < channel.until:
                young += 1
                if best is None or len(channel.out) < len(best.out):
                    best = channel
        if best is None or (len(best.out) >= SHARE and young < CONNECTIONS):
            return None
        return best

    async def _open(self) -> Channel:
        """Open a connection. Tasks that arrive while it is being opened share it, or its failure."""
        if self._closed:
            raise closed()
        return await self._opening.result()

    async def _connect(self) -> Channel:
        now = monotonic()
        for channel in list(self._channels):
            if channel.failed is not None or (channel.until <= now and not channel.out):
                self._channels.remove(channel)
                await channel.close()
        connection = await connected(self.address, self._settings)
        channel = Channel(connection, self._settings.connection["socket_timeout"], self._slots.release)
        self._channels.append(channel)
        return channel

    def drop(self) -> None:
        """Use no connection again that is open now: the server says that another one has taken over."""
        self.server_id, self.ready = b"", False
        for channel in self._channels:
            channel.until = -math.inf

    async def close(self) -> None:
        """Close its connections; pending flights fail. Repeatable."""
        self._closed = True
        await self._opening.close()
        while self._channels:
            await self._channels.pop().close()
