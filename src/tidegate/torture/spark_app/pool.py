"""The Spark applications of a run, each in a process of its own, and the drivers that run in them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import threading
from multiprocessing import Pipe
from pathlib import Path

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.errors import ConfigError
from tidegate.testing.process.forked import Forked
from tidegate.torture.driver.driver import Plan
from tidegate.torture.spark_app.job import HOME, LOCAL, Job, Ready
from tidegate.torture.spark_app.strikes import command_line, executors_of, kill

PRELOADED = ("pyspark.sql",)
START_S, STOP_S, END_S = 180.0, 30.0, 5.0
LINE_MAX = 400
JVM = b"SparkSubmit"
"""The JVM's class, in the command line of a driver."""


def check_pyspark() -> None:
    """Check that PySpark is installed. ConfigError: it is not."""
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError("--spark needs PySpark, which is not installed: pip install 'tidegate[spark]'")


class Application:
    """One process with a Spark application, which runs one driver after another."""

    def __init__(self, master: str, folder: Path) -> None:
        from tidegate.torture.spark_app import app  # PySpark may not be installed

        folder.mkdir(parents=True)
        self._connection, theirs = Pipe()
        self.process = Forked(app.main, (theirs, master, str(folder)), folder / "output.txt")
        theirs.close()
        self.driver: SparkDriver | None = None
        self.ready: Ready | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it lives, and the last driver has ended by itself."""
        return not self.process.wait(0) and (self.driver is None or self.driver.exit_code is not None)

    def send(self, job: Job) -> None:
        self._connection.send_bytes(msgspec.json.encode(job))

    def answer(self, seconds: float) -> int | None:
        """Return the exit code of a driver, or None if there is none in time. EOFError: the process ended."""
        try:
            answer = self._connection.recv_bytes() if self._connection.poll(seconds) else None
        except OSError as error:
            raise EOFError from error
        if answer is None or self.ready is not None:
            return None if answer is None else int(answer)
        self.ready = json_decoder(Ready).decode(answer)
        return None

    def kill(self) -> None:
        """Kill the driver's process and its JVM, which would take its time to notice; may be repeated."""
        self.process.kill()
        if self.ready is not None:
            kill(pid for pid in (self.ready.jvm,) if JVM in command_line(pid))

    def close(self) -> None:
        """End the application and its executors, also when they do not answer."""
        idle = self.is_idle
        self._connection.close()
        self.process.wait(STOP_S if idle else 0)
        self.kill()
        if self.ready is not None:
            kill(executors_of(self.ready.name))


class SparkDriver:
    """The plan of a driver, in an application: a process to the cell, with the methods of ``Forked``."""

    def __init__(self, application: Application, plan: Plan, output: Path) -> None:
        self.output, self._application = output, application
        self.exit_code: int | None = None
        application.send(Job(plan=plan, output=str(output)))

    def wait(self, seconds: float) -> bool:
        """Wait for its end; return whether it has ended within this time."""
        if self.exit_code is None:
            process = self._application.process
            try:
                answer = self._application.answer(seconds)
            except EOFError:
                if process.wait(END_S):
                    self._application.kill()
                    self.exit_code = process.exit_code
            else:
                self.exit_code = answer
        return self.exit_code is not None

    def send(self, number: int) -> None:
        """Send a signal to the application's process, if the driver still runs."""
        if self.exit_code is None:
            self._application.process.send(number)

    def kill(self) -> None:
        """Kill the application, unless the driver has ended."""
        if self.exit_code is None:
            self._application.kill()


class SparkApps:
    """The applications of a run. A driver gets one that is idle, or else a new one."""

    def __init__(self, master: str, folder: Path) -> None:
        self._master, self._folder = master, folder
        self._lock = threading.Lock()
        self._apps: list[Application] = []
        self._started = 0

    def begin(self) -> None:
        """Start the first application. ConfigError: Spark does not start."""
        with self._lock:
            application = self._new()
            with contextlib.suppress(EOFError):
                application.answer(START_S)
            if application.ready is not None:
                return
        output = application.process.output
        application.kill()
        lines = [line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()]
        why = lines[-1][:LINE_MAX] if lines else f"no answer within {START_S:.0f} s"
        raise ConfigError(f"Spark does not start with master {self._master}: {why} (all of it: {output})")

    def start(self, plan: Plan, output: Path) -> SparkDriver:
        """Start a driver."""
        with self._lock:
            application = next((each for each in self._apps if each.is_idle), None) or self._new()
            output.touch()
            application.driver = SparkDriver(application, plan, output)
            return application.driver

    def close(self) -> None:
        """End all applications, and remove their files; their output stays."""
        for application in self._apps:
            application.close()
        for folder in self._folder.glob("*/"):
            for part in (HOME, LOCAL):
                shutil.rmtree(folder / part, ignore_errors=True)

    def _new(self) -> Application:
        self._started += 1
        folder = self._folder / f"{os.getpid()}-{self._started}"
        self._apps.append(application := Application(self._master, folder))
        return application


def lineage_in(checkpoint: Path) -> str:
    """Read the id of the query with this checkpoint, which is its lineage; '' before its first start."""
    path = checkpoint / "metadata"
    return str(json.loads(path.read_text())["id"]) if path.exists() else ""
