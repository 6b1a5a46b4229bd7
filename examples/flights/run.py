"""``tidegate demo``: the driver process, its kills, the reader process, and what came of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tidegate.base import failpoints
from tidegate.cli.inspect.doctor_disks import folder_of
from tidegate.committers.opening.open import ensure_made
from tidegate.committers.operations.local_coordinator import coordinator_for
from tidegate.demo.data import BATCHES, rows, write_days
from tidegate.errors import ConfigError, TidegateError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints

NAMESPACE = "flights"
SINK = ("namespace", "wal", "store", "wal_options", "store_options")
DEADLINE_S = 600.0
KILLS = {
    4: ("publish.before=kill@4", "decided in the log, not yet visible to readers"),
    9: ("commit.before_return=kill@5", "visible to readers, not yet in Spark's commit log"),
}
"""Version of the kill: how the driver process is armed until then, and where it dies."""


@dataclasses.dataclass
class Outcome:
    """The outcome of a run of the demo."""

    folder: str
    wal: str
    store: str
    namespace: str
    seconds: float = 0.0
    rows: int = 0
    versions: int = 0
    snapshots_checked: int = 0
    versions_checked: int = 0
    readable: int = 0
    by_tasks: dict[int, int] = dataclasses.field(default_factory=dict)
    """The tasks that staged and applied each large version; the driver applied all others."""
    torn: list[str] = dataclasses.field(default_factory=list)
    kills: list[str] = dataclasses.field(default_factory=list)
    recovered: list[int] = dataclasses.field(default_factory=list)
    log_removed: bool = False

    @property
    def right(self) -> bool:
        """Whether every promise held."""
        return (
            not self.torn
            and self.versions == len(BATCHES)
            and self.versions_checked >= self.readable > 0
            and len(self.kills) == len(KILLS)
        )


Progress = Callable[[int, str], None]
"""Told the newest visible version and what happens."""


def run(
    wal: str | None = None,
    store: str | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
    *,
    namespace: str = NAMESPACE,
    wal_options: dict[str, Any] | None = None,
    store_options: dict[str, Any] | None = None,
    allow_unsafe: bool = False,
) -> Outcome:
    """Run the demo in ``folder`` (default: a new temporary one); the URLs default to files there.

    A log on servers is removed in the end, when all went well and no ``folder`` was given.
    ConfigError: the folder is not empty, or the log cannot be used; nothing was written.
    TidegateError: a process failed; the message names its log.
    """
    keep = folder is not None
    folder = Path(folder or tempfile.mkdtemp(prefix="tidegate-demo-")).resolve()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"{folder} is not an empty folder: give a new one")
    where = Endpoints(
        namespace,
        wal or f"file://{folder}/wal",
        store or f"sqlite://{folder}/store",
        wal_options or {},
        store_options or {},
    )
    on_servers = folder_of(where.wal) is None
    if on_servers:
        _make(where, allow_unsafe=allow_unsafe)
    outcome = Outcome(str(folder), where.wal, where.store, namespace, rows=len(rows()))
    report = progress or (lambda _version, _what: None)
    started = time.monotonic()
    report(0, "writing a month of departures, and starting Spark")
    write_days(folder / "input", BATCHES)
    reader = _Reader(folder, where)
    try:
        named = {name: getattr(where, name) for name in SINK}
        arguments = {"folder": str(folder), **named, "allow_unsafe": allow_unsafe}
        _drive(folder, arguments, outcome, reader, report)
        reader.finish(outcome)
    finally:
        reader.kill()
    outcome.seconds = time.monotonic() - started
    outcome.log_removed = on_servers and not keep and outcome.right and _remove_log(where)
    return outcome


def _make(where: Endpoints, *, allow_unsafe: bool) -> None:
    """Make the namespace, so that a log that cannot be used is refused here with a plain error."""
    with coordinator_for(where, Options(allow_unsafe=allow_unsafe)) as driver:
        if driver.decisions.catch_up() is not None or driver.store.identity() is not None:
            msg = f"namespace {where.namespace} is there already, and the demo removes its own in the end"
            raise ConfigError(msg)
        try:
            ensure_made(driver)
        except ConfigError:
            with contextlib.suppress(TidegateError):
                driver.log.drop()  # its topics were made before they were refused
            raise


def _remove_log(where: Endpoints) -> bool:
    try:
        with coordinator_for(where) as driver:
            return driver.log.drop()
    except TidegateError:
        return False


def _drive(
    folder: Path, arguments: dict[str, Any], outcome: Outcome, reader: _Reader, report: Progress
) -> None:
    """Run a driver process until every batch is visible, and the next one after each kill.

    The next one starts Spark while the one before streams, and waits for its arguments: until then it
    has neither log nor store.
    """
    log = folder / "driver.log"
    armed = [specification for specification, _ in KILLS.values()] + [""]
    with contextlib.ExitStack() as processes:

        def start() -> subprocess.Popen[str]:
            process = _start("stream", log, armed.pop(0))
            processes.callback(_end, process)
            return process

        driver = start()
        for version, (_, place) in KILLS.items():
            _give(driver, arguments)
            following = start()
            for _ in _until_end(driver, log, outcome, reader, report):
                pass
            if driver.returncode != -signal.SIGKILL:
                break
            outcome.kills.append(f"version {version}: {place}")
            report(reader.newest, f"driver killed at version {version}, {place}; the next one takes over")
            driver = following
        else:
            _give(driver, arguments)
            for _ in _until_end(driver, log, outcome, reader, report):
                pass
        if driver.returncode != 0:
            msg = f"the driver process ended with {driver.returncode}; the end of {log}:\n{_tail(log)}"
            raise TidegateError(msg)


def _until_end(
    driver: subprocess.Popen[str], log: Path, outcome: Outcome, reader: _Reader, report: Progress
) -> Iterator[int]:
    """Yield the newest visible version from time to time until the driver process ends."""
    deadline = time.monotonic() + DEADLINE_S
    again = f" by driver {len(outcome.kills) + 1}" if outcome.kills else ""
    while driver.poll() is None:
        if time.monotonic() > deadline:
            msg = f"the driver process did not end within {DEADLINE_S:.0f} s; see {log}"
            raise TidegateError(msg)
        reader.check_alive()
        report(reader.newest, f"streaming{again}; {reader.checked} snapshots checked")
        yield reader.newest
        time.sleep(0.1)  # a progress tick, nothing waits for it


def _end(process: subprocess.Popen[str]) -> None:
    """End a process with all that it has started: a JVM whose start was interrupted never ends by itself."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


class _Reader:
    """The reader process and its last report."""

    def __init__(self, folder: Path, where: Endpoints) -> None:
        self._folder, self._stop = folder, folder / "reader.stop"
        self._report: dict[str, Any] = dict.fromkeys(("newest", "checked", "versions", "readable"), 0)
        arguments = {
            "store": where.store,
            "store_options": where.store_options,
            "namespace": where.namespace,
            "stop": str(self._stop),
        }
        self._log = folder / "reader.log"
        self._process = _start("watch", self._log, "", stdout=subprocess.PIPE)
        _give(self._process, arguments)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def newest(self) -> int:
        return int(self._report["newest"])

    @property
    def checked(self) -> int:
        return int(self._report["checked"])

    def check_alive(self) -> None:
        if self._process.poll() not in (None, 0):
            msg = f"the reader process ended; the end of {self._log}:\n{_tail(self._log)}"
            raise TidegateError(msg)

    def finish(self, outcome: Outcome) -> None:
        """Let it check every version once more, and take its last report."""
        self._stop.touch()
        try:
            self._process.wait(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            msg = f"the reader did not check every version within {DEADLINE_S:.0f} s; see {self._log}"
            raise TidegateError(msg) from None
        self._thread.join()
        self.check_alive()
        outcome.versions = self.newest
        outcome.snapshots_checked = self.checked
        outcome.versions_checked = int(self._report["versions"])
        outcome.readable = int(self._report["readable"])
        outcome.torn = list(self._report["torn"])
        outcome.by_tasks = {int(version): tasks for version, tasks in self._report["by_tasks"].items()}
        outcome.recovered = _recovered(self._folder / "driver.log")

    def kill(self) -> None:
        _end(self._process)

    def _listen(self) -> None:
        assert self._process.stdout is not None  # asked for in __init__
        with self._process.stdout as lines:
            for line in lines:
                self._report = json.loads(line)


def _start(module: str, log: Path, armed: str, **options: Any) -> subprocess.Popen[str]:
    """Start a process of the demo. It waits for its arguments."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", failpoints.ENVIRONMENT_VARIABLE: armed}
    with log.open("a") as output:
        return subprocess.Popen(
            [sys.executable, "-m", f"tidegate.demo.{module}"],
            env=environment,
            cwd=log.parent,
            stdin=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,
            **{"stdout": output, **options},
        )


def _give(process: subprocess.Popen[str], arguments: dict[str, Any]) -> None:
    """Give a process its arguments, passwords among them, on standard input."""
    assert process.stdin is not None  # asked for in _start
    with contextlib.suppress(BrokenPipeError), process.stdin as arguments_file:
        json.dump(arguments, arguments_file)


def _recovered(log: Path) -> list[int]:
    """The versions a restarted driver finished, as it reported them."""
    versions = []
    for line in log.read_text().splitlines():
        if line.startswith('{"recovered":'):
            versions += json.loads(line)["recovered"]
    return versions


def _tail(path: Path, lines: int = 15) -> str:
    return "\n".join(path.read_text().splitlines()[-lines:])
