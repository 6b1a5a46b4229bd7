"""Stops a Java process in one of its methods: what tests need of the JVM's own debugging protocol, JDWP.

    with Debugger(port) as debugger:
        debugger.stop_in("org.apache.cassandra.service.StorageProxy", "commitPaxos")
        ... the first thread that comes by stands still, all others go on ...
        first_stopped([debugger], 60.0)
        debugger.let_go()

The process was started with ``OPTION``, and says at which port it listens (``port_of``), once: later it
listens at another one, so that a debugger stays.
"""

from __future__ import annotations

import re
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

OPTION = "-agentlib:jdwp=transport=dt_socket,server=y,suspend=n,address=127.0.0.1:0"
HELLO = b"JDWP-Handshake"
ANSWER_S = 30.0
# Command sets and commands, kinds of events: the protocol's numbers.
CLASSES_BY_SIGNATURE, DISPOSE, RESUME, METHODS = (1, 2), (1, 6), (1, 9), (2, 5)
SET_REQUEST, CLEAR_BREAKPOINTS, EVENTS = (15, 1), (15, 3), (64, 100)
BREAKPOINT, ONE_THREAD, ONCE, PLACE, A_CLASS = 2, 1, 1, 7, 1
ID = struct.Struct(">Q")
"""What stands for a class or a method, on any JVM of 64 bits."""


def port_of(printed: str) -> int:
    """Where a process listens, by what it printed."""
    return int(re.findall(r"Listening for transport dt_socket at address: (\d+)", printed)[-1])


class Debugger:
    """One connection. A process has one debugger at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        self._sent = 0
        self._stopped = False
        self._socket.sendall(HELLO)
        assert self._exactly(len(HELLO)) == HELLO

    def stop_in(self, class_name: str, method: str) -> None:
        """The next thread that enters the method stands still there; further ones do not."""
        told = self._ask(CLASSES_BY_SIGNATURE, _text(f"L{class_name.replace('.', '/')};"))
        assert struct.unpack_from(">I", told)[0] == 1, f"{class_name} is not loaded"
        of_class = told[5:13]
        place = bytes([A_CLASS]) + of_class + self._method(of_class, method) + ID.pack(0)
        only = struct.pack(">BI", ONCE, 1)
        modifiers = struct.pack(">IB", 2, PLACE) + place + only
        self._ask(SET_REQUEST, bytes([BREAKPOINT, ONE_THREAD]) + modifiers)

    def _method(self, of_class: bytes, wanted: str) -> bytes:
        told = self._ask(METHODS, of_class)
        (count,) = struct.unpack_from(">I", told)
        at = 4
        for _ in range(count):
            method, at = told[at : at + 8], at + 8
            name, at = _read_text(told, at)
            _, at = _read_text(told, at)
            at += 4
            if name == wanted:
                return method
        raise AssertionError(f"there is no method {wanted}")

    @property
    def stopped(self) -> bool:
        """Whether a thread stands still."""
        while not self._stopped and select.select([self._socket], [], [], 0)[0]:
            self._take()
        return self._stopped

    def let_go(self) -> None:
        """All goes on, and nothing stops any more until it is told to. May be repeated."""
        self._ask(CLEAR_BREAKPOINTS, b"")
        self._ask(RESUME, b"")
        self._stopped = False

    def close(self) -> None:
        """All goes on, and the process is left alone."""
        self._ask(DISPOSE, b"")
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- packets ----------------------------------------------------------------------------------

    def _ask(self, command: tuple[int, int], content: bytes) -> bytes:
        self._sent += 1
        self._socket.sendall(struct.pack(">IIBBB", 11 + len(content), self._sent, 0, *command) + content)
        while True:
            reply = self._take()
            if reply is not None:
                return reply

    def _take(self) -> bytes | None:
        """The next packet: a reply's content; None, and noted, when it tells of an event."""
        size, _, flags, one, two = struct.unpack(">IIBBB", self._exactly(11))
        content = self._exactly(size - 11)
        if flags & 0x80:
            error = one * 256 + two
            assert error == 0, f"JDWP error {error}"
            return content
        if (one, two) == EVENTS and content[5] == BREAKPOINT:
            self._stopped = True
        return None

    def _exactly(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = self._socket.recv(size - len(parts))
            assert part, "the process closed the connection"
            parts += part
        return parts


def first_stopped(debuggers: Sequence[Debugger], deadline_s: float) -> int:
    """Wait until a thread stands still in one of the processes; which. TimeoutError."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        for at, debugger in enumerate(debuggers):
            if debugger.stopped:
                return at
        time.sleep(0.01)
    raise TimeoutError(f"nothing came by within {deadline_s} s")


def _text(text: str) -> bytes:
    content = text.encode()
    return struct.pack(">I", len(content)) + content


def _read_text(content: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">I", content, at)
    return content[at + 4 : at + 4 + size].decode(), at + 4 + size
