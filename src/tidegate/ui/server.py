"""The HTTP server of the page and its data, for browsers of this machine.

It reads only; one thread a request.

Only a table's name and a key are taken from a request. A page of another site cannot read the answers:
requests for a name that is not the server's own are refused (DNS rebinding), and no other origin is allowed.
"""

from __future__ import annotations

import importlib.resources
import ipaddress
import socket
import sys
import urllib.parse
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tidegate.base.text import json_of
from tidegate.errors import BadRecordError, ConfigError, TidegateError
from tidegate.ui.facts import Facts

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline';"
        " script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
QUERY_MAX = 100_000


class Server(ThreadingHTTPServer):
    """The page's server. ``names`` are the hosts that a request may ask for.

    ConfigError: the port is taken, or the address is invalid.
    """

    daemon_threads = True

    def __init__(self, facts: Facts, host: str, port: int, names: Iterable[str] = ()) -> None:
        self.facts = facts
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; give another --port or --host"
            ) from error
        self.names = {name.lower() for name in (host, "localhost", "127.0.0.1", *names)}
        self.anywhere = host in {"0.0.0.0", ""}  # noqa: S104 - the user asked for it
        if self.anywhere:
            self.names |= {socket.gethostname().lower(), socket.gethostname().lower().partition(".")[0]}

    @property
    def url(self) -> str:
        """The URL for a browser."""
        return f"http://{self.server_address[0]!s}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that has disconnected, as by a reload."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def server_bind(self) -> None:
        """Bind without the reverse look-up of the host's name, which may wait for a name server."""
        self.socket.bind(self.server_address)
        address = self.socket.getsockname()
        self.server_address = address
        self.server_name, self.server_port = str(address[0]), int(address[1])


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 30
    server_version, sys_version = "tidegate", ""

    def do_GET(self) -> None:
        asked = _split(self.path)
        if not self._for_us():
            self._send(
                403, {"error": "this server answers under its own names only: tidegate ui --name NAME"}
            )
        elif len(self.path) > QUERY_MAX:
            self._send(414, {"error": "the request is too long"})
        elif asked.path == "/":
            page = importlib.resources.files("tidegate.ui").joinpath("page.html").read_bytes()
            self._answer(200, "text/html; charset=utf-8", page)
        elif asked.path == "/api/namespace":
            self._send(200, self.server.facts.look())
        elif asked.path == "/api/key":
            self._key(urllib.parse.parse_qs(asked.query, keep_blank_values=True))
        else:
            self._send(404, {"error": "there is nothing here"})

    def _key(self, query: dict[str, list[str]]) -> None:
        try:
            found = self.server.facts.key(query.get("table", [""])[0], query.get("key", []))
        except ConfigError as error:
            self._send(400, {"error": str(error)})
        except TidegateError as error:
            typed_wrong = isinstance(error, BadRecordError)
            self._send(400 if typed_wrong else 503, {"error": f"{type(error).__name__}: {error}"})
        else:
            self._send(200, found)

    def _for_us(self) -> bool:
        host = _split(f"//{self.headers.get('Host', '')}").hostname or ""
        return host in self.server.names or (self.server.anywhere and _is_address(host))

    def _send(self, status: int, content: Any) -> None:
        self._answer(status, "application/json", json_of(content))

    def _answer(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Log no requests."""


def _is_address(host: str) -> bool:
    """Return whether it is a number, which no other site can redirect here as it can a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _split(url: str) -> urllib.parse.SplitResult:
    """Split a URL; an invalid one, such as ``http://[``, has no parts."""
    try:
        return urllib.parse.urlsplit(url)
    except ValueError:
        return urllib.parse.urlsplit("")
