"""Changes of Redis servers that lose nothing: a new id of the same process, key groups that moved. Pure.

A primary takes a new replication id when its first replica is attached, or when it drops its
backlog. Its run id stays, and so does the number of bytes that it ever received from a primary.
While both stay it was never a replica, so it wrote its data itself, and nothing that it
acknowledged is lost.

A key group that moved was compared at another server, its origin. While the origin is listed and
still a primary under that id it never lost anything, so the key group was whole when it left.
docs/decisions/0013.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping

PROOF_S = 1.0
"""How long a key group counts as whole at its new server before its origin is checked again."""
_ID = re.compile(rb"^master_replid:(\w+)", re.MULTILINE)
_RUN = re.compile(rb"^run_id:(\w+)", re.MULTILINE)
_RECEIVED = re.compile(rb"^total_net_repl_input_bytes:(\d+)", re.MULTILINE)


def process_in(info: bytes) -> tuple[bytes, bytes]:
    r"""Return a server's id, b'' of a replica, and its process, b'' where it does not count what it receives.

    >>> process_in(b"run_id:abc\r\ntotal_net_repl_input_bytes:0\r\nmaster_replid:123\r\n")
    (b'123', b'abc:0')
    """
    server, run, received = (match.search(info) for match in (_ID, _RUN, _RECEIVED))
    process = b":".join((run.group(1), received.group(1))) if run and received else b""
    return server.group(1) if server and b"role:slave" not in info else b"", process


def listing(servers: Mapping[bytes, bytes]) -> tuple[bytes, bytes]:
    """Return the pointer's fields ``servers`` and ``processes`` for servers that were compared."""
    processes = (b":".join((server, process)) for server, process in sorted(servers.items()) if process)
    return b",".join(sorted(servers)), b",".join(processes)


class Origins:
    """One client's knowledge of servers that changed as planned. May be used by several threads.

    ``moved`` has the origin of each key group, by key, that moved and was found whole.
    """

    def __init__(self) -> None:
        self._same: dict[bytes, bytes] = {}
        self.moved: dict[bytes, bytes] = {}
        self._until: dict[tuple[bytes, bytes], tuple[float, object]] = {}

    def learn(self, processes: bytes | None, servers: Mapping[bytes, bytes]) -> None:
        """Note which of the servers found are processes that were listed under another id."""
        listed = {process: server for server, _, process in map(_parted, (processes or b"").split(b","))}
        for server, process in servers.items():
            before = listed.get(process, server) if process else server
            if before != server:
                self._same[server] = before

    def trusted(self, listed: frozenset[bytes]) -> frozenset[bytes]:
        """Return the listed ids, and those that listed processes have taken since."""
        if not self._same:
            return listed
        return listed.union(new for new, old in list(self._same.items()) if old in listed)

    def proves(
        self, origin: bytes, server: bytes, listed: frozenset[bytes], servers: Iterable[bytes]
    ) -> bool:
        """Return whether a key group that moved from ``origin`` to ``server`` is whole.

        ``found`` are the current primaries, ``listed`` those that the pointer lists. Both must be
        read after the key group was found at ``server``.
        """
        if self.first(origin) == self.first(server):
            return True
        primaries = {self.first(each) for each in servers}
        return primaries <= {self.first(each) for each in listed} and self.first(origin) in primaries

    def remember(self, key: bytes, server: bytes, origin: bytes, view: object) -> None:
        """Treat the key group as whole at the server, for ``PROOF_S`` and while the view is unchanged."""
        self.moved[key] = origin
        self._until[server, origin] = time.monotonic() + PROOF_S, view

    def meant(self, key: bytes, server: bytes, view: object) -> bytes:
        """Return the server as calls for this key name it: with the origin, if it is proven."""
        origin = self.moved.get(key)
        if origin is None or origin == server:
            return server
        if self.first(origin) != self.first(server):
            until, seen = self._until.get((server, origin), (0.0, None))
            if seen != view or time.monotonic() >= until:
                return server
        return server + b"," + origin

    def first(self, server: bytes) -> bytes:
        """Return the id under which the server's process was listed."""
        return self._same.get(server, server)


def _parted(entry: bytes) -> tuple[bytes, bytes, bytes]:
    return entry.partition(b":")
