"""What a test tells the proxy: which request something happens to, and when what was held goes on."""

from __future__ import annotations

import asyncio
import enum
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

WAIT_S = 10.0

Direction = Literal["request", "reply"]
Action = Literal["drop_reply", "drop_request", "hold_reply", "hold_request", "duplicate"]


class Api(enum.IntEnum):
    """Kinds of requests, by api key; one that is missing here is a bare number everywhere."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    INCREMENTAL_ALTER_CONFIGS = 44
    DESCRIBE_CLUSTER = 60
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    DESCRIBE_TOPIC_PARTITIONS = 75


class Seen(NamedTuple):
    """A frame that arrived, whatever became of it; ``size`` includes the four bytes that say it."""

    n: int
    kind: int
    api_version: int
    size: int
    direction: Direction


def wait_for(changed: threading.Condition, is_so: Callable[[], bool], timeout: float, what: str) -> None:
    with changed:
        if not changed.wait_for(is_so, timeout):
            raise TimeoutError(f"waited {timeout} s for {what}")


@dataclass(eq=False)
class Rule:
    """Which requests have something happen to them: ``times`` of them, or all (None).

    ``kind`` None is any kind. ``contains`` and ``where`` look at the request's raw frame, its size
    included. ``broker`` is a route's number. ``close``: see the proxy's ``drop_...``.
    """

    changed: threading.Condition
    action: Action
    kind: int | None
    times: int | None = 1
    contains: bytes = b""
    where: Callable[[bytes], bool] | None = None
    broker: int | None = None
    close: bool = True
    hits: int = field(default=0, init=False)

    def wait(self, timeout: float = WAIT_S, hits: int = 1) -> None:
        """Return when so many requests have matched; TimeoutError."""
        what = f"{hits} matches of {self.action}({self.kind!r})"
        wait_for(self.changed, lambda: self.hits >= hits, timeout, what)

    def remove(self) -> None:
        """Match no more; what is held stays held."""
        self.times = 0

    def fits(self, kind: int, frame: bytes, broker: int) -> bool:
        if self.kind not in (None, kind) or self.broker not in (None, broker):
            return False
        if self.times is not None and self.hits >= self.times:
            return False
        return self.contains in frame and (self.where is None or self.where(frame))


@dataclass(eq=False)
class Held:
    """``verdict``: whether the frame passes, cancelled with its connection; ``done``: it passed."""

    broker: int
    frame: bytes
    verdict: asyncio.Future[bool]
    done: asyncio.Future[None]


@dataclass(eq=False)
class Hold(Rule):
    """A rule that keeps what it matches until ``release`` or ``discard``; one frame per connection."""

    run: Callable[[Coroutine[Any, Any, int], float], int] = field(kw_only=True)
    deliver: Callable[[int, bytes], Awaitable[None]] = field(kw_only=True)
    held: deque[Held] = field(default_factory=deque, init=False)

    def arrived(self, timeout: float = WAIT_S) -> None:
        """Return when a frame is held; TimeoutError."""
        what = f"{self.action}({self.kind!r}) to hold a frame"
        wait_for(self.changed, lambda: bool(self.held), timeout, what)

    def release(self, timeout: float = WAIT_S) -> int:
        """Pass on what is held now; how many frames that were.

        A request has its answer from the broker on return: over its own connection, or over a fresh
        one (without a login) where that is gone. A reply whose client is gone goes nowhere and does
        not count. ConnectionError, TimeoutError: a request may have arrived or not.
        """
        return self.run(self._end(passes=True), timeout)

    def discard(self, timeout: float = WAIT_S) -> int:
        """Lose what is held now, and close its connections; how many frames that were."""
        return self.run(self._end(passes=False), timeout)

    async def _end(self, *, passes: bool) -> int:
        ended = 0
        for held in [self.held.popleft() for _ in range(len(self.held))]:
            connected = not held.verdict.done()
            if connected:
                held.verdict.set_result(passes)
            if not passes:
                ended += 1
            elif connected:
                await asyncio.wait({held.done})
                if held.done.cancelled() and self.action == "hold_request":
                    raise ConnectionError("the connection was lost while a held request was passed on")
                ended += not held.done.cancelled()
            elif self.action == "hold_request":
                await self.deliver(held.broker, held.frame)
                ended += 1
        return ended
