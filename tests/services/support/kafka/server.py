"""Real Kafka brokers on this machine, without containers: ``with KafkaCluster(folder) as kafka: ...``.

The jars come from Maven, once (``kafka_jars``). A cluster is one process, or several, each broker and
controller (KRaft). Nothing of it outlives the process that started it (``support/leak_guard.py``).
"""

from __future__ import annotations

import base64
import contextlib
import shutil
import signal
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from services.support.hosts import THIS, Host
from services.support.jars import java
from services.support.kafka.config import Ports, make_certificate, properties, security_protocol
from services.support.kafka.jars import kafka_jars
from services.support.leak_guard import Guarded
from services.support.servers import ROOT, START_S, end_all, free_ports, on_free_ports, pause, raise_ended
from support.wait import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ROOT", "SMALL_JVM", "KafkaCluster", "free_ports", "kafka_jars"]

LOG4J = Path(__file__).with_name("log4j2.properties")

# Measured with 2 cores: 1.7 s until a broker answers and 300 MB; 2.2 s and 340 MB with the JVM's defaults.
SMALL_JVM = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
STOP_S = 2.0  # in order it takes one broker 0.4 s; three wait for each other and never end


class KafkaCluster:
    """Brokers 0 to ``brokers`` - 1, their files in ``folder``; ``settings`` for each of their configurations.

    proxied: a second listener for clients, whose advertised address is one where a test's proxy listens.
    sasl: user names and passwords (PLAIN and SCRAM-SHA-256); tls: both for clients' listeners only.
    """

    def __init__(
        self,
        folder: Path,
        brokers: int = 1,
        *,
        settings: Mapping[str, str] | None = None,
        proxied: bool = False,
        sasl: Mapping[str, str] | None = None,
        tls: bool = False,
        jvm: Sequence[str] = SMALL_JVM,
        hosts: Sequence[Host] = (),
    ) -> None:
        self.folder = folder
        self.hosts = hosts or [THIS] * brokers
        self.brokers = brokers
        self._settings, self._proxied, self._sasl = dict(settings or {}), proxied, dict(sasl or {})
        self._tls, self._jvm = tls, tuple(jvm)
        self._ports: dict[int, Ports] = {}
        self._cluster = ""
        self._processes: dict[int, Guarded] = {}
        self._paused: set[int] = set()

    # -- where clients go -------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        return ",".join(map(self.address, range(self.brokers)))

    @property
    def url(self) -> str:
        return f"kafka://{self.bootstrap}"

    @property
    def proxied_bootstrap(self) -> str:
        return ",".join("{}:{}".format(*self.proxied_address(n)) for n in range(self.brokers))

    @property
    def ca_file(self) -> Path:
        """The certificate that clients have to trust (tls)."""
        return self.folder / "ca.pem"

    @property
    def client_settings(self) -> dict[str, Any]:
        """What a confluent_kafka client needs to get in, as the first of the users."""
        found = {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": security_protocol(sasl=bool(self._sasl), tls=self._tls),
        }
        if self._tls:
            found["ssl.ca.location"] = str(self.ca_file)
        for user, password in list(self._sasl.items())[:1]:
            found |= {"sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": password}
        return found

    def address(self, n: int) -> str:
        return f"{self.hosts[n].address}:{self._ports[n].client}"

    def proxied_address(self, n: int) -> tuple[str, int]:
        """Where clients of the proxied listener go to: a test's proxy listens there."""
        return "127.0.0.1", self._ports[n].proxied_address

    def proxied_target(self, n: int) -> tuple[str, int]:
        """Where the proxy passes on to."""
        return "127.0.0.1", self._ports[n].proxied

    def tool(self, main: str, *arguments: str) -> None:
        """Run a tool of Kafka's own to its end. Raises: RuntimeError with what it printed."""
        ran = Guarded(
            self._java(main, "--bootstrap-server", self.bootstrap, *arguments), self.folder / "tool.log"
        )
        if ran.wait(START_S):
            raise RuntimeError((self.folder / "tool.log").read_text()[-3000:])

    # -- start and stop ---------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all brokers, on the data that they have, and wait until each answers clients."""
        if self._ports:
            self._start_all()
            return
        on_free_ports(self._start_anew)

    def _start_anew(self) -> None:
        self._format()
        self._start_all()

    def _start_all(self) -> None:
        try:
            for n in range(self.brokers):
                self._launch(n)
            wait_until(lambda: all(map(self._answers, range(self.brokers))), "all brokers answer")
        except BaseException:
            self.stop()
            raise

    def _format(self) -> None:
        """New ports, and new data."""
        self.folder.mkdir(parents=True, exist_ok=True)
        ports = iter(free_ports(len(Ports._fields) * self.brokers))
        self._ports = {n: Ports(*(next(ports) for _ in Ports._fields)) for n in range(self.brokers)}
        if self._tls and not self.ca_file.exists():
            make_certificate(java("keytool"), self.folder / "keys.p12", self.ca_file)
        # The base 64 of a UUID, as Kafka wants it; one that begins with "-" would be taken for an option.
        self._cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode().replace("-", "x")
        for n in range(self.brokers):
            at, ways = [host.address for host in self.hosts], {"proxied": self._proxied, "tls": self._tls}
            mine = properties(n, self._ports, at, self.folder, self._sasl, **ways)
            lines = [f"{name}={value}\n" for name, value in (mine | self._settings).items()]
            self._configuration(n).write_text("".join(lines))
        self._format_disks(*range(self.brokers))

    def _format_disks(self, *brokers: int) -> None:
        users = [f"SCRAM-SHA-256=[name={user},password={word}]" for user, word in self._sasl.items()]
        with contextlib.ExitStack() as ended:
            tools = {}
            for n in brokers:
                shutil.rmtree(self.data_folder(n), ignore_errors=True)
                self._log(n).unlink(missing_ok=True)
                arguments = ["format", "-t", self._cluster, "-c", str(self._configuration(n))]
                arguments += [word for user in users for word in ("--add-scram", user)]
                tools[n] = Guarded(self._java("kafka.tools.StorageTool", *arguments), self._log(n))
                ended.callback(tools[n].kill)
            for n, tool in tools.items():
                if tool.wait(START_S):
                    raise RuntimeError(f"formatting the storage failed: {self.log_text(n)[-3000:]}")

    def _java(self, main: str, *arguments: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={LOG4J}"
        return [java(), *self._jvm, logging, "-cp", f"{kafka_jars()}/*", main, *arguments]

    def _launch(self, n: int) -> None:
        command = [*self.hosts[n].prefix, *self._java("kafka.Kafka", str(self._configuration(n)))]
        self._processes[n] = Guarded(command, self._log(n))

    def _answers(self, n: int) -> bool:
        """Whether broker ``n`` answers clients and knows all brokers that run. Raises when it has ended."""
        if not self._processes[n].alive():
            raise_ended(f"Kafka broker {n}", self.log_text(n)[-5000:])
        metadata = self._metadata(n)
        return metadata is not None and self._running() <= set(metadata.brokers)

    def _metadata(self, n: int) -> Any:
        """What broker ``n`` itself tells; None while it does not answer."""
        quick = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 50, "log_level": 0}
        client = AdminClient(self.client_settings | quick | {"bootstrap.servers": self.address(n)})
        with contextlib.suppress(KafkaException):
            return client.list_topics(timeout=1)
        return None

    def _running(self) -> set[int]:
        return {n for n, process in self._processes.items() if process.alive()} - self._paused

    def stop(self) -> None:
        """End all brokers, in order if they can; their files stay."""
        for n in list(self._paused):
            self.resume(n)
        end_all(self._processes.values(), STOP_S)
        self._processes.clear()

    # -- one broker -------------------------------------------------------------------------------

    def kill(self, n: int) -> None:
        """SIGKILL broker ``n``, and wait until it is gone."""
        self._processes[n].kill()
        self._paused.discard(n)

    def restart(self, n: int) -> None:
        """Start broker ``n`` again, and wait until it answers; when it was the last that was missing,
        until every copy is in sync."""
        assert not self._processes[n].alive(), f"broker {n} runs"
        self._launch(n)
        wait_until(lambda: self._answers(n) and self._in_sync(), f"broker {n} is back")

    def replace(self, n: int) -> None:
        """Start broker ``n``, which was killed, with an empty disk; wait as ``restart``."""
        self._format_disks(n)
        self.restart(n)

    def pause(self, n: int) -> None:
        """SIGSTOP: its connections stay open and nothing is answered."""
        pause(self._processes[n])
        self._paused.add(n)

    def resume(self, n: int) -> None:
        self._paused.discard(n)
        self._processes[n].signal(signal.SIGCONT)

    def heal(self) -> None:
        """Bring back all that was paused or killed, and wait until every copy is in sync."""
        for n in list(self._paused):
            self.resume(n)
        dead = [n for n, process in self._processes.items() if not process.alive()]
        for n in dead:
            self._launch(n)
        wait_until(lambda: all(map(self._answers, range(self.brokers))) and self._in_sync(), "all are back")

    def _in_sync(self) -> bool:
        """Whether each broker says that every copy is in sync. One that was paused takes old news for new.
        While a broker is missing this is not asked for."""
        if len(self._running()) < self.brokers:
            return True
        told = [self._metadata(n) for n in range(self.brokers)]
        partitions = [
            p for of in told if of for topic in of.topics.values() for p in topic.partitions.values()
        ]
        return None not in told and all(
            p.leader in p.isrs and set(p.isrs) == set(p.replicas) for p in partitions
        )

    def pid(self, n: int) -> int:
        return self._processes[n].pid

    def data_folder(self, n: int) -> Path:
        return self.folder / f"data-{n}"

    def log_text(self, n: int) -> str:
        return self._log(n).read_text(errors="replace")

    def kept(self) -> list[Path]:
        """What tells of a failure: the brokers' logs and what they were told."""
        return sorted(self.folder.glob("broker-*"))

    def _log(self, n: int) -> Path:
        return self.folder / f"broker-{n}.log"

    def _configuration(self, n: int) -> Path:
        return self.folder / f"broker-{n}.properties"
