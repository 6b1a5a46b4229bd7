"""Processes of the crash sweeps: forked from one that has imported all they need, each with a deadline."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tidegate.testing import driver_process, io_crash
from tidegate.testing.crash_check import SweepError
from tidegate.testing.driver_process import WithoutPandas

DEADLINE_S = 60.0
PLAIN, COMMAND = "plain", ""
"""Instead of what ``io_crash`` takes: a driver whose I/O is not counted; the command line."""

PRELOADED = [
    "tidegate.testing.io_crash",
    "tidegate.testing.crash_check",
    "tidegate.cli",
    "typer._adapters",  # else imported by each command, which takes longer than the command
    "tidegate.sinks.sqlite_store",
    "tidegate.wal.file_log",
]

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(PRELOADED)
_one_looks = threading.Lock()
"""A start asks every process for its exit code, and only the first who asks is told."""


def preload(*modules: str) -> None:
    """More of what processes need, before the first one is started."""
    _processes.set_forkserver_preload([*PRELOADED, *modules])


def _child(specification: str, argv: Sequence[str], output: str) -> None:
    """In a forked process: a driver whose I/O is counted or not, or the command line."""
    fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stdout = sys.stderr = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.meta_path.insert(0, WithoutPandas())
    if specification == PLAIN:
        sys.exit(driver_process.main(argv))
    if specification != COMMAND:
        sys.exit(io_crash.run(specification, argv))
    from tidegate.cli import app

    app(argv, prog_name="tidegate")


class Process:
    """A process of a sweep, started."""

    def __init__(self, specification: str, argv: Sequence[str], output: Path) -> None:
        self._argv, self._output = argv, output
        self._process = _processes.Process(target=_child, args=(specification, argv, str(output)))
        with _one_looks:
            self._process.start()
        self.pid = self._process.pid or 0

    def told(self, codes: tuple[int, ...]) -> str:
        """Its output, once it has ended with one of these codes."""
        ended = multiprocessing.connection.wait([self._process.sentinel], DEADLINE_S)
        if not ended:
            self._process.kill()
        with _one_looks:
            self._process.join()
        if not ended:
            raise SweepError(f"a process did not end within {DEADLINE_S} s: {self._argv}")
        told = self._output.read_text()
        if self.exit_code not in codes:
            raise SweepError(f"exit code {self.exit_code} instead of {codes}: {self._argv}\n{told[-3_000:]}")
        return told

    @property
    def exit_code(self) -> int | None:
        """Negative for a signal; None while it runs."""
        return self._process.exitcode
