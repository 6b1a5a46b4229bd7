"""Redis servers that belong together: started, stopped and brought back as one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from services.support.redis.server import RedisServer, end_servers
from services.support.servers import free_ports, on_free_ports
from support.wait import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self


class RedisGroup:
    """``form`` makes a group of servers that answer; ``ready`` says whether it is whole."""

    def __init__(self, folder: Path, servers: Sequence[RedisServer]) -> None:
        self.folder = folder
        self.servers = list(servers)
        self._paused: set[str] = set()

    def form(self) -> None:
        raise NotImplementedError

    def ready(self) -> bool:
        raise NotImplementedError

    def take_ports(self) -> None:
        for server, port in zip(self.servers, free_ports(len(self.servers)), strict=True):
            server.take_port(port)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all, on the data that they have, and wait until the group is whole."""
        if self.servers[0].port:
            self._launch(self.servers)
            self.wait_ready()
        else:
            on_free_ports(self._start_anew)

    def _start_anew(self) -> None:
        self.take_ports()
        try:
            self._launch(self.servers)
            self.form()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise

    def _launch(self, servers: Sequence[RedisServer]) -> None:
        for server in servers:
            server.launch()
        wait_until(lambda: all(server.answers() for server in servers), "all servers answer")

    def wait_ready(self) -> None:
        """Return when all run, agree and are in sync; TimeoutError."""
        wait_until(quietly(self.ready), f"{type(self).__name__} is whole")

    def stop(self) -> None:
        end_servers(self.servers)
        self._paused.clear()

    def pause(self, server: RedisServer) -> None:
        """SIGSTOP, until ``resume`` or ``heal``."""
        server.pause()
        self._paused.add(server.name)

    def resume(self, server: RedisServer) -> None:
        server.resume()
        self._paused.discard(server.name)

    def running(self) -> list[RedisServer]:
        """Those that live and are not paused."""
        return [each for each in self.servers if each.alive() and each.name not in self._paused]

    def heal(self) -> None:
        """Bring back all that was paused or killed, and wait until the group is whole."""
        for server in self.servers:
            self.resume(server)
        self._launch([server for server in self.servers if not server.alive()])
        self.wait_ready()

    def kept(self) -> list[Path]:
        return [file for server in self.servers for file in server.kept()]


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
