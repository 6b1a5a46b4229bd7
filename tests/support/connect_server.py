"""A Spark Connect server as a process of its own, which tests kill and start again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

from services.support.spark.cluster import spark_home
from support.spark_driver import SHORT_LIVED
from support.wait import wait_until

STARTS_S = 240.0
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


class ConnectServer:
    """A server on a port of its own, for ``contextlib.closing``. ``armed``: failpoints of its Python."""

    def __init__(self, folder: Path, armed: str = "", settings: dict[str, str] | None = None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"sc://127.0.0.1:{self.port}"
        self.output = folder / f"server-{self.port}.log"
        given = {**SETTINGS, "spark.connect.grpc.binding.port": str(self.port), **(settings or {})}
        words = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
        program = "org.apache.spark.sql.connect.service.SparkConnectServer"
        with self.output.open("w") as output:
            self._process = subprocess.Popen(
                [
                    str(spark_home() / "bin" / "spark-submit"),
                    *("--class", program, "--master", "local[2]", *words, "spark-internal"),
                ],
                cwd=folder,
                env={**os.environ, "TIDEGATE_FAILPOINTS": armed, "SPARK_NO_DAEMONIZE": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(self._answers, "the Spark Connect server answers", STARTS_S)

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.output.read_text()[-5_000:]
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def ended(self) -> bool:
        """Whether the process of the server has ended."""
        return self._process.poll() is not None

    def close(self) -> None:
        """Kill it, and all processes that it has started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
