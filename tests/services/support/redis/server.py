"""Real Redis servers on this machine, without containers: ``with RedisServer(folder) as redis: ...``.

Several of them with Sentinels, or as a Cluster: ``sentinel.py``, ``cluster.py``. None outlives
the process that started it (``leak_guard.py``).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from services.support.certificates import make_certificates
from services.support.hosts import THIS, Host
from services.support.leak_guard import Guarded
from services.support.redis.config import ADMIN, configuration, redis_program
from services.support.server_process import ServerProcess
from services.support.servers import end_all, free_ports, raise_ended
from tidegate.options import MIB

STOP_S = 5.0


class RedisServer(ServerProcess):
    """One process; its files are in ``folder``, named ``name``.

    settings: lines of redis.conf over ``config.COMMON``, such as ``{"appendonly": "no"}``.
    password: of the default user; or users: name and ACL rules (``on >secret ~app:* +@all``) of an ACL file,
    which has an admin of the tests besides, and the default user off.
    tls: clients come by TLS only, with a certificate of their own or without (``tls-auth-clients`` decides).
    barred: commands that the server does not know (``rename-command``).
    program: another one than ``config.redis_program``.
    """

    SUFFIX = ".conf"

    def __init__(
        self,
        folder: Path,
        name: str = "redis",
        *,
        settings: Mapping[str, str] | None = None,
        password: str | None = None,
        users: Mapping[str, str] | None = None,
        tls: bool = False,
        barred: Sequence[str] = (),
        sentinel: bool = False,
        program: str | None = None,
        host: Host = THIS,
    ) -> None:
        super().__init__(folder, name)
        self.host = host
        open_to_hosts = {} if host == THIS else {"bind": host.address, "protected-mode": "no"}
        self.settings = open_to_hosts | dict(settings or {})
        self.port = 0
        self._password, self._users, self._tls = password, dict(users or {}), tls
        self._barred, self._sentinel, self._program = tuple(barred), sentinel, program
        self._told = ""

    # -- where clients go -------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return f"{self.host.address}:{self.port}"

    @property
    def url(self) -> str:
        """With the login; what TLS needs is in ``tls_settings``."""
        return self.url_for(*self._login())

    def url_for(self, user: str | None, password: str | None) -> str:
        login = f"{quote(user or '', safe='')}:{quote(password, safe='')}@" if password else ""
        return f"{'rediss' if self._tls else 'redis'}://{login}{self.address}"

    @property
    def client_settings(self) -> dict[str, Any]:
        """What a redis-py client needs to get in and may do all."""
        user, password = self._login()
        found: dict[str, Any] = {"host": self.host.address, "port": self.port}
        if password:
            found |= {"username": user, "password": password}
        if self._tls:
            found |= {"ssl": True, "ssl_check_hostname": False, **self.tls_settings}  # tests change the name
        return found

    def client(self, **settings: Any) -> redis.Redis:
        """A client of the tests' own, with str for bytes; it tries each command once. Who asks closes it."""
        once: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "decode_responses": True}
        return redis.Redis(**(self.client_settings | once | settings))

    def ask(self, *command: object, **settings: Any) -> Any:
        """The answer to one command, over a connection of its own."""
        with self.client(**settings) as client:
            return client.execute_command(*command)

    def info(self, section: str) -> dict[str, Any]:
        return dict(self.ask("INFO", section))

    def fill_memory(self) -> None:
        """Fill the memory above a limit that a writer's open takes; the limit 0 gives room again."""
        self.ask("SETRANGE", "a key of somebody else", 96 * MIB, "x")
        self.ask("CONFIG", "SET", "maxmemory", 64 * MIB)

    def forget(self, text: str) -> int:
        """Delete the keys that have ``text`` in them, such as a namespace; how many there were."""
        with self.client(decode_responses=False) as client:
            keys = list(client.scan_iter(f"*{text}*", count=1000))
            return sum(client.unlink(*keys[n : n + 1000]) for n in range(0, len(keys), 1000))

    def _login(self) -> tuple[str | None, str | None]:
        return ADMIN if self._users else (None, self._password)

    # -- start and stop ---------------------------------------------------------------------------

    def has_ports(self) -> bool:
        return bool(self.port)

    def take_free_ports(self) -> None:
        self.take_port(*free_ports(1))

    def take_port(self, port: int) -> None:
        """Before the first start: nothing is left of a try on another port."""
        self.port = port
        shutil.rmtree(self.data_folder, ignore_errors=True)
        self._log.unlink(missing_ok=True)

    def launch(self) -> None:
        """Start it and do not wait: ``answers`` says when it is there."""
        assert not self.alive(), f"{self.name} runs"
        program = self._program or redis_program()
        self.data_folder.mkdir(parents=True, exist_ok=True)
        if self._tls and not self.certificates.exists():
            make_certificates(self.certificates)
        told = configuration(
            self.data_folder,
            self.port,
            self.settings,
            password=self._password,
            users=self._users,
            tls=self.certificates if self._tls else None,
            barred=self._barred,
        )
        if told != self._told:  # else the file stays: Sentinel, and servers that it commands, write to theirs
            self._configuration.write_text(told)
            self._told = told
        command = [program, str(self._configuration), *(["--sentinel"] if self._sentinel else [])]
        self._process = Guarded([*self.host.prefix, *command], self._log)

    def configure(self, **settings: str) -> None:
        """At the next start these hold (``_`` for ``-``), nothing that was written to its file meanwhile."""
        self.settings |= {name.replace("_", "-"): value for name, value in settings.items()}
        self._told = ""

    def answers(self) -> bool:
        """Whether it is this process that answers, with its data loaded. Raises when it has ended."""
        if not self.alive():
            raise_ended(f"Redis server {self.name}", self.log_text()[-5000:])
        try:
            return bool(self.ask("INFO", "server", socket_timeout=1)["process_id"] == self.pid)
        except redis.AuthenticationError:
            # Somebody else's server took the port: ours ends soon. With a wrong login of ours it does not.
            return False
        except (redis.ConnectionError, redis.TimeoutError):  # BusyLoadingError is one
            return False

    def stop(self) -> None:
        """End it in order if it can; its files stay."""
        end_servers([self])

    def end(self) -> None:
        self.stop()

    # -- faults -----------------------------------------------------------------------------------

    def restart(self, *, empty: bool = False) -> None:
        """Start it again on the same port, with its data or with none, and wait until it answers."""
        if empty:
            self.lose_data()
        self.start()

    def lose_data(self) -> None:
        """Delete all data of a server that does not run. A Cluster's node keeps what it knows."""
        assert not self.alive(), f"{self.name} runs"
        for path in self.data_folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.suffix != ".conf":
                path.unlink()

    @property
    def process(self) -> Guarded | None:
        return self._process


def end_servers(servers: Iterable[RedisServer]) -> None:
    """End them all at once, in order if they can; paused ones too. Their files stay."""
    started = [server for server in servers if server.process]
    for server in started:
        server.resume()
    end_all([server.process for server in started if server.process], STOP_S)
