"""The topology of a Redis Cluster, by an operator's commands: slots move, replicas are promoted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import redis
from redis import exceptions

from tidegate.base.urls import Address
from tidegate.sinks.redis.client.settings import RedisSettings
from tidegate.sinks.redis.client.steps import slot_ranges

MIGRATE_MS = 5_000
KEYS_AT_ONCE = 100
AGREE_S, LOOK_S = 40.0, 0.02
"""The longest time in which nodes agree on who owns a slot, or who is a primary."""
FAILOVER_S = 5.0
"""The time in which a replica takes over that was asked to; then Redis gives it up."""
STABLE_AND_RESTORE = """
redis.call('CLUSTER', 'SETSLOT', ARGV[1], 'STABLE')
for at = 2, #ARGV, 2 do redis.call('RESTORE', ARGV[at], 0, ARGV[at + 1]) end
"""


class Shard(NamedTuple):
    """A primary that owns slots, and those of its replicas that are connected."""

    id: str
    address: Address
    replicas: tuple[tuple[str, Address], ...]


class Cluster:
    """The nodes of a Redis Cluster, by commands that an operator uses.

    redis.RedisError: one did not answer, or lacks the right.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._clients: dict[Address, Any] = {}

    def ask(self, address: Address, *command: Any) -> Any:
        """Run one command at one node."""
        return self._client(address).execute_command(*command)

    def _client(self, address: Address) -> Any:
        if address not in self._clients:
            self._clients[address] = client_of(self._settings, address)
        return self._clients[address]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    # -- nodes ------------------------------------------------------------------------------------------

    def shards(self) -> list[Shard]:
        """List the shards by address, as the first node that answers sees them."""
        lines = self._nodes()
        alive = {name: line for name, line in lines.items() if not {"fail", "fail?", "noaddr"} & line.flags}
        shards = []
        for name, line in alive.items():
            if line.slots:
                replicas = [(other, alive[other].address) for other in alive if alive[other].master == name]
                shards.append(Shard(name, line.address, tuple(sorted(replicas))))
        return sorted(shards, key=lambda shard: shard.address)

    def _nodes(self) -> dict[str, _Line]:
        address, text = next(self._answers("CLUSTER", "NODES"))
        return dict(_line(line, address) for line in text.decode().splitlines() if line)

    def _answers(self, *command: Any) -> Iterator[tuple[Address, Any]]:
        """Run a command at one node after another; yield the address and the answer of each that answers."""
        error: Exception | None = None
        for address in dict.fromkeys((*self._clients, *self._settings.seeds)):
            try:
                yield address, self.ask(address, *command)
            except redis.RedisError as failed:
                error = failed
        raise exceptions.ClusterDownError(f"no node of the Cluster answered, or knows it: {error}")

    def owner_of(self, slot: int) -> Address:
        """Return the primary that owns a slot. ClusterDownError: none does."""
        for address, reply in self._answers("CLUSTER", "SLOTS"):
            for last, first, owner in slot_ranges(reply, address):
                if first <= slot <= last:
                    return owner
        raise AssertionError("unreachable: the loop ends by return or error")

    # -- slots -----------------------------------------------------------------------------------------

    def keys_in(self, slot: int, address: Address) -> list[bytes]:
        """List all keys of a slot at a node."""
        count = self.ask(address, "CLUSTER", "COUNTKEYSINSLOT", slot)
        keys: list[bytes] = self.ask(address, "CLUSTER", "GETKEYSINSLOT", slot, count + 1)
        return keys

    def begin_move(self, slot: int, source: Address, to: Address) -> None:
        """Make the slot MIGRATING at ``source`` and IMPORTING at ``to``; no key has moved yet."""
        ids = {shard.address: shard.id for shard in self.shards()}
        self.ask(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to])

    def move_keys(self, slot: int, source: Address, to: Address, most: int | None = None) -> int:
        """Move at most ``most`` keys, or all; return their number."""
        moved = 0
        while most is None or moved < most:
            at_once = KEYS_AT_ONCE if most is None else min(most - moved, KEYS_AT_ONCE)
            keys = self.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, at_once)
            if not keys:
                break
            self.ask(source, "MIGRATE", to.host, to.port, "", 0, MIGRATE_MS, *self._login(), "KEYS", *keys)
            moved += len(keys)
        return moved

    def _login(self) -> list[str]:
        connection = self._settings.connection
        user, password = connection.get("username"), connection.get("password")
        if not password:
            return []
        return ["AUTH2", user, password] if user else ["AUTH", password]

    def end_move(self, slot: int, source: Address, to: Address) -> None:
        """Move all keys, and the slot with them.

        The new owner learns it first: the slot is never without one.
        """
        self.move_keys(slot, source, to)
        ids = {shard.address: shard.id for shard in self.shards()}
        others = [address for address in ids if address not in (source, to)]
        for address in (to, source, *others):
            self.ask(address, "CLUSTER", "SETSLOT", slot, "NODE", ids[to])
        self._agree(lambda: all(self._gives(node, slot, to) for node in ids), f"slot {slot} is at {to}")

    def cancel_move(self, slot: int, source: Address, to: Address) -> None:
        """Set the slot STABLE and put the moved keys back, in one step: no key ever seems to be absent.

        MIGRATE cannot put them back: their owner accepts none while the slot is leaving it.
        """
        moved = self.keys_in(slot, to)
        back = [part for key in moved for part in (key, self._asking(to, "DUMP", key))]
        self.ask(source, "EVAL", STABLE_AND_RESTORE, 0, slot, *back)
        for key in moved:
            self._asking(to, "UNLINK", key)
        self.ask(to, "CLUSTER", "SETSLOT", slot, "STABLE")

    def _asking(self, address: Address, *command: Any) -> Any:
        """Run a command at the node that imports a slot."""
        with self._client(address).pipeline(transaction=False) as pipeline:
            pipeline.execute_command("ASKING")
            pipeline.execute_command(*command)
            return pipeline.execute()[1]

    def _gives(self, node: Address, slot: int, owner: Address) -> bool:
        ranges = slot_ranges(self.ask(node, "CLUSTER", "SLOTS"), node)
        return any(first <= slot <= last and primary == owner for last, first, primary in ranges)

    # -- replicas ----------------------------------------------------------------------------------------

    def promote(self, shard: Shard, replica: Address) -> None:
        """Let the replica take over once it has all acknowledged writes; on return all nodes know it."""
        ask_at = 0.0

        def agreed() -> bool:
            nonlocal ask_at
            shards = self.shards()
            new = next((each for each in shards if each.address == replica), None)
            if new is not None:
                known = [each.address for each in shards]
                turned = any(address == shard.address for _, address in new.replicas)
                return turned and all(self._knows(node, known) for node in (*known, shard.address))
            if time.monotonic() > ask_at:
                ask_at = time.monotonic() + 1.0
                with contextlib.suppress(redis.ResponseError):
                    self.ask(replica, "CLUSTER", "FAILOVER")
                    ask_at += FAILOVER_S  # another one would end this one, which fails when too few answer
            return False

        self._agree(agreed, f"{replica} is a primary")

    def _knows(self, node: Address, primaries: list[Address]) -> bool:
        ranges = slot_ranges(self.ask(node, "CLUSTER", "SLOTS"), node)
        return {primary for _, _, primary in ranges} == set(primaries)

    def _agree(self, agreed: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + AGREE_S
        while not agreed():
            if time.monotonic() > end:
                raise redis.TimeoutError(f"not within {AGREE_S:.0f} s: {what}")
            time.sleep(LOOK_S)


class _Line(NamedTuple):
    """A line of CLUSTER NODES."""

    address: Address
    flags: frozenset[str]
    master: str
    slots: bool


def _line(text: str, server: Address) -> tuple[str, _Line]:
    name, place, flags, master, _, _, _, _, *slots = text.split()
    host, _, port = place.partition("@")[0].rpartition(":")
    address = Address(host or server.host, int(port))
    return name, _Line(address, frozenset(flags.split(",")), master, any(s[0] != "[" for s in slots))


def client_of(settings: RedisSettings, address: Address) -> Any:
    """Connect to one server, with the store's login. Replies are bytes."""
    return redis.Redis(host=address.host, port=address.port, ssl=settings.tls, **settings.connection)
