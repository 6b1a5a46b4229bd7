"""A TCP proxy that knows Cassandra's framing: it loses, holds and doubles what a test names.

    with CassandraProxy(cassandra) as proxy:
        lost = proxy.drop_reply("EXECUTE", "UPDATE tidegate.tidegate_pointers")
        ... proxy.url ...
        lost.wait()

One node or all of a cluster are behind it, the client speaks version 4 of the protocol without TLS or
compression. A driver has one connection to each node, for all of its threads: where one frame is held, all
behind it on this connection wait.

- ``drop_reply``: the server does the work, its reply is lost and the connection closed.
- ``drop_request``: the connection is closed, the server hears nothing.
- ``hold_request``: kept until ``release``, which sends it though its client has gone meanwhile: late.
- ``hold_reply``: the server does the work, its reply is kept until ``release``.
- ``duplicate``: the server gets it twice.

Each takes ``nth`` (1: the first that fits), ``times`` (1; None: all from there on), ``route`` (a node's
number) and ``contains`` (bytes that the request has in it).
"""

from __future__ import annotations

from typing import Any

from services.support.cassandra.cluster import CassandraCluster
from services.support.cassandra.server import KEYSPACE, CassandraServer
from services.support.cassandra.wire import CassandraWire, named
from services.support.proxy.proxy import Proxy
from services.support.proxy.relay import Address
from services.support.proxy.rules import WAIT_S, Hold, Rule, wait_for

SHIFT = 10
"""The proxy of the node at 127.0.0.1 listens at 127.0.0.11, with the same port: a driver takes one port for
all nodes of a cluster, and asks them for their addresses, which the proxy changes."""


class CassandraProxy:
    """In front of nodes that run. A request is named by its kind (QUERY, PREPARE, EXECUTE, BATCH, ...; None:
    any) and by what its CQL has in it, as it was written: a prepared statement's too, if it was prepared
    through here.

    The rest of ``Proxy`` is under ``plain``, such as ``on_frame``, ``cut`` and ``black_hole``.
    """

    def __init__(self, servers: CassandraServer | CassandraCluster, shift: int = SHIFT) -> None:
        nodes = servers.nodes if isinstance(servers, CassandraCluster) else [servers]
        self._login = nodes[0].login
        last = [int(node.address.rpartition(".")[2]) for node in nodes]
        self._wire = CassandraWire({number: number + shift for number in last})
        routes: list[tuple[Address, Address]] = [
            ((f"127.0.0.{number + shift}", node.port), (node.address, node.port))
            for number, node in zip(last, nodes, strict=True)
        ]
        self.plain = Proxy(self._wire, routes)
        self.addresses = [f"{host}:{port}" for host, port in self.plain.addresses]

    @property
    def url(self) -> str:
        return self.url_for(KEYSPACE)

    def url_for(self, keyspace: str) -> str:
        return f"cassandra://{self._login}{','.join(self.addresses)}/{keyspace}"

    def drop_reply(self, kind: str | None, cql: str = "", **match: Any) -> Rule:
        return self.plain.drop_reply(_known(kind), **self._match(cql, match))

    def drop_request(self, kind: str | None, cql: str = "", **match: Any) -> Rule:
        return self.plain.drop_request(_known(kind), **self._match(cql, match))

    def hold_request(self, kind: str | None, cql: str = "", **match: Any) -> Hold:
        return self.plain.hold_request(_known(kind), **self._match(cql, match))

    def hold_reply(self, kind: str | None, cql: str = "", **match: Any) -> Hold:
        return self.plain.hold_reply(_known(kind), **self._match(cql, match))

    def duplicate(self, kind: str | None, cql: str = "", **match: Any) -> Rule:
        return self.plain.duplicate(_known(kind), **self._match(cql, match))

    def seen(self, kind: str, cql: str = "") -> int:
        """How many such requests came, lost ones included."""
        if not cql:
            return self.plain.count(kind)
        counted = self.plain.counted().items()
        return sum(n for each, n in counted if str(each).startswith(f"{kind} ") and cql in str(each))

    def wait_seen(self, count: int, kind: str, cql: str = "", timeout: float = WAIT_S) -> None:
        """Return when so many such requests came; TimeoutError."""
        what = f"{count} of {kind} with {cql!r}"
        wait_for(self.plain.changed, lambda: self.seen(kind, cql) >= count, timeout, what)

    def cut(self, node: int | None = None) -> int:
        """Close all connections now, or those to one node; how many there were. New ones are let in."""
        return self.plain.cut(node)

    def down(self, node: int | None = None) -> None:
        """Close all connections and refuse new ones, until ``up``."""
        self.plain.refuse(node)
        self.plain.cut(node)

    def up(self, node: int | None = None) -> None:
        self.plain.accept(node)

    def clear(self) -> None:
        """No rules, what is held is lost, new connections are let in; open ones stay."""
        self.plain.clear()

    def close(self) -> None:
        """End all; may be repeated. Raises the first unexpected failure."""
        self.plain.close()

    def __enter__(self) -> CassandraProxy:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _match(self, cql: str, match: dict[str, Any]) -> dict[str, Any]:
        """The relay has frames, which hold a number instead of a prepared statement's CQL."""
        return match | {"where": lambda frame: cql in self._wire.cql(frame)} if cql else match


def _known(kind: str | None) -> str | None:
    assert kind is None or named([kind]), f"{kind} is no kind of request"
    return kind
