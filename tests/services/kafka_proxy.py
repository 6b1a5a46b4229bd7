"""A TCP proxy that knows Kafka's framing: it loses, holds and doubles the one request or reply a test names.

Of the protocol it understands a frame's size, a request's api key, version and correlation id, and a
reply's correlation id; so any client and any broker may talk through it, without TLS. A connection's
frames stay in order, as in a broker: where one is held, those behind it wait.

    with KafkaProxy([(listen_address, broker_address)]) as proxy:
        lost = proxy.drop_reply(Api.PRODUCE, contains=b"decisions")
        ...
        lost.wait()

On its own it prints what passes: python tests/services/kafka_proxy.py --listen HOST:PORT --target HOST:PORT
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import signal
import threading
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from kafka_relay import CLOSE_S, Address, Callback, Relay
from kafka_rules import WAIT_S, Action, Direction, Hold, Rule, Seen, wait_for

T = TypeVar("T")
R = TypeVar("R", bound=Rule)


class KafkaProxy:
    """Listens in a thread of its own, one route per broker: (where to listen, where the broker is).

    ``kind`` is an Api, or None for any. Rules are asked when a request arrives, in the order in
    which they were set, and the first that fits has it; so a rule about replies does not see the
    reply to an earlier request. Methods may be called by any thread but the callback's.
    """

    def __init__(self, routes: Sequence[tuple[Address, Address]]) -> None:
        self._relay = Relay(routes)
        self._changed = self._relay.changed
        self.addresses = self._relay.addresses
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="kafka-proxy")
        self._thread.start()
        self.accept()

    @property
    def seen(self) -> list[Seen]:
        """The last frames that arrived."""
        with self._changed:
            return list(self._relay.seen)

    @property
    def failures(self) -> deque[BaseException]:
        """What nobody expected; ``close`` raises the first."""
        return self._relay.failures

    @property
    def hostile(self) -> int:
        """Connections that were closed for a frame of a size that cannot be."""
        return self._relay.hostile

    def drop_reply(self, kind: int | None, *, close: bool = True, **match: Any) -> Rule:
        """The broker does the work, its reply is lost and the connection closed at once.

        ``close=False``: it stays open, and this and all later replies on it are lost.
        """
        return self._add(Rule(self._changed, "drop_reply", kind, close=close, **match))

    def drop_request(self, kind: int | None, *, close: bool = True, **match: Any) -> Rule:
        """The request is lost and the connection closed at once.

        ``close=False``: it stays open, and this and all later requests on it are lost.
        """
        return self._add(Rule(self._changed, "drop_request", kind, close=close, **match))

    def hold_request(self, kind: int | None, **match: Any) -> Hold:
        """The request is kept, and reaches the broker on release, even after its client has gone."""
        return self._hold("hold_request", kind, match)

    def hold_reply(self, kind: int | None, **match: Any) -> Hold:
        """The broker does the work, its reply is kept until release."""
        return self._hold("hold_reply", kind, match)

    def duplicate(self, kind: int | None, **match: Any) -> Rule:
        """The broker gets the request again, over a fresh connection (without a login), once it has
        answered it; the client gets the first reply, after the second has come and is lost.
        """
        return self._add(Rule(self._changed, "duplicate", kind, **match))

    def clear(self) -> None:
        """No rules, no callback, what is held is lost, new connections are served; open ones stay."""
        with self._changed:
            rules, self._relay.rules, self._relay.callback = self._relay.rules, [], None
        for rule in rules:
            if isinstance(rule, Hold):
                rule.discard()
        self.accept()

    def cut(self, broker: int | None = None) -> int:
        """Close all connections now, to clients and brokers; how many there were."""
        return self._call(self._relay.cut(broker))

    def refuse(self, broker: int | None = None) -> None:
        """Refuse new connections; open ones stay until ``cut``."""
        self._call(self._relay.refuse(broker))

    def black_hole(self, broker: int | None = None) -> None:
        """Lose all frames of all connections, and accept new ones that get no answer, for ever.

        After ``accept`` a connection that lost a frame stays silent, until ``cut``.
        """
        self._call(self._relay.black_hole(broker))

    def accept(self, broker: int | None = None) -> None:
        """End ``refuse`` and ``black_hole``."""
        self._call(self._relay.accept(broker))

    def count(self, kind: int, direction: Direction = "request") -> int:
        """How many frames of a kind arrived, lost ones included."""
        return self._relay.counts[kind, direction]

    def wait_count(
        self, kind: int, count: int, direction: Direction = "request", timeout: float = WAIT_S
    ) -> None:
        """Return when so many frames of a kind have arrived; TimeoutError."""
        what = f"{count} of {kind!r} ({direction})"
        wait_for(self._changed, lambda: self.count(kind, direction) >= count, timeout, what)

    def on_frame(self, callback: Callback | None) -> None:
        """Call back before each frame is passed on, with its number, direction and kind.

        Numbers start anew, at 1, and go up with each frame that arrives. Everything waits while the
        callback runs. Where it returns False the frame is lost and its connection closed.
        """
        with self._changed:
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

    def __enter__(self) -> KafkaProxy:  # noqa: PYI034
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
        with self._changed:
            self._relay.rules.append(rule)
        return rule

    def _hold(self, action: Action, kind: int | None, match: dict[str, Any]) -> Hold:
        deliver = self._relay.send_alone
        return self._add(Hold(self._changed, action, kind, run=self._call, deliver=deliver, **match))

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


def _parse(address: str) -> Address:
    host, _, port = address.rpartition(":")
    return host, int(port)


def main() -> None:
    parser = argparse.ArgumentParser(description="Pass Kafka's frames on, and print what passes.")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--target", required=True, metavar="HOST:PORT")
    arguments = parser.parse_args()
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with KafkaProxy([(_parse(arguments.listen), _parse(arguments.target))]) as proxy:
        proxy.on_frame(lambda n, direction, kind: print(n, direction, repr(kind), flush=True))
        print("listening on {}:{}".format(*proxy.addresses[0]), flush=True)
        signal.sigwait(ends)


if __name__ == "__main__":
    main()
