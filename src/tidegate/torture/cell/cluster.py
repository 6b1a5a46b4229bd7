"""Faults of the user's own servers and network: a plan of commands that begin and end them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from tidegate.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

COMMAND_S = 120.0
HOLD_S, HOLD_S_MAX = 3.0, 600.0
FAULTS_MAX = 100
NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
EXAMPLE = """[[fault]]
name = "broker-2-stopped"
begin = "ssh broker2 pkill -STOP java"
end = "ssh broker2 pkill -CONT java"
hold_s = 5
"""


LOST = (
    "the store lost rows that it had acknowledged, and the log is trimmed below them; a server whose copies"
    " are not waited for (wait_replicas, wait_aof) may lose them, so this cell proves nothing"
)


class ClusterFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault of a plan. It lasts from the return of ``begin`` for ``hold_s`` seconds, until ``end``.

    ``end`` may be repeated, and does nothing where nothing was begun. Without it ``begin`` returns when all
    is whole again.
    """

    name: str
    begin: str
    end: str = ""
    hold_s: float = HOLD_S


class _Plan(msgspec.Struct, forbid_unknown_fields=True):
    fault: list[ClusterFault]


def read_plan(path: Path, known: Collection[str], cell_s: float) -> tuple[ClusterFault, ...]:
    """Read a plan. ``known``: the faults that tidegate does itself. ConfigError: it is not a plan."""
    try:
        plan = msgspec.convert(tomllib.loads(path.read_text()), _Plan)
    except (OSError, ValueError) as error:  # of TOML and of msgspec too
        raise ConfigError(f"{path} is no plan of faults: {error}; write such as\n{EXAMPLE}") from None
    if not 0 < len(plan.fault) <= FAULTS_MAX:
        raise ConfigError(f"{path} has {len(plan.fault)} faults; 1 to {FAULTS_MAX} are possible")
    names, most = [fault.name for fault in plan.fault], min(HOLD_S_MAX, cell_s / 2)
    for fault in plan.fault:
        where = f"{path}: the fault {fault.name!r}"
        if not NAME.fullmatch(fault.name):
            raise ConfigError(f"{where} has no name of a-z, 0-9 and hyphens: rename it")
        if fault.name in known or names.count(fault.name) > 1:
            raise ConfigError(f"{where} has the name of another one: rename it")
        for command in (fault.begin, *([fault.end] if fault.end else ())):
            _words(where, command)
        if not 0 <= fault.hold_s <= most:
            raise ConfigError(
                f"{where} holds for {fault.hold_s:g} s; at most {most:g} are possible, half of a cell:"
                " set hold_s, or a longer --cell-deadline"
            )
    return tuple(plan.fault)


def end_all(plan: Collection[ClusterFault]) -> None:
    """End each fault of the plan, whatever an earlier run left. ConfigError: a command failed."""
    for fault in plan:
        _run(fault, fault.end, COMMAND_S)


class Disturbance:
    """One fault of a plan, in one cell."""

    def __init__(self, fault: ClusterFault) -> None:
        self._fault = fault
        self._is_begun = False

    def hold(self, wait: Callable[[float], object], left_s: float) -> None:
        """Begin it, call ``wait`` again and again until its time is over, and end it.

        ConfigError: a command failed. However ``begin`` ends, ``end`` is run.
        """
        self._is_begun = True
        _run(self._fault, self._fault.begin, min(COMMAND_S, max(left_s, 1.0)))
        end = time.monotonic() + self._fault.hold_s
        while (left := end - time.monotonic()) > 0:
            wait(left)
        self.end()

    def end(self) -> None:
        """End it, if it is begun and was not ended. ConfigError: the command failed."""
        is_begun, self._is_begun = self._is_begun, False
        if is_begun:
            _run(self._fault, self._fault.end, COMMAND_S)


def _words(where: str, command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"{where}: {command!r} is no command: {error}") from None
    if not words:
        raise ConfigError(f"{where} has no command to begin it: set begin")
    return words


def _run(fault: ClusterFault, command: str, seconds: float) -> None:
    if not command:
        return
    output: Any = b""
    try:
        subprocess.run(  # noqa: S603 - the user's, as given
            shlex.split(command),
            check=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "output", None) or b""
        last = f" It printed: {output[-500:].decode(errors='replace').strip()}" if output else ""
        what = "begins" if command == fault.begin else "ends"
        raise ConfigError(
            f"the command that {what} the fault {fault.name} failed: {error}.{last} The fault may still be"
            f" there: run its end by hand ({fault.end or 'it has none'}), look at the servers, mend the plan"
        ) from None
