"""Faults done to a Redis store from outside: removed rows, moved slots, attached and promoted replicas.

Each is a process of the cell, with a history of its own. Changes of the topology continue until SIGTERM and
are then reverted: each slot to the primary that had it, each primary to its place. Slots that hold keys of
others are left alone.
"""

from __future__ import annotations

import contextlib
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from redis.connection import Connection, SSLConnection

from tidegate.base.decoders import json_decoder
from tidegate.base.urls import Address
from tidegate.committers.exports.export import export
from tidegate.sinks.redis.client.servers import Servers, servers_of
from tidegate.sinks.redis.client.settings import RedisSettings, settings_of
from tidegate.sinks.redis.keys import header_key, meta_key, patterns, slot_of
from tidegate.torture.driver.driver import Where
from tidegate.torture.driver.faults import TOPOLOGY
from tidegate.torture.driver.redis_topology import Cluster, Shard, client_of
from tidegate.torture.history.events import Destroyed, Fault
from tidegate.torture.history.files import Recorder

ROWS = re.compile(rb"tg:\{[^/}]+/(\d+)\}:([^:]+):(?:b|d:(\d+):[^:]+)$")
"""A key that holds rows which a header lists: key group, table, version; without a version, the base."""
HELD_S, BETWEEN_S = 0.15, 0.1
"""The longest time for which a slot is on the move, or a replica attached; and between two changes."""
CHANGES_MAX = 200
"""The number of changes after which a process ends that receives no SIGTERM."""
COPY, COPY_VERSION = "work/copy", "work/copy.version"
"""The place to which the version is exported whose rows a cell removes, and the file with its number."""
NOTHING_DONE = 3
"""The exit code when nothing could be done to the store."""


def keys_of(where: Where) -> list[bytes]:
    """Find all keys of the namespace's key groups."""
    _, pattern = patterns(where.namespace)
    servers = servers_of(settings_of(where.store, where.store_options))
    keys: list[bytes] = []
    for node in servers.primaries():
        with contextlib.closing(client_of(servers.settings, node.address)) as client:
            keys += client.scan_iter(pattern, count=1_000)
    return sorted(keys)


# -- rows are removed ------------------------------------------------------------------------------------


def evict(where_json: str, folder: str, name: str, fault: str, seed: str) -> int:
    """Remove one hash of rows: a layer of a visible version that is not retired, or a base.

    Before a base is removed, the visible version is exported.
    """
    where = json_decoder(Where).decode(where_json)
    with (
        contextlib.closing(where.open_store()) as store,
        Recorder(Path(folder), name, role="fault") as recorder,
    ):
        pointer = store.pointer()
        starts = {table: state.start for table, state in store.catalog(pointer.visible)[0].tables.items()}
        candidates = []
        for key in keys_of(where):
            match = ROWS.match(key)
            if match is None:
                continue
            group, table, version = int(match[1]), match[2].decode(), int(match[3] or 0)
            # A table that was emptied since can be rebuilt from the log alone.
            old = starts.get(table, 0) <= 1
            layer = pointer.horizon < version <= pointer.visible
            if layer if fault == "evict-layer" else old and not version:
                candidates.append((key, Destroyed(version=version, key_group=group)))
        if not candidates:
            print(f"{fault}: there is no such hash")  # noqa: T201 - to the cell's folder
            return NOTHING_DONE
        key, rows = random.Random(seed).choice(candidates)
        if not rows.version:
            identity = store.identity()
            assert identity is not None
            export(store, identity, pointer.visible, Path(folder, COPY))
            Path(folder, COPY_VERSION).write_text(str(pointer.visible))
        recorder.note(Fault(kind=fault, target=key.decode(), destroys=[rows]))
        with contextlib.closing(client_at(where, key)) as client:
            return 0 if client.unlink(key) else NOTHING_DONE


def client_at(where: Where, key: bytes) -> Any:
    """Connect to the primary that has the key."""
    servers: Servers = servers_of(settings_of(where.store, where.store_options))
    return client_of(servers.settings, servers.node_of(key).address)


# -- slots move --------------------------------------------------------------------------------------------


class _Changes:
    """Changes of the topology until SIGTERM: counted, noted, and paced at random."""

    def __init__(self, where: Where, recorder: Recorder, seed: str) -> None:
        self.where, self.chance = where, random.Random(seed)
        self.done = 0
        self._recorder, self._signals = recorder, list[int]()
        signal.signal(signal.SIGTERM, lambda number, _: self._signals.append(number))

    @property
    def ended(self) -> bool:
        return bool(self._signals) or self.done >= CHANGES_MAX

    def note(self, kind: str, target: str, detail: str) -> None:
        self._recorder.note(Fault(kind=kind, target=target, detail=detail))

    def wait(self, seconds: float) -> None:
        """Sleep, or until SIGTERM."""
        end = time.monotonic() + seconds
        while not self._signals and time.monotonic() < end:
            time.sleep(0.005)


def move_slots(where_json: str, folder: str, name: str, seed: str, marker: str) -> int:
    """Move slots of the namespace to and fro until SIGTERM, and cancel every second move half-way.

    The file ``marker`` is created when the first slot is on the move.
    """
    where = json_decoder(Where).decode(where_json)
    with contextlib.closing(where.open_store()) as store:
        identity = store.identity()
    groups = identity.key_groups if identity else 0
    keys = [meta_key(where.namespace), *(header_key(where.namespace, group) for group in range(groups))]
    cluster = Cluster(settings_of(where.store, where.store_options))
    with contextlib.closing(cluster), Recorder(Path(folder), name, role="fault") as recorder:
        changes, homes = _Changes(where, recorder, seed), dict[int, Address]()
        try:
            while not changes.ended:
                key = changes.chance.choice(keys)
                if _move(cluster, changes, key, homes, Path(marker)):
                    changes.done += 1
                changes.wait(changes.chance.uniform(0, BETWEEN_S))
        finally:
            for slot, home in homes.items():
                owner = cluster.owner_of(slot)
                if owner != home:
                    changes.note("reshard", f"slot {slot}", f"from {owner} home to {home}")
                    cluster.begin_move(slot, owner, home)
                    cluster.end_move(slot, owner, home)
        return 0 if changes.done else NOTHING_DONE


def _move(cluster: Cluster, changes: _Changes, key: bytes, homes: dict[int, Address], marker: Path) -> bool:
    """Move one slot to another primary, or half of the way and back; False: it holds keys of others."""
    slot = slot_of(key)
    source = cluster.owner_of(slot)
    to = changes.chance.choice([s.address for s in cluster.shards() if s.address != source])
    tag = key[: key.index(b"}") + 1]
    keys = cluster.keys_in(slot, source)
    if not all(each.startswith(tag) for each in keys):
        return False
    moved = changes.chance.randrange(len(keys) + 1)
    cancelled = changes.done % 2 == 1
    how = "cancelled after" if cancelled else "after a halt at"
    move = f"from {source} to {to}, {how} {moved} of {len(keys)} keys"
    changes.note("reshard", f"slot {slot}, {tag.decode()}", move)
    homes.setdefault(slot, source)
    cluster.begin_move(slot, source, to)
    try:
        marker.touch()
        cluster.move_keys(slot, source, to, moved)
        changes.wait(changes.chance.uniform(0, HELD_S))
    finally:
        (cluster.cancel_move if cancelled else cluster.end_move)(slot, source, to)
    return True


# -- replicas ----------------------------------------------------------------------------------------------


def change_replicas(where_json: str, folder: str, name: str, seed: str, marker: str) -> int:
    """Attach a replica to a primary, detach it, and on a Cluster promote one, in turn, until SIGTERM."""
    where = json_decoder(Where).decode(where_json)
    settings = settings_of(where.store, where.store_options)
    with Recorder(Path(folder), name, role="fault") as recorder:
        changes = _Changes(where, recorder, seed)
        if settings.kind != "cluster":
            while not changes.ended:
                address = servers_of(settings).node_of(meta_key(where.namespace)).address
                _attach(settings, address, changes, Path(marker))
            return 0
        with contextlib.closing(Cluster(settings)) as cluster:
            _promote_to_and_fro(cluster, settings, changes, Path(marker))
    return 0


def _promote_to_and_fro(cluster: Cluster, settings: RedisSettings, changes: _Changes, marker: Path) -> None:
    """Promote a replica of each shard once, and back at the end.

    The other primaries vote for a shard once within two node timeouts. Until they vote again, its primary
    takes no writes, for longer than a call waits.
    """
    homes, promoted = {shard.address for shard in cluster.shards()}, set[Address]()
    try:
        while not changes.ended:
            shard = changes.chance.choice(cluster.shards())
            _attach(settings, shard.address, changes, marker)
            if shard.replicas and shard.address not in promoted and not changes.ended:
                _promote(cluster, changes, shard)
                promoted.update(address for _, address in shard.replicas)
    finally:
        for shard in cluster.shards():
            if shard.address not in homes:
                mine = [address for _, address in shard.replicas if address in homes]
                changes.note("replica", str(shard.address), f"{mine[0]} is promoted back")
                cluster.promote(shard, mine[0])


def _promote(cluster: Cluster, changes: _Changes, shard: Shard) -> None:
    _, replica = changes.chance.choice(shard.replicas)
    changes.note("replica", str(shard.address), f"{replica} is promoted")
    cluster.promote(shard, replica)
    changes.done += 1
    changes.wait(changes.chance.uniform(0, BETWEEN_S))


def _attach(settings: RedisSettings, address: Address, changes: _Changes, marker: Path) -> None:
    """Attach a replica that keeps nothing, and detach it. The first one gives its primary another id."""
    changes.note("replica", str(address), "a replica is attached, and detached")
    marker.touch()
    with attached(settings, address):
        changes.wait(changes.chance.uniform(0, HELD_S))
    changes.done += 1
    changes.wait(changes.chance.uniform(0, BETWEEN_S))


@contextlib.contextmanager
def attached(settings: RedisSettings, address: Address) -> Iterator[None]:
    """Attach this process to one primary as a replica that discards all data, while the block runs."""
    kind: Any = SSLConnection if settings.tls else Connection
    connection = kind(host=address.host, port=address.port, protocol=2, **settings.connection)
    connection.connect()
    try:
        connection.send_command("REPLCONF", "capa", "eof", "capa", "psync2")
        connection.read_response()
        connection.send_command("PSYNC", "?", "-1")
        connection.read_response()
        yield
    finally:
        connection.disconnect()


# -- possible faults ---------------------------------------------------------------------------------------


def lacking(where: Where, *, allowed: bool) -> dict[str, str]:
    """Return the faults of a store's topology that are not possible here, with the reasons.

    ``allowed``: the user allows changes of it. Rights are tried by commands that change nothing.
    """
    settings = settings_of(where.store, where.store_options)
    if not allowed:
        reason = "changes of the topology are not allowed (--allow-topology-changes)"
        return dict.fromkeys(TOPOLOGY, reason)
    reasons = {}
    for fault, attempt in (("reshard", _try_slots), ("replica", _try_replicas)):
        try:
            reason = attempt(settings)
        except (redis.RedisError, OSError) as error:
            reason = f"the server refused it: {error}"
        if reason:
            reasons[fault] = reason
    return reasons


def _try_slots(settings: RedisSettings) -> str:
    if settings.kind != "cluster":
        return "only a Cluster has slots (redis+cluster://)"
    with contextlib.closing(Cluster(settings)) as cluster:
        shards = cluster.shards()
        if len(shards) < 2:
            return "the Cluster has one primary: slots cannot move anywhere"
        for shard in shards:
            cluster.keys_in(0, shard.address)
            # There is no such key, no such node, and no such value: nothing is changed.
            other = next(each.address for each in shards if each is not shard)
            key = "tg:{torture-}:none"
            for command in (
                ("MIGRATE", other.host, other.port, "", 0, 1, "KEYS", key),
                ("CLUSTER", "SETSLOT", 0, "NODE", "no such node"),
                ("SELECT", 0),
                ("ASKING",),
                ("DUMP", key),
                ("UNLINK", key),
                ("RESTORE", key, 0, "no value"),
                ("RESTORE-ASKING", key, 0, "no value"),
                ("EVAL", "return 1", 0),
            ):
                _refused(cluster, shard.address, *command)
    return ""


def _try_replicas(settings: RedisSettings) -> str:
    if settings.kind != "cluster":
        node = servers_of(settings).node_of(b"")
        with attached(settings, node.address):
            return ""
    with contextlib.closing(Cluster(settings)) as cluster:
        for shard in cluster.shards():
            with attached(settings, shard.address):
                _refused(cluster, shard.address, "CLUSTER", "FAILOVER")  # a primary ignores it
        if not any(shard.replicas for shard in cluster.shards()):
            return "no primary of the Cluster has a replica that could be promoted"
    return ""


def _refused(cluster: Cluster, address: Address, *command: Any) -> None:
    """Send a command whose contents the server refuses. redis.NoPermissionError: its user is refused."""
    try:
        cluster.ask(address, *command)
    except redis.exceptions.NoPermissionError:
        raise
    except redis.ResponseError:
        pass
