"""Faults of a Redis server before a reader under test: wrong replies, and connections that were left.

A proxy passes everything on. Where a rule is set, it sends the server another command for the reader's: an
EVAL, which gives the error reply, or an ECHO, whose reply is replaced. The order of pipelined replies stays.
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
MARK = b"tidegate: the reply of a rule"
"""The argument of ECHO."""
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
        self._bytes: bytes | None = None
        self._doubles = 0
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
        self.answered, self._bytes = 0, None
        self._reply, self._times = reply, times

    def replace(self, reply: bytes, function: str) -> None:
        """Answer the next call of this function with these bytes."""
        self.refuse("", 0, function=function)
        self._bytes, self._times = reply, 1

    def double(self) -> None:
        """Answer the next request twice: all its commands, and then all of them again."""
        self._doubles = 1

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
                    threading.Thread(target=self._pass_on, args=(server, client), daemon=True).start()
                    rest = b""
                    while piece := client.recv(PIECE_BYTES):
                        frames, rest = frames_in(rest + piece)
                        content = b"".join(self._changed(frame, number) for frame in frames)
                        if self._doubles and frames and all(map(_is_answered, frames)):
                            self._doubles, content = 0, content * 2
                        server.sendall(content)
            finally:
                self._open.discard(client)

    def _changed(self, frame: bytes, number: int) -> bytes:
        """Return what the server gets for a command."""
        words = frame.split(b"\r\n", 5)
        if self.answered >= self._times or number > self._older_than or not _is_answered(frame):
            return frame
        if self._function and not (words[2].upper() in CALLS and words[4].endswith(self._function)):
            return frame
        if self._after:
            self._after -= 1
            return frame
        self.answered += 1
        if self._bytes is not None:
            return packed(b"ECHO", MARK)
        return packed(b"EVAL", SCRIPT, b"0", self._reply.encode())

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            content = b""
            while piece := source.recv(PIECE_BYTES):
                content += piece
                if content.endswith(b"\r\n"):  # else the rest of a reply, or of the mark, follows
                    target.sendall(content.replace(b"$%d\r\n%b\r\n" % (len(MARK), MARK), self._bytes or b""))
                    content = b""
            target.sendall(content)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


def _is_answered(frame: bytes) -> bool:
    return frame.split(b"\r\n", 3)[2].upper() in ANSWERED


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
    offset = content.find(b"\r\n", begin)
    if offset < 0:
        return None
    parts, offset = int(content[begin + 1 : offset]), offset + 2
    for _ in range(parts):
        line = content.find(b"\r\n", offset)
        if line < 0:
            return None
        offset = line + 2 + int(content[offset + 1 : line]) + 2
    return offset if offset <= len(content) else None
