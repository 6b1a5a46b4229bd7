"""The changes of a driver process in a folder, in order: strace's record of its system calls.

Python's own hooks would not suffice: SQLite writes and syncs by itself. Linux, with strace installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from crash.power.disk import Disk, Op
from crash.sweep.check import SweepError
from crash.sweep.io_crash import ENVIRONMENT_VARIABLE

DEADLINE_S = 300.0
NO_STRACE = "strace is not installed, and nothing else tells what SQLite writes and syncs: install it"

OPENS = ("open", "openat", "creat")
MOVES = ("read", "lseek", "write")
"""Calls that move a descriptor's position."""
CHANGES = ("pwrite64", "ftruncate", "fsync", "fdatasync", "mkdir", "mkdirat", "rename", "renameat")
MORE_CHANGES = ("renameat2", "unlink", "unlinkat", "rmdir")
NOT_MODELLED = (
    *("writev", "pwritev", "pwritev2", "truncate", "fallocate", "link", "linkat", "symlink", "symlinkat"),
    *("copy_file_range", "sendfile", "splice", "dup", "dup2", "dup3", "sync_file_range", "msync"),
)
"""Calls that are refused in a trace, for a file in the folder."""
CALLS = (*OPENS, *MOVES, *CHANGES, *MORE_CHANGES, *NOT_MODELLED)

LINE = re.compile(r"(?P<pid>\d+) +(?P<call>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+)(?P<more>.*)")
UNFINISHED = re.compile(r"(?P<pid>\d+) +(?P<begun>\w+\(.*) <unfinished \.\.\.>")
RESUMED = re.compile(r"(?P<pid>\d+) +<\.\.\. \w+ resumed>(?P<rest>.*)")
ARGUMENT = re.compile(
    r' *(?:"(?P<text>[^"]*)"|(?P<fd>AT_FDCWD|\d+)<(?P<path>[^>]*)>(?P<gone>\(deleted\))?|(?P<other>[^,]+))'
)


def record(argv: Sequence[str], folder: Path) -> list[Op]:
    """Run a driver process under strace; return its changes below ``folder``, and its output.

    The file log's segments look old to it (``io_crash``), so that it trims during the run.
    """
    strace = shutil.which("strace")
    if strace is None:
        raise SweepError(NO_STRACE)
    trace = folder.with_name(f"{folder.name}.trace")
    # `?`: not every architecture has every call. Strings are whole and in hex; paths follow descriptors.
    asked = ["-f", "-y", "-xx", "-s", "100000000", "-e", "trace=" + ",".join(f"?{call}" for call in CALLS)]
    command = [strace, *asked, "-o", str(trace), sys.executable, "-m", "crash.sweep.io_crash", *argv]
    environment = {**os.environ, ENVIRONMENT_VARIABLE: "old"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    if done.returncode:
        raise SweepError(f"the driver under strace ended with {done.returncode}:\n{done.stderr[-3_000:]}")
    with trace.open() as lines:
        return list(Trace(folder).ops(lines))


class Trace:
    """A parser that turns the lines of a trace into changes below a folder."""

    def __init__(self, folder: Path) -> None:
        self._root = f"{folder}/"
        self._disk = Disk()
        self._at: dict[str, int] = {}
        """The position of each descriptor's next read or write."""

    def ops(self, lines: Iterable[str]) -> Iterator[Op]:
        """Yield the changes, in the order in which their calls returned."""
        for pid, call, arguments, result in _calls(lines):
            del pid  # threads share descriptors, and only one process writes here
            for op in self._op(call, arguments, result):
                self._disk.do(op)
                yield op

    def _op(self, call: str, arguments: list[str], result: int) -> Iterator[Op]:
        if call in OPENS:
            yield from self._opened(arguments, result)
        elif call in MOVES:
            yield from self._moved(call, arguments, result)
        elif call in {"rename", "renameat", "renameat2"}:
            old, new = (argument for argument in arguments if argument.startswith("/"))
            if self._inside(old):
                yield Op("rename", self._inside(old), target=self._inside(new))
        elif path := self._inside(_path_of(arguments)):
            match call:
                case "pwrite64":
                    content = bytes.fromhex(arguments[1])
                    if result != len(content):
                        raise SweepError(f"a write of {len(content)} bytes wrote {result}: {path}")
                    yield Op("write", path, int(arguments[3]), content)
                case "ftruncate":
                    yield Op("size", path, int(arguments[1]))
                case "fsync" | "fdatasync":
                    yield Op("sync", path)
                case "mkdir" | "mkdirat":
                    yield Op("folder", path)
                case "unlink" | "unlinkat" | "rmdir":
                    yield Op("unlink", path)
                case _:
                    raise SweepError(f"{call} of {path}: it is not modelled")

    def _opened(self, arguments: list[str], fd: int) -> Iterator[Op]:
        path = self._inside(_path_of(arguments))
        flags = next(argument for argument in arguments if argument.startswith("O_"))
        self._at[str(fd)] = 0
        if not path:
            return
        if "O_CREAT" in flags and not self._disk.has(path):
            yield Op("make", path)
        elif "O_TRUNC" in flags:
            yield Op("size", path, 0)
        if "O_APPEND" in flags:
            raise SweepError(f"{path} is opened to append: it is not modelled")

    def _moved(self, call: str, arguments: list[str], result: int) -> Iterator[Op]:
        fd, _, named = arguments[0].partition(" ")
        at = self._at.get(fd, 0)
        self._at[fd] = result if call == "lseek" else at + result
        if call != "write":
            return
        content = bytes.fromhex(arguments[1])[:result]
        if fd == "1":
            yield Op("said", content=content)
        elif path := self._inside(named):
            yield Op("write", path, at, content)

    def _inside(self, path: str) -> str:
        """Return the path's place in the folder, or ''.

        Files that SQLite shares between processes do not matter after a cut.
        """
        if f"{path}/" == self._root:
            return "."
        if not path.startswith(self._root) or path.endswith("-shm"):
            return ""
        return path.removeprefix(self._root)


def _path_of(arguments: list[str]) -> str:
    """Return the path that a call names, or that of its descriptor."""
    named = next((argument for argument in arguments[:2] if argument.startswith("/")), None)
    return named if named is not None else arguments[0].partition(" ")[2]


def _calls(lines: Iterable[str]) -> Iterator[tuple[str, str, list[str], int]]:
    """Yield process, call, arguments and result of every call that did something."""
    begun: dict[str, str] = {}
    for line in lines:
        if part := UNFINISHED.match(line):
            begun[part["pid"]] = part["begun"]
            continue
        if part := RESUMED.match(line):
            line = f"{part['pid']} {begun.pop(part['pid'])}{part['rest']}"  # noqa: PLW2901
        found = LINE.match(line)
        if found and int(found["result"]) >= 0:
            call, arguments = found["call"], list(_arguments(found["call"], found["arguments"]))
            yield found["pid"], call, arguments, int(found["result"])


def _arguments(call: str, text: str) -> Iterator[str]:
    """Yield arguments: content as hex, paths decoded, descriptors as "3 /path"."""
    for found in ARGUMENT.finditer(text):
        if found["text"] is not None:
            content = found["text"].replace("\\x", "")
            yield content if call in {"write", "pwrite64", "read"} else os.fsdecode(bytes.fromhex(content))
        elif found["fd"] is not None:
            path = bytes.fromhex(found["path"].replace("\\x", "")) if found["gone"] is None else b""
            yield f"{found['fd']} {os.fsdecode(path)}"
        elif other := found["other"].strip():
            yield other
