"""The proxy's own side: connections and frames, all on one event loop.

What a test sees of it, and how it talks to it from another thread, stands in ``proxy.py``; what a frame
is, in ``kafka/wire.py``, ``redis/wire.py``, ``cassandra/wire.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from services.support.proxy.rules import WAIT_S, Direction, Held, Hold, Kind, Rule, Seen

READ_AHEAD_BYTES = 2**20
WAITING_MAX = 10_000  # unanswered requests of one connection
CONNECTIONS_MAX = 500
SEEN_MAX = 10_000
CONNECT_S = LINGER_S = 5.0  # LINGER_S: for replies that are due when a client stops sending
CLOSE_S = 1.0

Address = tuple[str, int]
Callback = Callable[[int, Direction, Kind], "bool | None"]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Lost(Exception):  # noqa: N818
    """The connection is to be closed now."""


class HostileFrameError(Exception):
    """Not a frame, or one of a size that cannot be: its connection is closed."""


class Asked(NamedTuple):
    """What a request is. Each of ``kinds`` is counted and may be a rule's; the first is shown."""

    kinds: tuple[Kind, ...]
    version: int = 0
    correlation_id: int = 0


class Wire(Protocol):
    """How the frames of one protocol are read. Reading raises HostileFrameError."""

    async def read_request(self, reader: asyncio.StreamReader) -> bytes: ...

    async def read_reply(self, reader: asyncio.StreamReader) -> bytes: ...

    def asked(self, frame: bytes) -> Asked: ...

    any_order: bool
    """Whether replies may come in another order than their requests."""

    def answers(self, frame: bytes, asked: Asked) -> bool:
        """Whether this can be the reply to a request: the oldest without one, or any (``any_order``)."""

    def answered(self, frame: bytes, asked: Asked) -> None:
        """A request has its reply: the wire keeps what later requests refer to."""

    def unasked(self, frame: bytes) -> bool:
        """Whether what the server sent is no reply: it is passed on, and nothing else."""

    def is_login(self, frame: bytes) -> bool:
        """Whether a request says who the client is, so that a fresh connection needs it first."""


@dataclass(eq=False)
class Request:
    """A request on its way or at the server: what is needed when its reply comes."""

    frame: bytes | None  # of a duplicate only
    asked: Asked
    rule: Rule | None
    answered: asyncio.Future[None] | None = None


@dataclass(eq=False)
class Connection:
    route: int
    client: Streams
    upstream: Streams
    waiting: deque[Request] = field(default_factory=deque)  # in the order of requests
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    promises: list[asyncio.Future[None]] = field(default_factory=list)
    login: tuple[bytes, ...] = ()
    requests_lost: bool = False
    replies_lost: bool = False


class Relay:
    """Between clients and servers. ``changed`` guards what other threads read and write, too.

    A connection stays as it is as long as its client and its route want: nothing here times it out.
    """

    def __init__(self, wire: Wire, routes: Sequence[tuple[Address, Address]]) -> None:
        self._wire = wire
        self.changed = threading.Condition()
        self.rules: list[Rule] = []
        self.counts: Counter[tuple[Kind, Direction]] = Counter()
        self.callback: Callback | None = None
        self.n = 0
        self.seen: deque[Seen] = deque(maxlen=SEEN_MAX)
        self.failures: deque[BaseException] = deque(maxlen=100)
        self.hostile = 0
        self._targets = [target for _, target in routes]
        self._dark: set[int] = set()
        self._doors: dict[int, socket.socket] = {}
        self._connections: dict[asyncio.Task[None], int] = {}
        # Bound and never listening: the port stays ours while connections are refused.
        self.keepers = [_bound(listen) for listen, _ in routes]
        self.addresses: list[Address] = [keeper.getsockname() for keeper in self.keepers]

    def _those(self, route: int | None) -> Iterator[int]:
        return iter(range(len(self._targets)) if route is None else (route,))

    async def accept(self, route: int | None) -> None:
        for number in self._those(route):
            self._dark.discard(number)
            if number not in self._doors:
                door = _bound(self.addresses[number])
                door.listen(128)
                self._doors[number] = door
                asyncio.get_running_loop().add_reader(door, self._admit, number, door)

    async def refuse(self, route: int | None) -> None:
        for number in self._those(route):
            if number in self._doors:
                door = self._doors.pop(number)
                asyncio.get_running_loop().remove_reader(door)
                door.close()

    async def black_hole(self, route: int | None) -> None:
        await self.accept(route)
        self._dark.update(self._those(route))

    async def cut(self, route: int | None) -> int:
        tasks = {task for task, number in self._connections.items() if route in (None, number)}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        return len(tasks)

    def _admit(self, route: int, door: socket.socket) -> None:
        """Somebody is at the door. Called by the loop: a task that waits for it would, when cancelled at that
        very moment, lose the connection without closing it.
        """
        try:
            sock, _ = door.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # gone again
        if len(self._connections) >= CONNECTIONS_MAX:
            sock.close()
            return
        sock.setblocking(False)
        task = asyncio.create_task(self._serve(route, sock))
        self._connections[task] = route
        task.add_done_callback(functools.partial(self._ended, sock))

    def _ended(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        sock.close()
        self._connections.pop(task, None)
        self._note_failure(None if task.cancelled() else task.exception())

    def _note_failure(self, failure: BaseException | None) -> None:
        if failure is not None and not isinstance(failure, (Lost, asyncio.CancelledError)):
            self.failures.append(failure)

    async def _dial(self, route: int) -> Streams:
        opening = asyncio.open_connection(*self._targets[route], limit=READ_AHEAD_BYTES)
        return await asyncio.wait_for(opening, CONNECT_S)

    async def deliver(self, held: Held) -> None:
        """Send what was held over a connection of its own."""
        await self._send_alone(held.route, *held.login, held.frame)

    async def _send_alone(self, route: int, *frames: bytes) -> None:
        """Send requests over a connection of its own; their replies come, and are lost."""
        reader, writer = await self._dial(route)
        try:
            for frame in frames:
                await _send(writer, frame)
                reply = await asyncio.wait_for(self._reply_to(reader), WAIT_S)
                if reply is None:
                    raise ConnectionError("the server closed the connection instead of answering")
        finally:
            await _hang_up(writer)

    async def _reply_to(self, reader: asyncio.StreamReader) -> bytes | None:
        while (frame := await self._read(self._wire.read_reply(reader))) and self._wire.unasked(frame):
            pass
        return frame

    async def _serve(self, route: int, sock: socket.socket) -> None:
        try:
            upstream = client = await asyncio.open_connection(sock=sock, limit=READ_AHEAD_BYTES)
        except OSError:  # it came and went
            return
        try:
            if route in self._dark:
                await self._requests(Connection(route, client, client, requests_lost=True))
                return
            with contextlib.suppress(OSError, asyncio.TimeoutError):  # no server: the client is hung up on
                upstream = await self._dial(route)
                await self._pump(Connection(route, client, upstream))
        finally:
            await _hang_up(upstream[1])
            await _hang_up(client[1])

    async def _pump(self, connection: Connection) -> None:
        pumps = [asyncio.ensure_future(pump(connection)) for pump in (self._requests, self._replies)]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for outcome in await asyncio.gather(*pumps, return_exceptions=True):
                self._note_failure(outcome)
            for promise in connection.promises:
                promise.cancel()

    # -- frames ------------------------------------------------------------------------------------

    async def _read(self, reading: Coroutine[object, object, bytes]) -> bytes | None:
        """The next frame; None: the connection has ended, maybe in the middle of one."""
        try:
            return await reading
        except HostileFrameError:
            self.hostile += 1
            raise Lost from None
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def _requests(self, connection: Connection) -> None:
        reader, writer = connection.client[0], connection.upstream[1]
        while frame := await self._read(self._wire.read_request(reader)):
            connection.requests_lost |= connection.route in self._dark
            n, request = self._arrived(connection, frame)
            rule = request.rule
            if rule and rule.action == "drop_request":
                if rule.close:
                    raise Lost
                connection.requests_lost = True
            if connection.requests_lost:
                continue
            if self._wire.is_login(frame):
                connection.login += (frame,)
            if rule and rule.action == "answer":
                await self._all_answered(connection)  # replies come in the order of requests
                reply = rule.reply if isinstance(rule.reply, bytes) else rule.reply(frame)
                await _send(connection.client[1], reply)
                continue
            if isinstance(rule, Hold) and rule.action == "hold_request":
                request.answered = await self._hold(rule, connection, frame)
            self._call_back(n, "request", request.asked.kinds[0])
            connection.waiting.append(request)
            await _send(writer, frame)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_answered(connection), LINGER_S)

    async def _all_answered(self, connection: Connection) -> None:
        while connection.waiting:
            connection.answered.clear()
            await connection.answered.wait()

    async def _replies(self, connection: Connection) -> None:
        reader = connection.upstream[0]
        while frame := await self._read(self._wire.read_reply(reader)):
            if self._wire.unasked(frame):
                await _send(connection.client[1], frame)
                continue
            request = self._request_of(frame, connection)
            self._wire.answered(frame, request.asked)
            n = self._note(request.asked, len(frame), "reply")
            if request.answered and not request.answered.done():
                request.answered.set_result(None)
            await self._reply(connection, request, frame, n)
            connection.waiting.remove(request)
            connection.answered.set()

    def _request_of(self, reply: bytes, connection: Connection) -> Request:
        waiting = connection.waiting
        for request in itertools.islice(waiting, None if self._wire.any_order else 1):
            if self._wire.answers(reply, request.asked):
                return request
        oldest = waiting[0] if waiting else None
        raise ValueError(f"a reply to none of the requests: {reply[:8].hex()} after {oldest}")

    async def _reply(self, connection: Connection, request: Request, frame: bytes, n: int) -> None:
        rule, passed = request.rule, None
        if request.frame:
            await self._send_alone(connection.route, *connection.login, request.frame)
        if rule and rule.action == "drop_reply":
            if rule.close:
                raise Lost
            connection.replies_lost = True
        if isinstance(rule, Hold) and rule.action == "hold_reply":
            passed = await self._hold(rule, connection, frame)
        connection.replies_lost |= connection.route in self._dark
        if not connection.replies_lost:
            self._call_back(n, "reply", request.asked.kinds[0])
            try:
                await _send(connection.client[1], frame)
            except Lost:  # the client is gone; what it asked for before goes on
                connection.replies_lost = True
        if passed and connection.replies_lost:
            passed.cancel()
        elif passed:
            passed.set_result(None)

    async def _hold(self, rule: Hold, connection: Connection, frame: bytes) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        held = Held(connection.route, connection.login, frame, loop.create_future(), loop.create_future())
        connection.promises.append(held.done)
        with self.changed:
            rule.held.append(held)
            self.changed.notify_all()
        if not await held.verdict:
            raise Lost
        return held.done

    def _note(self, asked: Asked, size: int, direction: Direction) -> int:
        with self.changed:
            self.n += 1
            for kind in asked.kinds:
                self.counts[kind, direction] += 1
            self.seen.append(Seen(self.n, asked.kinds[0], asked.version, size, direction))
            self.changed.notify_all()
            return self.n

    def _arrived(self, connection: Connection, frame: bytes) -> tuple[int, Request]:
        """Note a request and find its rule; one that is lost anyway has none."""
        try:
            if len(connection.waiting) >= WAITING_MAX:
                raise HostileFrameError
            asked = self._wire.asked(frame)
        except HostileFrameError:
            self.hostile += 1
            raise Lost from None
        with self.changed:
            takers = (rule for rule in self.rules if rule.takes(asked.kinds, frame, connection.route))
            rule = None if connection.requests_lost else next(takers, None)
            kept = frame if rule and rule.action == "duplicate" else None
            n = self._note(asked, len(frame), "request")
        return n, Request(kept, asked, rule)

    def _call_back(self, n: int, direction: Direction, kind: Kind) -> None:
        callback = self.callback
        if callback is not None and callback(n, direction, kind) is False:
            raise Lost


async def _send(writer: asyncio.StreamWriter, frame: bytes) -> None:
    try:
        writer.write(frame)
        await writer.drain()
    except OSError:
        raise Lost from None


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    """Close, with what is written; what the other side does not take in time is lost."""
    try:
        writer.close()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), CLOSE_S)
    finally:
        writer.transport.abort()


def _bound(address: Address) -> socket.socket:
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock
