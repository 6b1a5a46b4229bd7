"""A TCP proxy that loses, holds, doubles and answers the one request or reply a test names.

``kafka/proxy.py``, ``redis/proxy.py`` and ``cassandra/proxy.py`` know the protocols. What passes on one
connection stays in order: where a frame is held, those behind it wait.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from services.support.proxy.relay import CLOSE_S, Address, Callback, Relay, Wire
from services.support.proxy.rules import WAIT_S, Action, Direction, Hold, Kind, Rule, Seen, wait_for

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
R = TypeVar("R", bound=Rule)


class Proxy:
    """Listens in a thread of its own, one route per server: (where to listen, where the server is).

    ``kind`` is what the wire calls a request, or None for any. Rules are asked when a request arrives, in
    the order in which they were set, and the first that fits has it; so a rule about replies does not see
    the reply to an earlier request. Methods may be called by any thread but the callback's.
    """

    def __init__(self, wire: Wire, routes: Sequence[tuple[Address, Address]]) -> None:
        self._relay = Relay(wire, routes)
        self.changed = self._relay.changed
        self.addresses = self._relay.addresses
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()
        self.accept()

    @property
    def frames(self) -> list[Seen]:
        """The last frames that arrived."""
        with self.changed:
            return list(self._relay.seen)

    @property
    def failures(self) -> deque[BaseException]:
        """What nobody expected; ``close`` raises the first."""
        return self._relay.failures

    @property
    def hostile(self) -> int:
        """Connections that were closed for what is no frame, or one of a size that cannot be."""
        return self._relay.hostile

    def drop_reply(self, kind: Kind | None, *, close: bool = True, **match: Any) -> Rule:
        """The server does the work, its reply is lost and the connection closed at once.

        ``close=False``: it stays open, and this and all later replies on it are lost.
        """
        return self._add(Rule(self.changed, "drop_reply", kind, close=close, **match))

    def drop_request(self, kind: Kind | None, *, close: bool = True, **match: Any) -> Rule:
        """The request is lost and the connection closed at once.

        ``close=False``: it stays open, and this and all later requests on it are lost.
        """
        return self._add(Rule(self.changed, "drop_request", kind, close=close, **match))

    def hold_request(self, kind: Kind | None, **match: Any) -> Hold:
        """The request is kept, and reaches the server on release, even after its client has gone."""
        return self._hold("hold_request", kind, match)

    def hold_reply(self, kind: Kind | None, **match: Any) -> Hold:
        """The server does the work, its reply is kept until release."""
        return self._hold("hold_reply", kind, match)

    def duplicate(self, kind: Kind | None, **match: Any) -> Rule:
        """The server gets the request again, over a fresh connection (for Kafka without a login), once it has
        answered it; the client gets the first reply, after the second has come and is lost.
        """
        return self._add(Rule(self.changed, "duplicate", kind, **match))

    def answer(self, kind: Kind | None, reply: bytes | Callable[[bytes], bytes], **match: Any) -> Rule:
        """The client gets these bytes, or those made of its request; the server hears nothing of it."""
        return self._add(Rule(self.changed, "answer", kind, reply=reply, **match))

    def clear(self) -> None:
        """No rules, no callback, what is held is lost, new connections are served; open ones stay."""
        with self.changed:
            rules, self._relay.rules, self._relay.callback = self._relay.rules, [], None
        for rule in rules:
            if isinstance(rule, Hold):
                rule.discard()
        self.accept()

    def cut(self, route: int | None = None) -> int:
        """Close all connections now, to clients and servers; how many there were."""
        return self._call(self._relay.cut(route))

    def refuse(self, route: int | None = None) -> None:
        """Refuse new connections; open ones stay until ``cut``."""
        self._call(self._relay.refuse(route))

    def black_hole(self, route: int | None = None) -> None:
        """Lose all frames of all connections, and accept new ones that get no answer, for ever.

        After ``accept`` a connection that lost a frame stays silent, until ``cut``.
        """
        self._call(self._relay.black_hole(route))

    def accept(self, route: int | None = None) -> None:
        """End ``refuse`` and ``black_hole``."""
        self._call(self._relay.accept(route))

    def count(self, kind: Kind, direction: Direction = "request") -> int:
        """How many frames of a kind arrived, lost ones included."""
        return self._relay.counts[kind, direction]

    def counted(self) -> dict[Kind, int]:
        """How many requests of each kind arrived, lost ones included."""
        with self.changed:
            return {kind: n for (kind, direction), n in self._relay.counts.items() if direction == "request"}

    def wait_count(
        self, kind: Kind, count: int, direction: Direction = "request", timeout: float = WAIT_S
    ) -> None:
        """Return when so many frames of a kind have arrived; TimeoutError."""
        what = f"{count} of {kind!r} ({direction})"
        wait_for(self.changed, lambda: self.count(kind, direction) >= count, timeout, what)

    def on_frame(self, callback: Callback | None) -> None:
        """Call back before each frame is passed on, with its number, direction and kind.

        Numbers start anew, at 1, and go up with each frame that arrives. Everything waits while the
        callback runs. Where it returns False the frame is lost and its connection closed.
        """
        with self.changed:
            self._relay.n = 0
            self._relay.callback = callback

    def close(self) -> None:
        """End all connections and the thread; may be repeated. Raises the first unexpected failure."""
        if self._thread.is_alive():
            try:
                self.refuse()
                self.cut()
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(WAIT_S)
            if self._thread.is_alive():
                raise RuntimeError("the proxy's thread did not end")
        for keeper in self._relay.keepers:
            keeper.close()
        if self.failures:
            raise self.failures.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)  # such as a release that another thread waits for
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left))
        finally:
            self._loop.close()

    def _add(self, rule: R) -> R:
        with self.changed:
            self._relay.rules.append(rule)
        return rule

    def _hold(self, action: Action, kind: Kind | None, match: dict[str, Any]) -> Hold:
        deliver = self._relay.deliver
        return self._add(Hold(self.changed, action, kind, run=self._call, deliver=deliver, **match))

    def _call(self, work: Coroutine[Any, Any, T], timeout: float = WAIT_S) -> T:
        """Run it on the loop, with a deadline."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback must not call the proxy; it may return False")
        try:
            done = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout), self._loop)
            return done.result(timeout + 2 * CLOSE_S)
        except (asyncio.TimeoutError, concurrent.futures.TimeoutError):  # three classes before 3.11
            raise TimeoutError(f"the proxy did not do it within {timeout} s") from None
