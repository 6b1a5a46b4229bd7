"""Redis servers that belong together: started, stopped and brought back as one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import redis

from services.support.redis.server import RedisServer, end_servers
from services.support.server_process import ServerGroup
from services.support.servers import free_ports
from support.wait import wait_until


class RedisGroup(ServerGroup[RedisServer]):
    def __init__(self, folder: Path, servers: Sequence[RedisServer]) -> None:
        super().__init__(folder, servers)
        self.servers = self._members

    def take_ports(self) -> None:
        for server, port in zip(self.servers, free_ports(len(self.servers)), strict=True):
            server.take_port(port)

    def wait_ready(self) -> None:
        """Return when all run, agree and are in sync; TimeoutError."""
        wait_until(quietly(self.ready), f"{type(self).__name__} is whole")

    def stop(self) -> None:
        end_servers(self.servers)
        self._paused.clear()

    def end(self) -> None:
        self.stop()

    def pause(self, server: RedisServer) -> None:
        """SIGSTOP, until ``resume`` or ``heal``."""
        self.pause_member(server)

    def resume(self, server: RedisServer) -> None:
        self.resume_member(server)


def follow(primary: RedisServer, replicas: Sequence[RedisServer]) -> bool:
    """Whether these, and no others, are the primary's replicas and have all that it has."""
    told = primary.info("replication")
    if told["role"] != "master" or told["connected_slaves"] != len(replicas):
        return False
    for replica in replicas:
        mine = replica.info("replication")
        if mine["role"] != "slave" or mine["master_link_status"] != "up":
            return False
        if mine["slave_repl_offset"] < told["master_repl_offset"]:
            return False
    return True


def quietly(true: Callable[[], bool]) -> Callable[[], bool]:
    """Of servers that come and go: one that cannot be asked now makes it False."""

    def tried() -> bool:
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError):
            return true()
        return False

    return tried
