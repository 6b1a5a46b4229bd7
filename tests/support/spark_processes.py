"""Spark drivers as processes of their own: scripts of tests/spark that tests run and kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from services.support.spark.cluster import spark_home
from support.wait import wait_until
from tidegate.base import failpoints

SCRIPTS = Path(__file__).parents[1] / "spark"
DEADLINE_S = 600.0
SHOWN_CHARACTERS = 5_000
"""The end of a driver's output, for messages. What a test compares, its driver writes to a file."""


class DriverProcesses:
    """Drivers of one test, for ``contextlib.closing``. What they started ends with the test at the latest."""

    def __init__(self) -> None:
        self._drivers: list[subprocess.Popen[bytes]] = []

    def close(self) -> None:
        for driver in self._drivers:
            os.killpg(driver.pid, signal.SIGKILL)  # its own number until it is waited for
            driver.wait()

    def run(
        self,
        script: str,
        folder: Path,
        *words: str,
        armed: str = "",
        deadline_s: float = DEADLINE_S,
        python: str = sys.executable,
    ) -> tuple[int, str]:
        """Run a script to its end; its exit code, and the end of its output to show when a test fails."""
        pid = self.start(script, folder, *words, armed=armed, python=python)
        wait_until(lambda: _exit_code(pid) is not None, f"{script} ends", deadline_s)
        code = _exit_code(pid)
        assert code is not None
        return code, (folder / "driver.log").read_text()[-SHOWN_CHARACTERS:]

    def start(
        self, script: str, folder: Path, *words: str, armed: str = "", python: str = sys.executable
    ) -> int:
        """Start a script; the id of its process, which leads a group of its own.

        Another ``python`` than this one has a Spark of its own.
        """
        environment = {
            **os.environ,
            "SPARK_HOME": str(_own_spark_home(folder)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": python,
            failpoints.ENVIRONMENT_VARIABLE: armed,
        }
        if python != sys.executable:
            del environment["SPARK_HOME"]
        with (folder / "driver.log").open("w") as output:
            driver = subprocess.Popen(
                [python, str(SCRIPTS / script), str(folder), *words],
                env=environment,
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._drivers.append(driver)
        return driver.pid


def _own_spark_home(folder: Path) -> Path:
    """Spark as it is, but that executors of local-cluster get their folders here, not in its own."""
    home = folder / "spark"
    if not home.exists():
        home.mkdir()
        for path in spark_home().iterdir():
            if path.name != "work":
                (home / path.name).symlink_to(path)
    return home


def _exit_code(pid: int) -> int | None:
    """The exit code of a child, which stays to be waited for; None while it runs."""
    status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if status is None:
        return None
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
