"""The rig of one incident: servers, input, driver, readers, Prometheus, and an operator's commands."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from game_day.readers import Readers, content_of, gate_of
from game_day.stream import Content, Generator, recount
from services.support.prometheus import Prometheus
from services.support.servers import free_ports
from support.wait import wait_until
from tidegate.cli.core.app import COMMANDS, command

if TYPE_CHECKING:
    from typing_extensions import Self

NAMESPACE = "gameday"
START_S = 240.0
FIRST_VERSIONS = 3
"""The versions before a disaster: a store that lost version 1 alone shows version 0 until it has it again."""
COMMAND_S = 90.0
SUITABLE = {"heartbeat_s": 1.0, "stuck_alarm_s": 5.0, "allow_unsafe": True, "key_groups": 8}
"""Options of every driver: one broker and one Redis are enough, and alarms are quick."""


@dataclasses.dataclass
class Job:
    """The settings of a query; a field may be changed before the query is started again."""

    namespace: str
    wal: str
    store: str
    input: str
    checkpoint: str
    options: dict[str, Any]
    wal_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    store_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    files_per_batch: int = 1000
    clock_ahead_s: float = 0.0
    """How far the driver's clock is ahead; it stays so for the life of the process."""
    totals: Sequence[str] = ("'all' AS k", "1L AS count", "n", "seq AS last")
    latest: Sequence[str] = ("k", "seq", "n")


@dataclasses.dataclass(frozen=True)
class Message:
    """Printed words that an operator sees: when, by whom, the text."""

    moment: float
    source: str
    text: str


class Driver:
    """The process of driver.py, and what it reported."""

    def __init__(self, job: Job, folder: Path, environment: Mapping[str, str]) -> None:
        self.job, self._log = job, folder / f"driver-{time.monotonic_ns()}.log"
        self.messages: list[Message] = []
        self._state = ""
        script = Path(__file__).with_name("driver.py")
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(script)],
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            wait_until(lambda: self._state or not self.alive(), "the driver is ready", START_S)
            assert self._state == "ready", self._log.read_text()[-3000:]
        except BaseException:
            self.kill()
            raise

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                event = json.loads(line)
                if event["event"] == "logged":
                    self.messages.append(Message(time.monotonic(), "log", event["text"]))
                    continue
                if event["event"] == "failed":
                    self.messages.append(Message(time.monotonic(), "query", event["text"]))
                self._state = event["event"]

    def _call(self, word: str) -> None:
        assert self.process.stdin is not None
        self._state = ""
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        wait_until(
            lambda: self._state or self.process.poll() is not None, f"the driver has done {word[:5]}", START_S
        )

    def start(self) -> None:
        """Start the query: with a new sink and the job as it is now, on its checkpoint."""
        self._call(f"start {json.dumps(dataclasses.asdict(self.job))}")

    def stop(self) -> None:
        self._call("stop")

    def alive(self) -> bool:
        return self.process.poll() is None

    def runs(self) -> bool:
        """Whether the query runs."""
        return self.alive() and self._state == "started"

    def kill(self) -> None:
        """End the process and its JVM by SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Rig:
    """All processes of one incident, with their files in ``folder``."""

    def __init__(
        self,
        folder: Path,
        store: Callable[[Path], Any] | None,
        log: Callable[[Path], Any] | None = None,
        *,
        options: dict[str, Any] | None = None,
        job: dict[str, Any] | None = None,
        environment: Callable[[Path], dict[str, str]] | None = None,
    ) -> None:
        self.folder = folder
        self.environment = environment(folder) if environment else {}
        """Variables of the next driver's process, over those of this one."""
        self.running = contextlib.ExitStack()
        self.store = self.running.enter_context(store(folder / "store-server")) if store else None
        try:
            self.log = self.running.enter_context(log(folder / "log-server")) if log else None
            (self.metrics_port,) = free_ports(1)
            self.generator = Generator(folder / "input")
            self.job = Job(
                NAMESPACE,
                self.log.url if self.log else f"file://{folder}/wal",
                self.store.url if self.store else f"sqlite://{folder}/store",
                str(folder / "input"),
                str(folder / "checkpoint"),
                SUITABLE | {"metrics_port": self.metrics_port} | (options or {}),
                store_options=dict(getattr(self.store, "options", {})),
            )
            for name, value in (job or {}).items():
                setattr(self.job, name, value)
            self.successors: list[str] = []
            """The servers that readers may be redirected to."""
            self.readers_store = ""
            """The URL that readers still have, where it is not the query's."""
            self.placeholders: dict[str, str] = {}
            """Values for words of a proposed command, such as FOLDER; a value may be several words."""
            self.actions: dict[str, Callable[[], None]] = {
                r"(?:[Rr]e)?[Ss]tart (?:the|that) query|start it again": self.restart,
                r"[Cc]onnect again": lambda: self.readers.reconnect(),  # noqa: PLW0108 - readers are made later,
            }
            """Actions of an operator besides commands: a pattern of the advice, and what it means here."""
            self.readers = Readers(self.connect, self.generator)
            self.drivers: list[Driver] = []
            self.messages: list[Message] = []
            self.prometheus = Prometheus(folder / "prometheus", self.metrics_port)
            self.running.callback(self.prometheus.close)
            self.driver = self.new_driver()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the readers, the drivers and all servers."""
        self.generator.stop()
        if hasattr(self, "readers"):
            self.readers.stop()
        for driver in getattr(self, "drivers", ()):
            driver.kill()
        self.running.close()

    # -- the stream -----------------------------------------------------------------------------------

    def new_driver(self, **changes: Any) -> Driver:
        """Start another driver's process; its query is started by ``start``."""
        job = dataclasses.replace(self.job, **changes) if changes else self.job
        driver = Driver(job, self.folder, self.environment)
        self.drivers.append(driver)
        return driver

    def begin(self, patience: float) -> None:
        """Start input, query and readers; return when both readers have answers with rows."""
        limit_s = START_S * patience
        self.generator.start()
        self.driver.start()
        self.readers.start()
        wait_until(
            lambda: self.readers.newest >= FIRST_VERSIONS or not self.driver.runs(),
            "the first versions",
            limit_s,
        )
        assert self.driver.runs(), self.driver.messages
        moment = time.monotonic()
        wait_until(lambda: self.readers.answered_since(moment) >= 0, "both readers answer", limit_s)

    def restart(self) -> None:
        """Start the query again, in a new process if the old one has ended."""
        if not self.driver.alive():
            self.driver = self.new_driver()
        self.driver.start()

    def connect(self) -> Any:
        url = self.readers_store or self.job.store
        return gate_of(url, self.job.namespace, {"timeout_s": 2.0} | self.job.store_options, self.successors)

    # -- the operator -----------------------------------------------------------------------------------

    def observed_since(self, moment: float) -> list[Message]:
        """Return the messages that somebody could see since then, oldest first."""
        printed = [*self.messages, *(message for driver in self.drivers for message in driver.messages)]
        printed += [Message(*error) for error in self.readers.errors_since(moment)]
        return sorted((message for message in printed if message.moment >= moment), key=lambda m: m.moment)

    def tidegate(self, *words: str) -> tuple[int, str]:
        """Run a command with the rig's connection options, and return its exit code and output."""
        settings = {
            "TIDEGATE_STORE": self.job.store,
            "TIDEGATE_WAL": self.job.wal,
            "TIDEGATE_NAMESPACE": self.job.namespace,
        }
        arguments = [part for word in words for part in self.placeholders.get(word, word).split()]
        arguments += [option for option in ("--yes", "--allow-unsafe") if _takes(arguments, option)]
        for option, values in (
            ("--wal-config", self.job.wal_options),
            ("--store-config", self.job.store_options),
        ):
            if values and _takes(arguments, option):
                file = self.folder / f"{option[2:]}.properties"
                file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
                file.chmod(0o600)
                arguments += [option, str(file)]
        done = subprocess.run(
            [str(Path(sys.executable).with_name("tidegate")), *arguments],
            env=os.environ | settings,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        output = f"{done.stderr}{done.stdout}"
        self.messages.append(Message(time.monotonic(), f"tidegate {words[0]}", output))
        return done.returncode, output

    # -- the judgement ------------------------------------------------------------------------------------

    def recounted(self) -> tuple[Content, Content | None]:
        """Return the input's content, folded again from its files, and the store's."""
        with self.connect() as gate:
            return recount(self.generator.folder, self.generator.read_before), content_of(gate)[1]


def _takes(arguments: Sequence[str], option: str) -> bool:
    """Whether the command in these words has the option and was not given it."""
    if not arguments or arguments[0] not in COMMANDS or option in arguments:
        return False
    found = command(arguments[0])
    below = getattr(found, "commands", None) or {}
    found = below.get(arguments[1], found) if len(arguments) > 1 else found
    return any(option in parameter.opts for parameter in found.params)
