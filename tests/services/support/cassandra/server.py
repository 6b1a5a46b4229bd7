"""A real Cassandra node on this machine, no container: ``with CassandraServer(folder) as cassandra: ...``.

Several of them: ``cluster.py``. None outlives the process that started it (``leak_guard.py``).
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
import ssl
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cassandra import DriverException, RequestExecutionException, Timeout
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.policies import WhiteListRoundRobinPolicy

from services.support.cassandra.config import ADMIN, SMALL_JVM, Ports, command, configuration
from services.support.certificates import make_certificates
from services.support.leak_guard import Guarded
from services.support.server_process import ServerProcess
from services.support.servers import end_all, free_ports, raise_ended

KEYSPACE = "tidegate"
# A node takes 6 s of CPU time; three on two cores with 20 other processes took 51 s, one beside 35 took 150.
START_S = 280.0
STOP_S = 10.0
ASK_S = 30.0
# What asking a node that comes or goes may raise.
ABSENT = (NoHostAvailable, DriverException, RequestExecutionException, Timeout, OSError)


class CassandraServer(ServerProcess):
    """One node; its files are in ``folder``, named ``name``.

    settings: of cassandra.yaml, over ``config.COMMON``.
    users: names and passwords; nobody gets in without. All may do all, until ``settings`` name an authorizer.
    tls: clients come by TLS only; mutual: with a certificate of their own.
    A node of several has an ``address`` of its own, the ``seeds`` of all and the ``cluster_name`` of all.
    """

    SUFFIX = ".yaml"
    START_S = START_S

    def __init__(
        self,
        folder: Path,
        name: str = "cassandra",
        *,
        address: str = "127.0.0.1",
        seeds: Sequence[str] = (),
        cluster_name: str = "",
        settings: Mapping[str, Any] | None = None,
        users: Mapping[str, str] | None = None,
        tls: bool = False,
        mutual: bool = False,
        jvm: Sequence[str] = SMALL_JVM,
    ) -> None:
        super().__init__(folder, name)
        self.address = address
        self.settings = dict(settings or {})
        self.ports: Ports | None = None
        self._users, self._tls, self._mutual = dict(users or {}), tls or mutual, mutual
        self._seeds, self._jvm = tuple(seeds) or (address,), tuple(jvm)
        # Nobody else's: a node that answers by this name is one of ours.
        self._cluster_name = cluster_name or f"tests-{uuid.uuid4().hex}"

    # -- where clients go -------------------------------------------------------------------------

    @property
    def port(self) -> int:
        assert self.ports is not None, f"{self.name} was not started"
        return self.ports.client

    @property
    def url(self) -> str:
        """The keyspace in it is made by whoever needs it."""
        return self.url_for(KEYSPACE)

    def url_for(self, keyspace: str) -> str:
        """With the first of the users; what TLS needs is in ``tls_settings``."""
        return f"cassandra://{self.login}{self.address}:{self.port}/{keyspace}"

    @property
    def login(self) -> str:
        """The first of the users, as a URL has it before the address."""
        first = list(self._users.items())[:1]
        return "".join(f"{quote(user, safe='')}:{quote(password, safe='')}@" for user, password in first)

    @contextlib.contextmanager
    def session(
        self, keyspace: str | None = None, *, timeout_s: float = ASK_S, user: str = ""
    ) -> Iterator[Session]:
        """A client of the tests' own that talks to this node alone, and is closed at the end. It may do all,
        or what ``user`` may."""
        profile = ExecutionProfile(WhiteListRoundRobinPolicy([self.address]), request_timeout=timeout_s)
        client = Cluster(
            [self.address],
            port=self.port,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            protocol_version=4,
            auth_provider=self._auth(user),
            ssl_context=self._client_tls(),
            connect_timeout=timeout_s,
            control_connection_timeout=timeout_s,
        )
        try:
            yield client.connect(keyspace)
        finally:
            client.shutdown()

    def ask(self, cql: str, *values: object, timeout_s: float = ASK_S) -> list[Any]:
        """The rows that answer one statement (``%s`` for values), over a connection of its own."""
        with self.session(timeout_s=timeout_s) as session:
            return list(session.execute(cql, values or None))

    def _auth(self, user: str) -> PlainTextAuthProvider | None:
        name, password = (user, self._users[user]) if user else ADMIN
        return PlainTextAuthProvider(name, password) if self._users else None

    def _client_tls(self) -> ssl.SSLContext | None:
        if not self._tls:
            return None
        context = ssl.create_default_context(cafile=self.certificates / "ca.pem")
        context.load_cert_chain(self.certificates / "client.pem", self.certificates / "client.key")
        # The node's own may be one that is over its time.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    # -- start and stop ---------------------------------------------------------------------------

    def has_ports(self) -> bool:
        return self.ports is not None

    def take_free_ports(self) -> None:
        self.take_ports(Ports(*free_ports(len(Ports._fields), self.address)))

    def take_ports(self, ports: Ports) -> None:
        """Before the first start: nothing is left of a try on other ports."""
        self.ports = ports
        shutil.rmtree(self.data_folder, ignore_errors=True)
        self._log.unlink(missing_ok=True)

    def prepare(self) -> None:
        for user, password in self._users.items():
            role = "CREATE ROLE IF NOT EXISTS {} WITH LOGIN = true AND PASSWORD = %s"
            self.ask(role.format(f'"{user}"'), password)

    def launch(self) -> None:
        """Start it and do not wait: ``answers`` says when it is there."""
        assert not self.alive(), f"{self.name} runs"
        assert self.ports is not None
        (self.data_folder / "tmp").mkdir(parents=True, exist_ok=True)
        if self._tls and not self.certificates.exists():
            make_certificates(self.certificates)
        told = configuration(
            self._cluster_name,
            self.address,
            self.ports,
            self._seeds,
            self.settings,
            logins=bool(self._users),
            tls=self.certificates if self._tls else None,
            mutual=self._mutual,
        )
        self._configuration.write_text(told)
        self._process = Guarded(command(self._configuration, self.data_folder, self._jvm), self._log)

    def answers(self) -> bool:
        """Whether it is this cluster's node that answers clients. Raises when it has ended."""
        if not self.alive():
            code = self._process.exit_code if self._process else None
            raise_ended(f"Cassandra node {self.name} (exit code {code})", self.log_text()[-5000:])
        if not self._listens():
            return False
        with quiet_driver(), contextlib.suppress(*ABSENT):
            told = self.ask("SELECT cluster_name FROM system.local", timeout_s=2)
            return bool(told[0].cluster_name == self._cluster_name)
        return False

    def _listens(self) -> bool:
        """Cheaper than a client of the driver's."""
        with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), timeout=1):
            return True
        return False

    def stop(self) -> None:
        """End it in order if it can, with nothing left to replay; its files stay."""
        if self._process:
            self.resume()
            end_all([self._process], STOP_S)

    def end(self) -> None:
        """End it at once: nobody needs its files, or they must do as they are."""
        if self._process:
            self._process.kill()

    # -- faults -----------------------------------------------------------------------------------

    def restart(self) -> None:
        """Start it again on the same ports, with its data, and wait until it answers."""
        self.start()

    def replace(self, seeds: Sequence[str]) -> None:
        """Start a new node without data that takes over this one's tokens, and reads its rows from others.

        A node that is its own seed reads nothing.
        """
        shutil.rmtree(self.data_folder)
        self._seeds = tuple(seeds)
        self._jvm = (*self._jvm, f"-Dcassandra.replace_address_first_boot={self.address}")
        self.start()


@contextlib.contextmanager
def quiet_driver() -> Iterator[None]:
    """The driver logs each failure to connect; while a node starts that is no news."""
    logger = logging.getLogger("cassandra")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
