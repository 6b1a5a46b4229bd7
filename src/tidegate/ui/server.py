"""The HTTP server of the page and its data, for browsers of this machine.

It reads only; one thread a request.

A request names a namespace that the store lists, tables, keys, versions and places in a table. A page of
another site cannot read the answers: requests for a name that is not the server's own are refused (DNS
rebinding), and no other origin is allowed.
"""

from __future__ import annotations

import importlib.resources
import ipaddress
import re
import socket
import socketserver
import sys
import urllib.parse
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tidegate.base.text import json_of
from tidegate.errors import BadRecordError, ConfigError, SnapshotExpiredError, TidegateError
from tidegate.ui.facts import Facts
from tidegate.ui.spaces import Spaces

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; connect-src 'self'; img-src data:; style-src 'self'; script-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
QUERY_MAX = 100_000
SCRIPTS = ("page.js", "parts.js", "chart.js", "rows.js")
FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    **{f"/{name}": (name, "text/javascript; charset=utf-8") for name in SCRIPTS},
}
"""The page's own files, by path. Nothing else of the machine is served."""
WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)

Query = dict[str, list[str]]


class Server(ThreadingHTTPServer):
    """The page's server. ``names`` are the hosts that a request may ask for.

    ``spaces``: the namespaces to choose from; default: the one of ``facts`` alone. ConfigError: the port is
    taken, or the address is invalid.
    """

    daemon_threads = True

    def __init__(
        self, facts: Facts, host: str, port: int, names: Iterable[str] = (), spaces: Spaces | None = None
    ) -> None:
        self.spaces = spaces or Spaces(facts)
        host = host.strip("[]")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; give another --port or --host"
            ) from error
        self.names = {name.lower() for name in (host, "localhost", "127.0.0.1", "::1", *names)}
        self.anywhere = host in {"0.0.0.0", "::", ""}  # noqa: S104 - the user asked for it
        if self.anywhere:
            self.names |= {socket.gethostname().lower(), socket.gethostname().lower().partition(".")[0]}

    @property
    def url(self) -> str:
        """The URL for a browser."""
        host = str(self.server_address[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that has disconnected, as by a reload."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def server_bind(self) -> None:
        """Bind without the reverse look-up of the host's name, which may wait for a name server."""
        socketserver.TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 30
    server_version, sys_version = "tidegate", ""

    def do_GET(self) -> None:
        url = _split(self.path)
        if not self._for_us():
            self._send(
                403, {"error": "this server answers under its own names only: tidegate ui --name NAME"}
            )
        elif len(self.path) > QUERY_MAX:
            self._send(414, {"error": "the request is too long"})
        elif url.path in FILES:
            name, kind = FILES[url.path]
            self._answer(200, kind, importlib.resources.files("tidegate.ui").joinpath(name).read_bytes())
        elif (answer := ANSWERS.get(url.path)) is None:
            self._send(404, {"error": "there is nothing here"})
        else:
            self._send(*self._found(answer, urllib.parse.parse_qs(url.query, keep_blank_values=True)))

    def _found(self, answer: Callable[[Facts, Query], Any], query: Query) -> tuple[int, Any]:
        """Return the status and the content of an answer."""
        try:
            facts = self.server.spaces.facts(_text(query, "namespace") or "")
            content = answer(facts, query)
        except (ConfigError, SnapshotExpiredError) as error:
            return 400, {"error": str(error)}
        except TidegateError as error:
            typed_wrong = isinstance(error, BadRecordError)
            return 400 if typed_wrong else 503, {"error": f"{type(error).__name__}: {error}"}
        return 200, content | {"namespaces": self.server.spaces.names()}

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


def _text(query: Query, name: str) -> str | None:
    return query.get(name, [None])[0]


def _whole(query: Query, name: str, default: int | None = None) -> int | None:
    """Return a whole number of the query. Raises: ConfigError: it is none."""
    text = _text(query, name)
    if not text:
        return default
    if WHOLE.fullmatch(text) is None:
        raise ConfigError(f"{name} {text!r} is no whole number")
    return int(text)


def _key(facts: Facts, query: Query) -> Any:
    return facts.lookups.key(_text(query, "table") or "", query.get("key", []))


def _rows(facts: Facts, query: Query) -> Any:
    group, skip = _whole(query, "group", 0) or 0, _whole(query, "skip", 0) or 0
    return facts.lookups.rows(_text(query, "table") or "", _whole(query, "version"), group, skip)


def _differences(facts: Facts, query: Query) -> Any:
    before, after = _whole(query, "before"), _whole(query, "after")
    if before is None or after is None:
        raise ConfigError("give two versions: before and after")
    return facts.lookups.differences(before, after, _text(query, "table") or None)


def _job(facts: Facts, query: Query) -> Any:
    return facts.job(_whole(query, "version") or 0)


ANSWERS: dict[str, Callable[[Facts, Query], Any]] = {
    "/api/namespace": lambda facts, _: facts.look(),
    "/api/key": _key,
    "/api/rows": _rows,
    "/api/diff": _differences,
    "/api/job": _job,
}


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
