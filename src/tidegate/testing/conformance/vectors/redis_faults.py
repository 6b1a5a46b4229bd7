"""Faults of a Redis server before a reader under test: error replies, and connections that were left.

A proxy passes everything on. Where a rule is set, it sends the server an EVAL for the reader's command, which
gives the error reply: the order of pipelined replies stays.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from typing_extensions import Self

PIECE_BYTES, CONNECT_S = 65_536, 5.0
ANSWERED = b"FCALL FCALL_RO EVAL EVAL_RO EVALSHA EVALSHA_RO HMGET HGET XREAD".split()
"""The commands that get the error reply: those of a reader after its login."""
CALLS = (b"FCALL", b"FCALL_RO")
SCRIPT = b"return redis.error_reply(ARGV[1])"
FULL = b"-ERR max number of clients reached\r\n"


class FaultyServer:
    """A proxy before the one Redis server of a URL. A context manager; ``url`` is the one for the reader."""

    def __init__(self, url: str) -> None:
        server = server_of(url)
        assert server is not None, "no server that can be reached through a proxy"
        self._server = server
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._door.getsockname()[1]}"
        self.opened = 0
        """The connections so far."""
        self.answered = 0
        """The commands that got the error reply of the present rule."""
        self.is_full = False
        """Whether the server takes no further connection."""
        self._reply, self._times, self._older_than, self._after = "", 0, 0, 0
        self._function = b""
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._admit, name="faulty-server", daemon=True).start()

    def refuse(
        self, reply: str, times: int = 1 << 30, *, function: str = "", after: int = 0, only_open: bool = False
    ) -> None:
        """Answer the next commands with this error.

        ``function``: only calls of that one, without its library's name. ``after``: the number of those that
        pass before. ``only_open``: only on the connections that are open now.
        """
        self._older_than = self.opened if only_open else 1 << 30
        self._function, self._after = f"_{function}".encode() * bool(function), after
        self.answered = 0
        self._reply, self._times = reply, times

    def clear(self) -> None:
        """Pass everything on again."""
        self._times, self.is_full = 0, False

    def cut(self) -> None:
        """Close all connections."""
        for client in list(self._open):
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close all connections, and take no further ones. Repeatable."""
        self._door.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _admit(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            self.opened += 1
            threading.Thread(target=self._serve, args=(client, self.opened), daemon=True).start()

    def _serve(self, client: socket.socket, number: int) -> None:
        with client, contextlib.suppress(OSError):
            if self.is_full:
                client.sendall(FULL)
                return
            self._open.add(client)
            try:
                with socket.create_connection(self._server, CONNECT_S) as server:
                    server.settimeout(None)
                    threading.Thread(target=_pass_on, args=(server, client), daemon=True).start()
                    rest = b""
                    while piece := client.recv(PIECE_BYTES):
                        frames, rest = frames_in(rest + piece)
                        server.sendall(b"".join(self._changed(frame, number) for frame in frames))
            finally:
                self._open.discard(client)

    def _changed(self, frame: bytes, number: int) -> bytes:
        """Return what the server gets for a command."""
        words = frame.split(b"\r\n", 5)
        if self.answered >= self._times or number > self._older_than or words[2].upper() not in ANSWERED:
            return frame
        if self._function and not (words[2].upper() in CALLS and words[4].endswith(self._function)):
            return frame
        if self._after:
            self._after -= 1
            return frame
        self.answered += 1
        return packed(b"EVAL", SCRIPT, b"0", self._reply.encode())


def server_of(url: str) -> tuple[str, int] | None:
    """Return the one server of a URL without TLS, login and number of a database; None: it has more."""
    parts = urlsplit(url)
    is_one = parts.scheme == "redis" and "," not in parts.netloc and "@" not in parts.netloc
    if not is_one or parts.hostname is None or parts.path.strip("/") not in ("", "0"):
        return None
    return parts.hostname, parts.port or 6379


def packed(*parts: bytes) -> bytes:
    """Encode a command."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def frames_in(content: bytes) -> tuple[list[bytes], bytes]:
    r"""Divide a client's bytes into whole commands and the rest.

    >>> frames_in(b"*1\r\n$4\r\nPING\r\n*1\r\n$4")
    ([b'*1\r\n$4\r\nPING\r\n'], b'*1\r\n$4')
    """
    frames, begin = [], 0
    while (end := _end_of(content, begin)) is not None:
        frames.append(content[begin:end])
        begin = end
    return frames, content[begin:]


def _end_of(content: bytes, begin: int) -> int | None:
    """Return the end of the command that begins here; None: it is not whole yet."""
    at = content.find(b"\r\n", begin)
    if at < 0:
        return None
    parts, at = int(content[begin + 1 : at]), at + 2
    for _ in range(parts):
        line = content.find(b"\r\n", at)
        if line < 0:
            return None
        at = line + 2 + int(content[at + 1 : line]) + 2
    return at if at <= len(content) else None


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
