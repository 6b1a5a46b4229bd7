"""Servers that are one process each, Redis's and Cassandra's, and groups of them."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from services.support.leak_guard import Guarded
from services.support.servers import on_free_ports, pause
from support.wait import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self


class ServerProcess:
    """One process; its files are in ``folder``, named ``name``. ``SUFFIX``: that of its configuration."""

    SUFFIX = ""
    START_S = 100.0

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._process: Guarded | None = None

    # -- what each kind does in its own way -------------------------------------------------------

    def launch(self) -> None:
        """Start it and do not wait: ``answers`` says when it is there."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether it is this process that answers. Raises when it has ended."""
        raise NotImplementedError

    def has_ports(self) -> bool:
        raise NotImplementedError

    def take_free_ports(self) -> None:
        """Before the first start: nothing is left of a try on other ports."""
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError

    def prepare(self) -> None:
        """Do what the first clients need, once it answers."""

    # -- start and stop ---------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        """Start it, on the data that it has, and wait until it answers. Its ports stay the same for life."""
        if self.has_ports():
            self._launch_and_wait()
        else:
            on_free_ports(self._start_on_new_ports)

    def _start_on_new_ports(self) -> None:
        self.take_free_ports()
        self._launch_and_wait()

    def _launch_and_wait(self) -> None:
        self.launch()
        try:
            wait_until(self.answers, f"{self.name} answers", self.START_S)
            self.prepare()
        except BaseException:
            self.end()
            raise

    # -- faults -----------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._process is not None
        self._process.kill()

    def pause(self) -> None:
        """SIGSTOP: its connections stay open and nothing is answered."""
        assert self._process is not None
        pause(self._process)

    def resume(self) -> None:
        assert self._process is not None
        self._process.signal(signal.SIGCONT)

    # -- the process and its files ----------------------------------------------------------------

    @property
    def certificates(self) -> Path:
        """The folder of ca.pem, which clients have to trust, client.pem and client.key (tls)."""
        return self.folder / "tls"

    @property
    def tls_settings(self) -> dict[str, str]:
        """What a client needs besides a URL, as tidegate names it: whom to trust, and its own certificate."""
        files = {"ca_certs": "ca.pem", "certfile": "client.pem", "keyfile": "client.key"}
        return {f"ssl_{name}": str(self.certificates / file) for name, file in files.items()}

    def alive(self) -> bool:
        return self._process is not None and self._process.alive()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def data_folder(self) -> Path:
        return self.folder / self.name

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def kept(self) -> list[Path]:
        """What tells of a failure: the log and the configuration."""
        return [file for file in (self._log, self._configuration) if file.exists()]

    @property
    def _log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def _configuration(self) -> Path:
        return self.folder / f"{self.name}{self.SUFFIX}"


S = TypeVar("S", bound=ServerProcess)


class ServerGroup(Generic[S]):
    """Servers that are started, stopped and brought back as one. ``ready`` returns whether it is whole."""

    START_S = ServerProcess.START_S

    def __init__(self, folder: Path, servers: Sequence[S]) -> None:
        self.folder, self._members = folder, list(servers)
        self._paused: set[str] = set()

    # -- what each kind does in its own way -------------------------------------------------------

    def ready(self) -> bool:
        raise NotImplementedError

    def take_ports(self) -> None:
        """Before the first start: new ports for all."""
        raise NotImplementedError

    def form(self) -> None:
        """Make a group of servers that answer for the first time."""

    def end(self) -> None:
        raise NotImplementedError

    # -- start and stop ---------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        """Start all, on the data that they have, and wait until the group is whole."""
        if self._members[0].has_ports():
            self._launch(self._members)
            self.wait_ready()
        else:
            on_free_ports(self._start_on_new_ports)

    def _start_on_new_ports(self) -> None:
        self.take_ports()
        try:
            self._launch(self._members)
            self.form()
            self.wait_ready()
        except BaseException:
            self.end()
            raise

    def _launch(self, servers: Sequence[S]) -> None:
        for server in servers:
            server.launch()
        wait_until(lambda: all(server.answers() for server in servers), "all servers answer", self.START_S)

    def wait_ready(self) -> None:
        """Return when all run, agree and are in sync; TimeoutError."""
        wait_until(self.ready, f"{type(self).__name__} is whole", self.START_S)

    # -- faults -----------------------------------------------------------------------------------

    def pause_member(self, server: S) -> None:
        server.pause()
        self._paused.add(server.name)

    def resume_member(self, server: S) -> None:
        server.resume()
        self._paused.discard(server.name)

    def running(self) -> list[S]:
        """Those that live and are not paused."""
        return [server for server in self._members if server.alive() and server.name not in self._paused]

    def heal(self) -> None:
        """Bring back all that was paused or killed, and wait until the group is whole."""
        for server in self._members:
            self.resume_member(server)
        self._launch([server for server in self._members if not server.alive()])
        self.wait_ready()

    def kept(self) -> list[Path]:
        return [file for server in self._members for file in server.kept()]
