"""Incidents of servers that fail over, are demoted or are cut off, and of a driver that is gone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from game_day.incident import OPERATOR, Incident
from game_day.rig import Rig
from services.support.redis.cluster import RedisCluster
from services.support.redis.proxy import RedisProxy
from services.support.redis.sentinel import RedisSentinel
from services.support.redis.server import RedisServer

if TYPE_CHECKING:
    from typing_extensions import Self

GONE_S, CUT_S = 20.0, 30.0
STOPPED_S = 40.0


def sentinel_failover(rig: Rig) -> None:
    rig.store.kill_primary()


def cluster_failover(rig: Rig) -> None:
    rig.store.primaries()[0].kill()


def primary_and_replica_gone(rig: Rig) -> None:
    primary = rig.store.primaries()[0]
    for server in (*rig.store.replicas_of(primary), primary):
        server.kill()
    time.sleep(GONE_S)
    rig.store.heal()


def demoted(rig: Rig) -> None:
    """The server follows another one, which does not exist: an administrator's mistake."""

    def promote() -> None:
        rig.store.ask("REPLICAOF", "NO", "ONE")

    rig.actions[r"`REPLICAOF NO ONE`"] = promote
    rig.store.ask("REPLICAOF", "127.0.0.1", "1")


def driver_killed(rig: Rig) -> None:
    rig.driver.kill()


def driver_stopped(rig: Rig) -> None:
    """The driver stands still, a second one takes over, and the first wakes up."""
    zombie = rig.driver
    os.killpg(zombie.process.pid, signal.SIGSTOP)
    began = time.monotonic()
    rig.driver = rig.new_driver(options={**rig.job.options, "metrics_port": None})
    rig.driver.start()
    time.sleep(max(0.0, STOPPED_S - (time.monotonic() - began)))
    os.killpg(zombie.process.pid, signal.SIGCONT)


def log_away(rig: Rig) -> None:
    folder = rig.folder / "wal"
    folder.rename(rig.folder / "wal.away")
    time.sleep(10.0)
    (rig.folder / "wal.away").rename(folder)


class Rotated(RedisServer):
    """A Redis with a login of its own for query and readers, whose password changes."""

    USER, FIRST, SECOND = "app", "first-password", "second-password"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, users={self.USER: f"on >{self.FIRST} ~* &* +@all"})

    @property
    def url(self) -> str:
        return self.url_for(self.USER, self.FIRST)

    def rotate(self) -> None:
        self.ask("ACL", "SETUSER", self.USER, "resetpass", f">{self.SECOND}")
        self.ask("CLIENT", "KILL", "USER", self.USER)


def password_rotated(rig: Rig) -> None:
    """Change the password; query and readers still have the old one."""

    def deploy() -> None:
        rig.job.store = rig.store.url_for(Rotated.USER, Rotated.SECOND)
        rig.restart()
        rig.readers.reconnect()

    rig.actions[r"password|login"] = deploy
    rig.store.rotate()


class Cut(RedisServer):
    """A Redis that query and readers reach through a network that can be cut."""

    def __enter__(self) -> Self:
        super().__enter__()
        self.network = RedisProxy(("127.0.0.1", self.port))
        return self

    def __exit__(self, *_: object) -> None:
        self.network.close()
        super().__exit__(*_)

    @property
    def url(self) -> str:
        host, port = self.network.address
        return f"redis://{host}:{port}"


def network_cut(rig: Rig) -> None:
    """Let every packet to the store vanish, without an error."""
    rig.store.network.plain.black_hole()
    time.sleep(CUT_S)
    rig.store.network.plain.accept()
    rig.store.network.plain.cut()  # after it: a connection that has lost a packet stays silent


def _redis(folder: Path) -> RedisServer:
    return RedisServer(folder)


INCIDENTS = [
    Incident(
        "sentinel-failover", "Sentinel: the primary is killed", sentinel_failover, RedisSentinel, fast=True
    ),
    Incident("cluster-failover", "Redis Cluster: a primary is killed", cluster_failover, RedisCluster),
    Incident(
        "cluster-pair-gone",
        "Redis Cluster: a primary and its replica are away for 20 s",
        primary_and_replica_gone,
        RedisCluster,
        alert="TidegateCommitStuck",
    ),
    Incident(
        "redis-demoted",
        "Redis is made a replica by hand",
        demoted,
        _redis,
        actor=OPERATOR,
        alert="TidegateStoreUnreachable",
    ),
    Incident(
        "password-rotated",
        "Redis: the password of query and readers is changed",
        password_rotated,
        Rotated,
        actor=OPERATOR,
        alert="TidegateQueryFailed",
    ),
    Incident(
        "network-cut",
        "The network to Redis is cut for 30 s",
        network_cut,
        Cut,
        actor=OPERATOR,
        alert="TidegateStoreUnreachable",
    ),
    Incident(
        "driver-killed",
        "The driver is killed",
        driver_killed,
        None,
        actor=OPERATOR,
        alert="TidegateDriverGone",
    ),
    Incident("driver-stopped", "The driver is stopped for 40 s, and another takes over", driver_stopped),
    Incident(
        "log-folder-away",
        "The folder of the file log is away for 10 s",
        log_away,
        None,
        actor=OPERATOR,
        alert="TidegateQueryFailed",
    ),
]
