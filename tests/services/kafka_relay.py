"""The proxy's own side: connections and frames, all on one event loop.

What a test sees of it, and how it talks to it from another thread, stands in ``kafka_proxy.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kafka_rules import WAIT_S, Api, Direction, Held, Hold, Rule, Seen

FRAME_BYTES_MAX = 100 * 2**20
READ_AHEAD_BYTES = 2**20
WAITING_MAX = 10_000  # unanswered requests of one connection
CONNECTIONS_MAX = 500
SEEN_MAX = 10_000
CONNECT_S = LINGER_S = 5.0  # LINGER_S: for replies that are due when a client stops sending
CLOSE_S = 1.0

Address = tuple[str, int]
Callback = Callable[[int, Direction, int], "bool | None"]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Lost(Exception):  # noqa: N818
    """The connection is to be closed now."""


@dataclass(eq=False)
class Request:
    """A request on its way or at the broker: what is needed when its reply comes."""

    frame: bytes | None  # of a duplicate only
    kind: int
    api_version: int
    correlation_id: int
    rule: Rule | None
    answered: asyncio.Future[None] | None = None


@dataclass(eq=False)
class Connection:
    broker: int
    client: Streams
    upstream: Streams
    waiting: deque[Request] = field(default_factory=deque)  # replies come in the order of requests
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    promises: list[asyncio.Future[None]] = field(default_factory=list)
    requests_lost: bool = False
    replies_lost: bool = False


class Relay:
    """Between clients and brokers. ``changed`` guards what other threads read and write, too.

    A connection stays as it is as long as its client and its broker want: nothing here times it out.
    """

    def __init__(self, routes: Sequence[tuple[Address, Address]]) -> None:
        self.changed = threading.Condition()
        self.rules: list[Rule] = []
        self.counts: Counter[tuple[int, Direction]] = Counter()
        self.callback: Callback | None = None
        self.n = 0
        self.seen: deque[Seen] = deque(maxlen=SEEN_MAX)
        self.failures: deque[BaseException] = deque(maxlen=100)
        self.hostile = 0
        self._targets = [target for _, target in routes]
        self._dark: set[int] = set()
        self._doors: dict[int, tuple[socket.socket, asyncio.Task[None]]] = {}
        self._connections: dict[asyncio.Task[None], int] = {}
        # Bound and never listening: the port stays ours while connections are refused.
        self.keepers = [_bound(listen) for listen, _ in routes]
        self.addresses: list[Address] = [keeper.getsockname() for keeper in self.keepers]

    def _those(self, broker: int | None) -> Iterator[int]:
        return iter(range(len(self._targets)) if broker is None else (broker,))

    async def accept(self, broker: int | None) -> None:
        for number in self._those(broker):
            self._dark.discard(number)
            if number not in self._doors:
                door = _bound(self.addresses[number])
                door.listen(128)
                self._doors[number] = door, asyncio.create_task(self._admit(number, door))

    async def refuse(self, broker: int | None) -> None:
        for number in self._those(broker):
            if number in self._doors:
                door, task = self._doors.pop(number)
                task.cancel()
                await asyncio.wait({task})
                door.close()

    async def black_hole(self, broker: int | None) -> None:
        await self.accept(broker)
        self._dark.update(self._those(broker))

    async def cut(self, broker: int | None) -> int:
        tasks = {task for task, number in self._connections.items() if broker in (None, number)}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        return len(tasks)

    async def _admit(self, broker: int, door: socket.socket) -> None:
        while True:
            sock, _ = await asyncio.get_running_loop().sock_accept(door)
            if len(self._connections) >= CONNECTIONS_MAX:
                sock.close()
                continue
            sock.setblocking(False)
            task = asyncio.create_task(self._serve(broker, sock))
            self._connections[task] = broker
            task.add_done_callback(functools.partial(self._ended, sock))

    def _ended(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        sock.close()
        self._connections.pop(task, None)
        self._note_failure(None if task.cancelled() else task.exception())

    def _note_failure(self, failure: BaseException | None) -> None:
        if failure is not None and not isinstance(failure, (Lost, asyncio.CancelledError)):
            self.failures.append(failure)

    async def _dial(self, broker: int) -> Streams:
        opening = asyncio.open_connection(*self._targets[broker], limit=READ_AHEAD_BYTES)
        return await asyncio.wait_for(opening, CONNECT_S)

    async def send_alone(self, broker: int, frame: bytes) -> None:
        """Send a request over a connection of its own; its reply comes, and is lost."""
        reader, writer = await self._dial(broker)
        try:
            await _send(writer, frame)
            if await asyncio.wait_for(self._read(reader), WAIT_S) is None:
                raise ConnectionError("the broker closed the connection instead of answering")
        finally:
            await _hang_up(writer)

    async def _serve(self, broker: int, sock: socket.socket) -> None:
        try:
            upstream = client = await asyncio.open_connection(sock=sock, limit=READ_AHEAD_BYTES)
        except OSError:  # it came and went
            return
        try:
            if broker in self._dark:
                await self._requests(Connection(broker, client, client, requests_lost=True))
                return
            with contextlib.suppress(OSError, asyncio.TimeoutError):  # no broker: the client is hung up on
                upstream = await self._dial(broker)
                await self._pump(Connection(broker, client, upstream))
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

    async def _read(self, reader: asyncio.StreamReader) -> bytes | None:
        """The next frame with its size; None: the connection has ended, maybe in the middle of one."""
        try:
            head = await reader.readexactly(4)
            size = int.from_bytes(head, "big", signed=True)
            if not 4 <= size <= FRAME_BYTES_MAX:
                self.hostile += 1
                raise Lost
            return head + await reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def _requests(self, connection: Connection) -> None:
        reader, writer = connection.client[0], connection.upstream[1]
        while frame := await self._read(reader):
            connection.requests_lost |= connection.broker in self._dark
            n, request = self._arrived(connection, frame)
            rule = request.rule
            if rule and rule.action == "drop_request":
                if rule.close:
                    raise Lost
                connection.requests_lost = True
            if connection.requests_lost:
                continue
            if isinstance(rule, Hold) and rule.action == "hold_request":
                request.answered = await self._hold(rule, connection, frame)
            self._call_back(n, "request", request.kind)
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
        while frame := await self._read(reader):
            request = connection.waiting[0] if connection.waiting else None
            if request is None or frame[4:8] != request.correlation_id.to_bytes(4, "big", signed=True):
                raise ValueError(f"a reply to none of the requests: {frame[:8].hex()} after {request}")
            n = self._note(request.kind, request.api_version, len(frame), "reply")
            if request.answered and not request.answered.done():
                request.answered.set_result(None)
            await self._reply(connection, request, frame, n)
            connection.waiting.popleft()
            connection.answered.set()

    async def _reply(self, connection: Connection, request: Request, frame: bytes, n: int) -> None:
        rule, passed = request.rule, None
        if request.frame:
            await self.send_alone(connection.broker, request.frame)
        if rule and rule.action == "drop_reply":
            if rule.close:
                raise Lost
            connection.replies_lost = True
        if isinstance(rule, Hold) and rule.action == "hold_reply":
            passed = await self._hold(rule, connection, frame)
        connection.replies_lost |= connection.broker in self._dark
        if not connection.replies_lost:
            self._call_back(n, "reply", request.kind)
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
        held = Held(connection.broker, frame, loop.create_future(), loop.create_future())
        connection.promises.append(held.done)
        with self.changed:
            rule.held.append(held)
            self.changed.notify_all()
        if not await held.verdict:
            raise Lost
        return held.done

    def _note(self, kind: int, api_version: int, size: int, direction: Direction) -> int:
        with self.changed:
            self.n += 1
            self.counts[kind, direction] += 1
            self.seen.append(Seen(self.n, kind, api_version, size, direction))
            self.changed.notify_all()
            return self.n

    def _arrived(self, connection: Connection, frame: bytes) -> tuple[int, Request]:
        """Note a request and find its rule; one that is lost anyway has none."""
        if len(frame) < 12 or len(connection.waiting) >= WAITING_MAX:
            self.hostile += 1
            raise Lost
        key, version, correlation_id = struct.unpack_from(">hhi", frame, 4)
        kind = Api(key) if key in Api._value2member_map_ else key
        with self.changed:
            fitting = (rule for rule in self.rules if rule.fits(kind, frame, connection.broker))
            rule = None if connection.requests_lost else next(fitting, None)
            if rule:
                rule.hits += 1
            kept = frame if rule and rule.action == "duplicate" else None
            n = self._note(kind, version, len(frame), "request")
        return n, Request(kept, kind, version, correlation_id, rule)

    def _call_back(self, n: int, direction: Direction, kind: int) -> None:
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
