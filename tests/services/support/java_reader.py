"""The reader in Java, readers/java: its build, and its conformance program as a process."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from services.support.jars import java
from services.support.servers import ROOT

FOLDER = ROOT / "readers" / "java"
PROGRAM, BENCH = "dev.tidegate.reader.Conformance", "dev.tidegate.reader.Bench"
CLASSES = "TIDEGATE_JAVA_READER"
"""The variable that names other classes of the reader: those of a mutant."""
FLAGS = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"]
BUILD_S, CLOSE_S = 400, 30
NO_MAVEN = """Maven builds the reader in Java for its tests and was not found.
  Debian, Ubuntu:  sudo apt-get update && sudo apt-get install -y maven"""


def built(repository: Path | None = None) -> str:
    """Build the reader, offline if Maven has all of it; return its class path. Several processes may call it."""
    if CLASSES in os.environ:
        return class_path()
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError(NO_MAVEN)
    target = FOLDER / "target"
    target.mkdir(exist_ok=True)
    command = [maven, "-q", "-B", "-f", str(FOLDER / "pom.xml"), "package", "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={target / 'lib'}"]
    command += [] if repository is None else [f"-Dmaven.repo.local={repository}"]
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for offline in (["-o"], []):
            done = subprocess.run(
                [*command, *offline], capture_output=True, text=True, timeout=BUILD_S, check=False
            )
            if done.returncode == 0:
                return class_path()
    raise RuntimeError(f"Maven could not build the reader in Java:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def class_path() -> str:
    """Return the class path of a build, or of the mutant that ``CLASSES`` names."""
    classes = os.environ.get(CLASSES, str(FOLDER / "target" / "classes"))
    return os.pathsep.join([classes, str(FOLDER / "target" / "lib" / "*")])


def command_of(main: str) -> list[str]:
    """Return the command that runs a class of the reader."""
    return [java(), *FLAGS, "-cp", class_path(), main]


class RefusedError(Exception):
    """A reply with an error: its name, and its message."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class JavaReader:
    """The conformance program: one request, one reply."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            command_of(PROGRAM), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def ask(self, do: str, **arguments: Any) -> Any:
        """Send a request, and return its answer. Raises: RefusedError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"id": 1, "do": do} | {name: each for name, each in arguments.items() if each is not None}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        reply = json.loads(self._process.stdout.readline())
        if "error" in reply:
            raise RefusedError(reply["error"], reply["message"])
        return reply["ok"]

    def close(self) -> None:
        """End the program, and check that it ends by itself: no thread survives."""
        try:
            self.ask("close")
            assert self._process.wait(CLOSE_S) == 0
        finally:
            self._process.kill()
            self._process.communicate()
