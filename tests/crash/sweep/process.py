"""Processes of the crash sweeps: forked from one that has imported all they need, each with a deadline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crash.sweep import io_crash
from crash.sweep.check import SweepError
from support import driver_process
from tidegate.testing.process import forked
from tidegate.testing.process.forked import Forked

DEADLINE_S = 60.0
PLAIN, COMMAND = "plain", ""
"""In place of a specification of ``io_crash``: a driver whose I/O is not counted; the command line."""

PRELOADED = [
    "crash.sweep.io_crash",
    "crash.sweep.check",
    "tidegate.cli",
    "typer._adapters",  # otherwise imported by each command, which takes longer than the command
    "tidegate.sinks.sqlite.store",
    "tidegate.wal.file.log",
]


def preload(*modules: str) -> None:
    """Add modules that processes need, before the first one is started."""
    forked.preload(*PRELOADED, *modules)


preload()


def _work(specification: str, argv: Sequence[str]) -> int | None:
    """Run a driver, with its I/O counted or not, or the command line."""
    if specification == PLAIN:
        return driver_process.main(argv)
    if specification != COMMAND:
        return io_crash.run(specification, argv)
    from tidegate.cli import app

    app(argv, prog_name="tidegate")
    return None


class Process(Forked):
    """A started process of a sweep."""

    def __init__(self, specification: str, argv: Sequence[str], output: Path) -> None:
        self._argv = argv
        super().__init__(_work, (specification, argv), output)

    def told(self, codes: tuple[int, ...]) -> str:
        """Return its output, once it has ended with one of these codes."""
        if not self.wait(DEADLINE_S):
            self.kill()
            raise SweepError(f"a process did not end within {DEADLINE_S} s: {self._argv}")
        told = self.output.read_text()
        if self.exit_code not in codes:
            raise SweepError(f"exit code {self.exit_code} instead of {codes}: {self._argv}\n{told[-3_000:]}")
        return told
