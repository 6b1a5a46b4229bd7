"""A Redis Cluster of six nodes: three primaries, and a replica of each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot

from services.support.hosts import THIS, Host
from services.support.redis.group import RedisGroup, follow, quietly
from services.support.redis.server import RedisServer
from services.support.servers import free_ports
from support.wait import wait_until

PRIMARIES = 3
SLOTS = 16384
# After this time a node that is gone is replaced. With less, a busy machine's node that lives would be, too.
NODE_TIMEOUT_MS = "3000"
SETTINGS = {
    "cluster-enabled": "yes",
    "cluster-config-file": "nodes.conf",
    "cluster-node-timeout": NODE_TIMEOUT_MS,
    "cluster-allow-replica-migration": "no",
}
KEYS_AT_ONCE = 100
MIGRATE_MS = 10_000


class RedisCluster(RedisGroup):
    """``servers`` 0 to 2 begin as primaries, 3 to 5 as their replicas; who is what changes with failovers."""

    def __init__(
        self, folder: Path, *, settings: dict[str, str] | None = None, hosts: Sequence[Host] = ()
    ) -> None:
        given, hosts = SETTINGS | (settings or {}), hosts or [THIS] * 2 * PRIMARIES
        servers = [
            RedisServer(folder, f"node-{n}", settings=given, host=host) for n, host in enumerate(hosts)
        ]
        super().__init__(folder, servers)
        self._ids: dict[str, RedisServer] = {}

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(server.address for server in self.servers)}"

    # -- start ------------------------------------------------------------------------------------

    def take_ports(self) -> None:
        super().take_ports()
        for server, port in zip(self.servers, free_ports(len(self.servers)), strict=True):
            server.configure(cluster_port=str(port))

    def form(self) -> None:
        """Slots, acquaintances and replicas; each node is told, so that nobody waits for gossip."""
        self._ids = {server.ask("CLUSTER", "MYID"): server for server in self.servers}
        primaries, replicas = self.servers[:PRIMARIES], self.servers[PRIMARIES:]
        edges = [n * SLOTS // PRIMARIES for n in range(PRIMARIES + 1)]
        for n, primary in enumerate(primaries):
            primary.ask("CLUSTER", "ADDSLOTSRANGE", edges[n], edges[n + 1] - 1)
        for n, server in enumerate(self.servers):  # before any of them knows another
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        for n, server in enumerate(self.servers):
            for other in self.servers[n + 1 :]:
                server.ask("CLUSTER", "MEET", other.host.address, other.port, other.settings["cluster-port"])
        wait_until(lambda: all(self._knows(each, self._ids) for each in self.servers), "all nodes have met")
        for primary, replica in zip(primaries, replicas, strict=True):
            replica.ask("CLUSTER", "REPLICATE", self.id_of(primary))

    def _knows(self, server: RedisServer, ids: dict[str, RedisServer]) -> bool:
        """Whether a node knows just these, all of them connected and none of them failing."""
        seen = self.nodes(server)
        return {each["id"] for each in seen} == set(ids) and all(
            each["link"] == "connected" and not {"handshake", "fail", "fail?"} & each["flags"]
            for each in seen
        )

    def ready(self) -> bool:
        """All run, see all others and say that the cluster is well; every primary has its replica in sync."""
        if len(self.running()) < len(self.servers):
            return False
        views = []
        for server in self.servers:
            told = dict(line.split(":") for line in server.ask("CLUSTER", "INFO").splitlines())
            if told["cluster_state"] != "ok" or int(told["cluster_slots_ok"]) != SLOTS:
                return False
            if not self._knows(server, self._ids):
                return False
            views.append({each["id"]: (each["master"], each["slots"]) for each in self.nodes(server)})
        if any(view != views[0] for view in views):
            return False
        owners = self.primaries()
        if len(owners) != PRIMARIES or not self._paired(owners):
            return False
        return all(follow(each, self.replicas_of(each)) for each in owners)

    def _paired(self, owners: list[RedisServer]) -> bool:
        """Whether each primary has a replica; else one that is spare is given to it. Failovers that cross
        leave a primary with two, and tests that share a cluster begin with whole ones."""
        spare = [each for each in self.servers if each not in owners]
        for owner in owners:
            mine = self.replicas_of(owner)
            if mine:
                spare.remove(mine[0])
                continue
            free = [each for each in spare if all(each not in self.replicas_of(o)[:1] for o in owners)]
            free[0].ask("CLUSTER", "REPLICATE", self.id_of(owner))
            return False
        return True

    # -- who is what ------------------------------------------------------------------------------

    def nodes(self, server: RedisServer | None = None) -> list[dict[str, Any]]:
        """CLUSTER NODES, as ``server`` or the first that runs sees it."""
        found = []
        for line in (server or self.running()[0]).ask("CLUSTER", "NODES").splitlines():
            name, _, flags, master, _, _, _, link, *slots = line.split()
            # What is on the move stands in brackets, and at the two nodes only.
            ranges = tuple(sorted(each for each in slots if not each.startswith("[")))
            found.append(
                {"id": name, "flags": set(flags.split(",")), "master": master, "link": link, "slots": ranges}
            )
        return found

    def id_of(self, server: RedisServer) -> str:
        return next(name for name, each in self._ids.items() if each is server)

    def primaries(self) -> list[RedisServer]:
        """Those that own slots and are not known to be gone."""
        return [
            self._ids[each["id"]] for each in self.nodes() if each["slots"] and "fail" not in each["flags"]
        ]

    def replicas_of(self, primary: RedisServer) -> list[RedisServer]:
        return [self._ids[each["id"]] for each in self.nodes() if each["master"] == self.id_of(primary)]

    def owner_of(self, slot: int) -> RedisServer:
        """RuntimeError: nobody that is known to be there owns it."""
        for each in self.nodes():
            for edges in each["slots"]:
                first, _, last = edges.partition("-")
                if int(first) <= slot <= int(last or first) and "fail" not in each["flags"]:
                    return self._ids[each["id"]]
        raise RuntimeError(f"nobody owns slot {slot}")

    def primary_of(self, key: str) -> RedisServer:
        """The primary that has a key; with ``{tag}`` in it, all keys with this tag."""
        return self.owner_of(slot_of(key))

    # -- faults -----------------------------------------------------------------------------------

    def kill(self, server: RedisServer) -> None:
        """SIGKILL. A primary's replica takes over after a while; ``promote`` does not wait for it."""
        server.kill()

    def promote(self, replica: RedisServer) -> None:
        """Make a replica the primary, its primary dead or alive; on return all that run have agreed."""
        old = next(each["master"] for each in self.nodes(replica) if "myself" in each["flags"])
        alive = self._ids[old] in self.running()

        def agreed() -> bool:
            mine = self.id_of(replica)
            views = [{each["id"]: each for each in self.nodes(server)} for server in self.running()]
            if all(view[mine]["slots"] and not view[old]["slots"] for view in views):
                return all("cluster_state:ok" in server.ask("CLUSTER", "INFO") for server in self.running())
            if "slave" in views[0][mine]["flags"]:  # a try fails when too few answered in time
                with contextlib.suppress(redis.ResponseError):
                    replica.ask("CLUSTER", "FAILOVER", *([] if alive else ["FORCE"]))
            return False

        wait_until(quietly(agreed), f"{replica.name} is a primary")

    def restart_empty(self, primary: RedisServer) -> None:
        """Kill a primary and start it without its data before anybody took over: its slots are empty then,
        here and at its replica. On return the cluster is whole."""
        replicas = self.replicas_of(primary)
        for replica in replicas:
            replica.ask("CONFIG", "SET", "cluster-replica-no-failover", "yes")
        primary.kill()
        primary.restart(empty=True)
        self.wait_ready()
        for replica in replicas:
            replica.ask("CONFIG", "SET", "cluster-replica-no-failover", "no")

    def move_slot(self, slot: int, to: RedisServer) -> None:
        """Move a slot and its keys to another primary; on return all nodes know it."""
        with self.moving(slot, to):
            pass

    @contextlib.contextmanager
    def moving(self, slot: int, to: RedisServer, first: str = "", *, half: bool = True) -> Iterator[None]:
        """A slot is on the move meanwhile (ASK), half of its keys here, half there; then it has moved.
        With ``first`` this key has moved, and no other; without ``half`` none has.
        """
        old = self.owner_of(slot)
        assert to is not old, f"slot {slot} is at {to.name} already"
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(old))
        old.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(to))
        if first:
            old.ask("MIGRATE", to.host.address, to.port, first, 0, MIGRATE_MS)
        elif half:
            self._move_keys(slot, old, to, old.ask("CLUSTER", "COUNTKEYSINSLOT", slot) // 2)
        try:
            yield
        finally:
            self._move_keys(slot, old, to, None)
            # The new owner first: else a crash in between leaves a slot that nobody owns.
            for server in (to, old, *self.primaries()):
                server.ask("CLUSTER", "SETSLOT", slot, "NODE", self.id_of(to))
            wait_until(quietly(lambda: self._all_say(slot, to)), f"slot {slot} is at {to.name}")

    @contextlib.contextmanager
    def opened(self, slot: int, to: RedisServer) -> Iterator[None]:
        """A slot is open meanwhile, and none of its keys has moved; then the move is cancelled."""
        old = self.owner_of(slot)
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(old))
        old.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(to))
        try:
            yield
        finally:
            for server in (old, to):
                server.ask("CLUSTER", "SETSLOT", slot, "STABLE")

    def _all_say(self, slot: int, to: RedisServer) -> bool:
        for server in self.running():
            ranges = server.ask("CLUSTER", "SLOTS")
            if not any(first <= slot <= last and at[1] == to.port for first, last, at, *_ in ranges):
                return False
        return True

    def _move_keys(self, slot: int, old: RedisServer, to: RedisServer, count: int | None) -> None:
        with old.client(decode_responses=False) as client:
            while count is None or count > 0:
                batch = KEYS_AT_ONCE if count is None else min(count, KEYS_AT_ONCE)
                keys = client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, batch)
                if not keys:
                    return
                # REPLACE never: a key that is at both would hide a fault of ours.
                client.execute_command("MIGRATE", to.host.address, to.port, "", 0, MIGRATE_MS, "KEYS", *keys)
                count = None if count is None else count - len(keys)


def refused_calls(server: RedisServer, *commands: str) -> int:
    """How many calls of functions ended in an error: of those that write, or of these commands."""
    stats = server.info("commandstats")
    found = [stats.get(f"cmdstat_{command}", {}) for command in commands or ("fcall",)]
    return sum(int(each.get(kind, 0)) for each in found for kind in ("failed_calls", "rejected_calls"))


def slot_of(key: str) -> int:
    return key_slot(key.encode())
