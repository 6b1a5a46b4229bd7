"""A primary, its replica and three Sentinels that promote the replica when the primary is gone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import redis

from services.support.redis.group import RedisGroup, follow, quietly
from services.support.redis.server import RedisServer
from support.wait import wait_until

MASTER = "tide"  # the name that Sentinels have for the primary
SENTINELS = 3
QUORUM = "2"
DOWN_MS = "2500"  # with less, a busy machine's primary that lives would be replaced
NEVER_MS = "600000"
# They look every 10 s, ping every second (as long as DOWN_MS: one lost try and a primary is taken for dead),
# tell each other every 2 s and trust nobody for 30 s after a halt of their own.
QUICK = {
    "ping-period": 200,
    "info-period": 500,
    "publish-period": 300,
    "ask-period": 300,
    "tilt-period": 2000,
}
PLAIN = {"save": '""', "appendonly": "no"}


class RedisSentinel(RedisGroup):
    """``nodes`` hold the data, one of them is the primary; ``sentinels`` watch it.

    password: of the nodes; the Sentinels have none. settings: lines of the nodes' redis.conf.
    """

    def __init__(
        self, folder: Path, *, password: str | None = None, settings: dict[str, str] | None = None
    ) -> None:
        self._password = password
        self.nodes = [
            RedisServer(folder, f"node-{n}", password=password, settings=settings) for n in range(2)
        ]
        self.sentinels = [
            RedisServer(folder, f"sentinel-{n}", settings=PLAIN, sentinel=True) for n in range(SENTINELS)
        ]
        super().__init__(folder, [*self.nodes, *self.sentinels])

    @property
    def url(self) -> str:
        login = f":{self._password}@" if self._password else ""
        return f"redis+sentinel://{login}{','.join(each.address for each in self.sentinels)}/{MASTER}"

    # -- start ------------------------------------------------------------------------------------

    def take_ports(self) -> None:
        super().take_ports()
        primary, replica = self.nodes
        replica.configure(replicaof=f"127.0.0.1 {primary.port}")
        for sentinel in self.sentinels:
            watched = {"monitor": f"127.0.0.1 {primary.port} {QUORUM}", "down-after-milliseconds": DOWN_MS}
            watched |= {"failover-timeout": "5000", "parallel-syncs": "1"}
            if self._password:
                watched["auth-pass"] = self._password
            sentinel.configure(**{f"sentinel {name} {MASTER}": value for name, value in watched.items()})

    def form(self) -> None:
        """They find each other by what they are told at their start."""

    def _launch(self, servers: Sequence[RedisServer]) -> None:
        super()._launch(servers)
        for server in servers:
            if server in self.sentinels:
                server.ask("SENTINEL", "DEBUG", *(word for setting in QUICK.items() for word in setting))

    def ready(self) -> bool:
        primary = self.agreed()
        return len(self.running()) == len(self.servers) and primary is not None and self._in_sync(primary)

    def _in_sync(self, primary: RedisServer) -> bool:
        """Whether the replica has all that the primary has, and each Sentinel knows all of them."""
        others = [node for node in self.nodes if node is not primary]
        return follow(primary, others) and all(map(self._knows_all, self.sentinels))

    def _knows_all(self, sentinel: RedisServer) -> bool:
        seen = sentinel.ask("SENTINEL", "MASTER", MASTER)
        replicas = sentinel.ask("SENTINEL", "REPLICAS", MASTER)
        others = sentinel.ask("SENTINEL", "SENTINELS", MASTER)
        return (
            seen["flags"] == "master"
            and [each["flags"] for each in replicas] == ["slave"] * (len(self.nodes) - 1)
            and [each["master-link-status"] for each in replicas] == ["ok"] * (len(self.nodes) - 1)
            and [each["flags"] for each in others] == ["sentinel"] * (SENTINELS - 1)
        )

    # -- who is the primary -----------------------------------------------------------------------

    def agreed(self) -> RedisServer | None:
        """The node that all Sentinels that run call the primary; None while they do not agree."""
        told = {
            int(sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)[1])
            for sentinel in self.running()
            if sentinel in self.sentinels
        }
        return next((node for node in self.nodes if told == {node.port}), None)

    @property
    def primary(self) -> RedisServer:
        """RuntimeError: the Sentinels do not agree now."""
        found = self.agreed()
        if found is None:
            raise RuntimeError("the Sentinels do not agree who is the primary; wait_promoted waits for it")
        return found

    @property
    def replica(self) -> RedisServer:
        primary = self.primary
        return next(node for node in self.nodes if node is not primary)

    def wait_promoted(self, old: RedisServer) -> RedisServer:
        """Return the node that is the primary instead of ``old``, once all agree and it takes writes."""

        def promoted() -> bool:
            now = self.agreed()
            return now not in (None, old) and now.info("replication")["role"] == "master"

        wait_until(quietly(promoted), f"another node than {old.name} is the primary")
        return self.primary

    # -- faults -----------------------------------------------------------------------------------

    def failover(self) -> RedisServer:
        """Change the roles in order, nothing is killed; the new primary, when all are in sync again."""
        old = self.primary
        self._promote()
        new = self.wait_promoted(old)
        # What the Sentinels do too, when it has called itself primary for ten seconds.
        old.ask("REPLICAOF", "127.0.0.1", new.port)
        self.wait_ready()
        return new

    def kill_primary(self) -> RedisServer:
        """SIGKILL the primary; the new one, which the Sentinels chose. ``heal`` brings the old one back."""
        old = self.primary
        old.kill()
        return self.wait_promoted(old)

    def lose_last_writes(self, write: Callable[[RedisServer], object]) -> RedisServer:
        """Kill the primary after it acknowledged what ``write`` does, none of which its replica got.
        Returns the new primary.
        """
        old, replica = self.primary, self.replica
        # A replica that lost its primary long before is not promoted: "long" and "gone" are ours to say.
        self._watch("down-after-milliseconds", NEVER_MS)
        try:
            with self._cut_off(replica, old):
                write(old)
                old.kill()
            self._promote()
            return self.wait_promoted(old)
        finally:
            self._watch("down-after-milliseconds", DOWN_MS)

    @contextlib.contextmanager
    def _cut_off(self, replica: RedisServer, primary: RedisServer) -> Iterator[None]:
        """End replication by a login that fails; right again before the promotion writes it to a file."""
        with replica.client() as client:
            right = {name: client.config_get(name)[name] for name in ("masteruser", "masterauth")}
            client.config_set("masteruser", "nobody", "masterauth", "wrong")
            try:
                client.client_kill_filter(_type="master")
                wait_until(lambda: not primary.info("replication")["connected_slaves"], "it is cut off")
                yield
            finally:
                for name, value in right.items():
                    client.config_set(name, value)

    def _watch(self, setting: str, value: str) -> None:
        for sentinel in self.sentinels:
            sentinel.ask("SENTINEL", "SET", MASTER, setting, value)

    def _promote(self) -> None:
        def begun() -> bool:
            try:
                return bool(self.sentinels[0].ask("SENTINEL", "FAILOVER", MASTER) == "OK")
            except redis.ResponseError as error:  # one is under way, or the replica was not looked at yet
                if not str(error).startswith(("INPROG", "NOGOODSLAVE")):
                    raise
                return False

        wait_until(begun, "a Sentinel begins the failover")

    def heal(self) -> None:
        """Bring back all; a node that was dead comes back as the replica, and gets the primary's data."""
        dead = [node for node in self.nodes if not node.alive()]
        if len(dead) < len(self.nodes):
            for server in self.servers:
                self.resume(server)
            wait_until(quietly(lambda: self.agreed() not in (None, *dead)), "there is a primary")
            for node in dead:
                node.configure(replicaof=f"127.0.0.1 {self.primary.port}")
        super().heal()
