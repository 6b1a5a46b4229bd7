"""What a test tells the proxy: which request something happens to, and when what was held goes on."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

WAIT_S = 60.0

Direction = Literal["request", "reply"]
Action = Literal["drop_reply", "drop_request", "hold_reply", "hold_request", "duplicate", "answer"]
Kind = int | str
"""Of a request, as the wire calls it: an Api, or the name of a command."""


class Seen(NamedTuple):
    """A frame that arrived, whatever became of it. ``size`` is all of it; ``version`` is 0 where requests
    have none."""

    n: int
    kind: Kind
    version: int
    size: int
    direction: Direction


def wait_for(changed: threading.Condition, is_so: Callable[[], bool], timeout: float, what: str) -> None:
    with changed:
        if not changed.wait_for(is_so, timeout):
            raise TimeoutError(f"waited {timeout} s for {what}")


@dataclass(eq=False)
class Rule:
    """Which requests have something happen to them: ``times`` of them, or all (None), from the ``nth`` on.

    ``kind`` None is any kind. ``contains`` and ``where`` look at the request's raw frame. ``route`` is a
    route's number. ``close``: see the proxy's ``drop_...``; ``reply``: see ``answer``.
    """

    changed: threading.Condition
    action: Action
    kind: Kind | None
    times: int | None = 1
    nth: int = 1
    contains: bytes = b""
    where: Callable[[bytes], bool] | None = None
    route: int | None = None
    close: bool = True
    reply: bytes | Callable[[bytes], bytes] = b""
    met: int = field(default=0, init=False)
    hits: int = field(default=0, init=False)

    def wait(self, timeout: float = WAIT_S, hits: int = 1) -> None:
        """Return when so many requests have matched; TimeoutError."""
        what = f"{hits} matches of {self.action}({self.kind!r})"
        wait_for(self.changed, lambda: self.hits >= hits, timeout, what)

    def remove(self) -> None:
        """Match no more; what is held stays held."""
        self.times = 0

    def takes(self, kinds: Sequence[Kind], frame: bytes, route: int) -> bool:
        """Whether this request is the rule's. Counts those that fit, so it is asked once for each."""
        if not self._fits(kinds, frame, route):
            return False
        self.met += 1
        if self.met < self.nth or (self.times is not None and self.hits >= self.times):
            return False
        self.hits += 1
        return True

    def _fits(self, kinds: Sequence[Kind], frame: bytes, route: int) -> bool:
        if (self.kind is not None and self.kind not in kinds) or self.route not in (None, route):
            return False
        return self.contains in frame and (self.where is None or self.where(frame))


@dataclass(eq=False)
class Held:
    """``verdict``: whether the frame passes, cancelled with its connection; ``done``: it passed.
    ``login``: what its client said before, when it came.
    """

    route: int
    login: tuple[bytes, ...]
    frame: bytes
    verdict: asyncio.Future[bool]
    done: asyncio.Future[None]


@dataclass(eq=False)
class Hold(Rule):
    """A rule that keeps what it matches until ``release`` or ``discard``; one frame per connection."""

    run: Callable[[Coroutine[Any, Any, int], float], int] = field(kw_only=True)
    deliver: Callable[[Held], Awaitable[None]] = field(kw_only=True)
    held: deque[Held] = field(default_factory=deque, init=False)

    def arrived(self, timeout: float = WAIT_S) -> None:
        """Return when a frame is held; TimeoutError."""
        what = f"{self.action}({self.kind!r}) to hold a frame"
        wait_for(self.changed, lambda: bool(self.held), timeout, what)

    def release(self, timeout: float = WAIT_S) -> int:
        """Pass on what is held now; how many frames that were.

        A request has its answer from the server on return: over its own connection, or over a fresh
        one where that is gone (for Kafka without a login). A reply whose client is gone goes nowhere and does
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
                await self.deliver(held)
                ended += 1
        return ended
