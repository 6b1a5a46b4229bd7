"""A standalone Spark of this machine: a master, and workers on loopback addresses of their own.

To Spark each address is a host. Everything is started from the pyspark package and ended by its number.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from services.support.hosts import Host

DEADLINE_S = 120.0
DEPLOY = "org.apache.spark.deploy"


def spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def environment(address: str, folder: Path, location: str = "") -> dict[str, str]:
    """Of a daemon and what it starts; its temporary folder is its location's, as another host's would be.

    Without a location its address is one.
    """
    temporary = folder / f"tmp-{location or address}"
    temporary.mkdir(exist_ok=True)
    return {
        **os.environ,
        "TMPDIR": str(temporary),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": address,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYSPARK_PYTHON": sys.executable,
        "TIDEGATE_LOCATION_ID": location,
    }


class SparkCluster:
    """A master and its workers; ends them all, SIGKILL if need be.

    Workers with the same of ``locations``, by address, share a temporary folder, and say so to tidegate.
    They are of the process group of whoever starts them, so that killing that group ends them, too.
    """

    def __init__(
        self,
        folder: Path,
        *addresses: str,
        cores: int = 1,
        memory: str = "600m",
        locations: Mapping[str, str] | None = None,
        hosts: Sequence[Host] = (),
        master: str = "127.0.0.1",
    ) -> None:
        self.prefixes, self.master = {host.address: host.prefix for host in hosts}, master
        self.locations = locations or {}
        self.folder, self.addresses, self.cores, self.memory = folder, addresses, cores, memory
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = 0

    @property
    def url(self) -> str:
        return f"spark://{self.master}:{self.port}"

    def __enter__(self) -> SparkCluster:  # noqa: PYI034 - nobody inherits from it
        self.folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as bound:
            bound.bind((self.master, 0))
            self.port = bound.getsockname()[1]
        try:
            words = ["--host", self.master, "--port", str(self.port), "--webui-port", "0"]
            self._start("master", self.master, f"{DEPLOY}.master.Master", *words)
            self._wait_for_master()
            for address in self.addresses:
                self.add(address)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                _kill(process)

    def add(self, address: str) -> None:
        """Start a worker there; its executor comes a little later."""
        words = ["--host", address, "--webui-port", "0", "--cores", str(self.cores), "--memory", self.memory]
        folder = self.folder / f"work-{address}"
        self._start(address, address, f"{DEPLOY}.worker.Worker", *words, "--work-dir", str(folder), self.url)

    def kill(self, address: str) -> None:
        """SIGKILL to a worker and all that it started."""
        _kill(self.processes.pop(address))

    def _start(self, name: str, address: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [*self.prefixes.get(address, ()), str(spark_home() / "bin" / "spark-class"), *words],
                env=environment(address, self.folder, self.locations.get(name, "")),
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _wait_for_master(self) -> None:
        end = time.monotonic() + DEADLINE_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection((self.master, self.port), timeout=1):
                return
            assert self.processes["master"].poll() is None, "the master has ended"
            assert time.monotonic() < end, f"no answer on port {self.port} within {DEADLINE_S} s"
            time.sleep(0.1)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a process and all that it started."""
    doomed = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(30)
