"""A small TCP proxy in a driver's own process: it loses one reply, or delivers one request late.

It does not know the protocol. Once armed, it takes the next bytes that a client sends. They reach the server
at once and the reply is lost (``lost``), or they reach it after their client has given up, or after others
have taken over (``late``). Either way the client's connection is then closed.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

PIECE_BYTES = 65_536
CONNECT_S, SILENCE_S = 5.0, 5.0
CONNECTIONS_MAX = 200


class TcpProxy:
    """A proxy before one server. ``disturb`` arms it; ``strike`` is called when the bytes are there.

    ``strike`` may stop the process, so that late bytes are sent after it wakes. ``late_s``: further seconds
    for which bytes are held back.
    """

    def __init__(
        self, server: tuple[str, int], *, late: bool, late_s: float, strike: Callable[[], None]
    ) -> None:
        self._server, self._late, self._late_s, self._strike = server, late, late_s, strike
        self._armed = threading.Event()
        self._ending = threading.Event()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        threading.Thread(target=self._admit, name="proxy", daemon=True).start()

    def disturb(self) -> None:
        """Disturb the next bytes of any client."""
        self._armed.set()

    def close(self) -> None:
        """Accept no more connections; open ones end with their clients."""
        self._ending.set()
        self._door.close()

    def _admit(self) -> None:
        while not self._ending.is_set():
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            if not self._slots.acquire(blocking=False):
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client, socket.create_connection(self._server, CONNECT_S) as server:
                server.settimeout(None)
                back = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
                back.start()
                self._requests(client, server)
                with contextlib.suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)
                back.join(SILENCE_S)
        except OSError:
            pass  # no server: the client's connection is closed
        finally:
            self._slots.release()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := client.recv(PIECE_BYTES):
                if self._armed.is_set():
                    self._armed.clear()
                    self._disturbed(piece, client)
                    return
                server.sendall(piece)

    def _disturbed(self, piece: bytes, client: socket.socket) -> None:
        """Send the piece over a separate connection, so that no reply is passed on, and end the client's."""
        with socket.create_connection(self._server, CONNECT_S) as alone:
            if not self._late:
                _send_and_wait(alone, piece)
                self._strike()
                return
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            client.close()
            self._strike()
            time.sleep(self._late_s)
            _send_and_wait(alone, piece)


def _send_and_wait(server: socket.socket, piece: bytes) -> None:
    """Send, and wait until the server has answered, which proves that the request was done."""
    server.settimeout(SILENCE_S)
    server.sendall(piece)
    with contextlib.suppress(TimeoutError):
        server.recv(PIECE_BYTES)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)


def proxied(url: str, port: int) -> str:
    """Return the URL through a proxy on this machine, with its user, password and path."""
    parts = urlsplit(url)
    user, separator, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}{separator}127.0.0.1:{port}"))


def server_of(url: str) -> tuple[str, int] | None:
    """Return the one server of a URL that can be reached through a proxy; None: it cannot.

    Clients of Kafka, Cassandra and Redis' clusters connect to the addresses that the servers report. With TLS
    the proxy would not match the certificate. With a password, or another database than 0, the connection
    that delivers a disturbed request would have to log in first.
    """
    parts = urlsplit(url)
    if parts.scheme != "redis" or parts.hostname is None or parts.password or "," in parts.netloc:
        return None
    if parts.path.strip("/") not in ("", "0"):
        return None
    return parts.hostname, parts.port or 6379
