"""The reader in Java, readers/java: its build, and its conformance program as a process."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import fcntl
import math
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator
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


def canonical(value: Any) -> Any:
    """Return a key's value as the program takes it; rows are compared by ``same``."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime.datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return text if value.tzinfo is None else f"{text}Z"
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    return str(value)


def same(answer: Any, value: Any) -> bool:
    """Return whether the program's canonical value is Python's value."""
    match value:
        case float():
            return (math.isnan(value) and answer == "NaN") or float(answer) == value
        case list():
            return len(answer) == len(value) and all(map(same, answer, value))
        case dict() if isinstance(answer, list):
            pairs = {repr(key): each for key, each in answer}
            return len(pairs) == len(value) and all(
                any(same(key, k) and same(each, v) for key, each in answer) for k, v in value.items()
            )
        case dict():
            return (
                answer is not None
                and answer.keys() == value.keys()
                and all(same(answer[name], value[name]) for name in value)
            )
        case _:
            return answer == canonical(value)


def key_of(key: Any) -> list[Any]:
    """Return a key of Python's as the program takes it."""
    return [canonical(each) for each in (key if isinstance(key, tuple) else (key,))]


def check_all(
    program: Reader, expected_at: Any, tables: Iterable[str], absent: Iterable[Any] = (), **of: Any
) -> int:
    """Compare every row of some tables by ``scan`` and by ``get_many``; return the number of rows."""
    asked, expected = {}, {}
    for table in tables:
        rows = dict(expected_at.table(table).scan())
        scanned = program.ask("scan", table=table, **of)
        assert len(scanned["rows"]) == len(rows), (table, scanned)
        by_key = {repr(key): value for key, value in scanned["rows"]}
        for key, value in rows.items():
            assert same(by_key[repr(key_of(key))], value), (table, key, value, by_key[repr(key_of(key))])
        asked[table] = [key_of(key) for key in (*rows, *absent)]
        expected[table] = [*rows.values(), *(None for _ in absent)]
    answer = program.ask("get_many", keys=asked, **of)
    assert answer["version"] == expected_at.version
    assert answer["rows"].keys() == expected.keys()
    for table, values in expected.items():
        assert same(answer["rows"][table], values), (table, answer["rows"][table], values)
    return sum(map(len, expected.values()))


def refused(program: Reader, name: str, do: str, **arguments: Any) -> str:
    """Check that a request is refused with this error; return it."""
    with pytest.raises(ReaderRaisedError) as error:
        program.ask(do, **arguments)
    assert error.value.name == name, str(error.value)
    return str(error.value)
