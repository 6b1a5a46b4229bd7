"""A TCP proxy that knows Redis's framing: it loses, holds and answers the one command or reply a test names.

Any client may talk through it to one server, without TLS; of pipelined commands each is a frame of its own.

    with RedisProxy(("127.0.0.1", server.port)) as proxy:
        late = proxy.hold_request("FCALL", "tide_publish")
        ...
        late.arrived()

- ``drop_reply``: the server does the work, its reply is lost and the connection closed.
- ``drop_request``: the connection is closed, the server hears nothing.
- ``hold_request``: kept until ``release``, which sends it though its client has gone meanwhile: late.
  What a MULTI began cannot be sent late: it ended with its connection.
- ``hold_reply``: the server does the work, its reply is kept until ``release``.
- ``refuse_with``: the client gets an error, the server hears nothing.

Each takes ``nth`` (1: the first that fits), ``times`` (1; None: all from there on), ``contains`` (bytes that
the request has in it) and ``where`` (a function of the request's words).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.support.proxy.proxy import Proxy
from services.support.proxy.relay import Address
from services.support.proxy.rules import WAIT_S, Hold, Rule
from services.support.redis.wire import CONTAINERS, RedisWire, words

ANY_PORT = ("127.0.0.1", 0)


class RedisProxy:
    """In front of one server; ``address`` is where clients go. A command is named as ``"HSET"``, or with the
    word behind it where that says what is asked for: ``"FCALL", "tide_publish"``, ``"CONFIG", "SET"``.

    The rest of ``Proxy`` is under ``proxy.plain``, such as ``on_frame``.
    """

    def __init__(self, server: Address, listen: Address = ANY_PORT) -> None:
        self.plain = Proxy(RedisWire(), [(listen, server)])
        self.address = self.plain.addresses[0]

    def drop_reply(self, command: str | None, of: str = "", **match: Any) -> Rule:
        return self.plain.drop_reply(_kind(command, of), **_match(match))

    def drop_request(self, command: str | None, of: str = "", **match: Any) -> Rule:
        return self.plain.drop_request(_kind(command, of), **_match(match))

    def hold_request(self, command: str | None, of: str = "", **match: Any) -> Hold:
        return self.plain.hold_request(_kind(command, of), **_match(match))

    def hold_reply(self, command: str | None, of: str = "", **match: Any) -> Hold:
        return self.plain.hold_reply(_kind(command, of), **_match(match))

    def refuse_with(self, error: str, command: str | None, of: str = "", **match: Any) -> Rule:
        """``error`` is what Redis would say, such as ``"OOM command not allowed"``."""
        assert "\r" not in error, "an error is one line"
        assert "\n" not in error, "an error is one line"
        return self.plain.answer(_kind(command, of), f"-{error}\r\n".encode(), **_match(match))

    def seen(self, command: str, of: str = "") -> int:
        """How many such requests came, lost ones included."""
        return self.plain.count(_kind(command, of) or "")

    def wait_seen(self, count: int, command: str, of: str = "", timeout: float = WAIT_S) -> None:
        """Return when so many such requests came; TimeoutError."""
        self.plain.wait_count(_kind(command, of) or "", count, timeout=timeout)

    def cut(self) -> int:
        """Close all connections now; how many there were. New ones are let in."""
        return self.plain.cut()

    def down(self) -> None:
        """Close all connections and refuse new ones, until ``up``."""
        self.plain.refuse()
        self.plain.cut()

    def up(self) -> None:
        self.plain.accept()

    def clear(self) -> None:
        """No rules, what is held is lost, new connections are let in; open ones stay."""
        self.plain.clear()

    def close(self) -> None:
        """End all; may be repeated. Raises the first unexpected failure."""
        self.plain.close()

    def __enter__(self) -> RedisProxy:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _kind(command: str | None, of: str) -> str | None:
    if command is None:
        return None
    name = command.upper()
    return f"{name} {of.upper() if name in CONTAINERS else of}" if of else name


def _match(match: dict[str, Any]) -> dict[str, Any]:
    """``where`` is told words; the relay has frames."""
    where: Callable[[list[bytes]], bool] | None = match.get("where")
    return match if where is None else match | {"where": lambda frame: where(words(frame))}
