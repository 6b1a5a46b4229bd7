"""Several Cassandra nodes that know each other, at 127.0.0.1, 127.0.0.2 and so on, with the same ports."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement

from services.support.cassandra.config import SMALL_JVM, Ports
from services.support.cassandra.server import ABSENT, KEYSPACE, START_S, CassandraServer, quiet_driver
from services.support.server_process import ServerGroup
from services.support.servers import free_ports

# On each of three nodes there is a copy of it: all must be alive, as the node that is asked sees it.
OF_ALL = SimpleStatement(
    "SELECT keyspace_name FROM system_distributed.view_build_status", consistency_level=ConsistencyLevel.ALL
)


class CassandraCluster(ServerGroup[CassandraServer]):
    """``nodes`` are all seeds: none waits for another one's data at its start."""

    START_S = START_S

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        *,
        settings: Mapping[str, Any] | None = None,
        jvm: Sequence[str] = SMALL_JVM,
    ) -> None:
        addresses = [f"127.0.0.{n + 1}" for n in range(nodes)]
        name = f"tests-{uuid.uuid4().hex}"
        self.nodes = [
            CassandraServer(
                folder,
                f"node-{n}",
                address=address,
                seeds=addresses,
                cluster_name=name,
                settings=settings,
                jvm=jvm,
            )
            for n, address in enumerate(addresses)
        ]
        super().__init__(folder, self.nodes)

    # -- where clients go -------------------------------------------------------------------------

    @property
    def port(self) -> int:
        return self.nodes[0].port

    @property
    def url(self) -> str:
        """The keyspace in it is made by whoever needs it."""
        return self.url_for(KEYSPACE)

    def url_for(self, keyspace: str) -> str:
        hosts = ",".join(f"{node.address}:{node.port}" for node in self.nodes)
        return f"cassandra://{hosts}/{keyspace}"

    def ask(self, cql: str, *values: object) -> list[Any]:
        """The rows that answer one statement, from the first node that runs."""
        return self.running()[0].ask(cql, *values)

    # -- start and stop ---------------------------------------------------------------------------

    def take_ports(self) -> None:
        ports = Ports(*free_ports(len(Ports._fields), *(node.address for node in self.nodes)))
        for node in self.nodes:
            node.take_ports(ports)

    def ready(self) -> bool:
        """Whether all run, and each sees all alive and knows the same tables."""
        return len(self.running()) == len(self.nodes) and all(map(self._sees_all, self.nodes))

    def _sees_all(self, node: CassandraServer) -> bool:
        with quiet_driver(), contextlib.suppress(*ABSENT), node.session(timeout_s=5) as session:
            mine = session.execute("SELECT schema_version FROM system.local").one()
            others = list(session.execute("SELECT peer, schema_version FROM system.peers_v2"))
            if len(others) < len(self.nodes) - 1 or {row.schema_version for row in others} - {*mine}:
                return False
            session.execute(OF_ALL)
            return True
        return False

    def stop(self) -> None:
        """End all, in order if they can; their files stay."""
        for node in self.nodes:
            node.stop()
        self._paused.clear()

    def end(self) -> None:
        """End all at once: nobody needs their files, or they must do as they are."""
        for node in self.nodes:
            node.end()
        self._paused.clear()

    # -- faults -----------------------------------------------------------------------------------

    def kill(self, n: int) -> None:
        """SIGKILL node ``n``, and wait until it is gone."""
        self.nodes[n].kill()
        self._paused.discard(self.nodes[n].name)

    def restart(self, n: int) -> None:
        """Start node ``n`` again, and wait until it answers; when it was the last that was missing, until
        each sees all others alive."""
        self.nodes[n].start()
        if len(self.running()) == len(self.nodes):
            self.wait_ready()

    def replace(self, n: int) -> None:
        """Start another node, without data, in the place of node ``n``, which was killed; wait until it is
        whole."""
        node = self.nodes[n]
        node.replace([other.address for other in self.nodes if other is not node])
        self.wait_ready()

    def pause(self, n: int) -> None:
        """SIGSTOP, until ``resume`` or ``heal``."""
        self.pause_member(self.nodes[n])

    def resume(self, n: int) -> None:
        self.resume_member(self.nodes[n])
