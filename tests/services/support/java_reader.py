"""The reader in Java, readers/java: its build, and its conformance program as a process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.support.jars import java
from services.support.servers import ROOT
from tidegate.testing.conformance.program import Reader, ReaderRaisedError

FOLDER = ROOT / "readers" / "java"
PROGRAM = "dev.tidegate.reader.Conformance"
CLASSES = "TIDEGATE_JAVA_READER"
"""The variable that names other classes of the reader: those of a mutant."""
FLAGS = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"]
BUILD_S = 400
NO_MAVEN = """Maven builds the reader in Java for its tests and was not found.
  Debian, Ubuntu:  sudo apt-get update && sudo apt-get install -y maven"""


def built(repository: Path | None = None) -> str:
    """Build the reader, offline if Maven has all of it; return its class path. Processes take turns."""
    if CLASSES in os.environ:
        return class_path()
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError(NO_MAVEN)
    java("javac")
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
    raise RuntimeError(
        f"Maven could not build the reader in Java:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    )


def class_path() -> str:
    """Return the class path of a build, or of the mutant that ``CLASSES`` names, and of ``src/test``."""
    target = FOLDER / "target"
    classes = os.environ.get(CLASSES, str(target / "classes"))
    return os.pathsep.join([classes, str(target / "test-classes"), str(target / "lib" / "*")])


def command_of(main: str) -> str:
    """Return the command that runs a class of the reader."""
    return shlex.join([java(), *FLAGS, "-cp", class_path(), main])


@contextlib.contextmanager
def java_reader(folder: Path) -> Iterator[Reader]:
    """Build the reader and start its program, which has to end by itself: no thread survives."""
    built()
    with Reader(command_of(PROGRAM), folder / "java-reader.log") as reader:
        yield reader
        assert reader.close() == 0


def refused(program: Reader, name: str, do: str, **arguments: Any) -> str:
    """Check that a request is refused with this error; return it."""
    with pytest.raises(ReaderRaisedError) as error:
        program.ask(do, **arguments)
    assert error.value.name == name, str(error.value)
    return str(error.value)
