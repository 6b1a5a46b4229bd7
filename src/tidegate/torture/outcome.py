"""Outcomes of cells and their totals: plain data, in the form that the report has."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.errors import ConfigError
from tidegate.torture.schedule import Cell

PROVEN, VIOLATED, UNPROVEN, MISSED = "proven", "violated", "unproven", "missed"
RESULTS = {
    PROVEN: "the fault happened, everything was finished, and every promise held",
    VIOLATED: "a promise was broken",
    UNPROVEN: "the cell could not be finished or judged",
    MISSED: "the fault did not happen",
}
"""Results of a cell, by name."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One defect, with the lines of the history that show it."""

    rule: str
    invariant: str
    what: str
    expected: str = ""
    seen: str = ""
    events: tuple[str, ...] = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one cell.

    ``history`` is its folder below the report's; '' when the history was not kept.
    """

    failpoint: str
    fault: str
    finish: str
    round: int
    result: str
    namespace: str
    history: str
    seconds: float
    findings: tuple[Finding, ...] = ()
    unproven: tuple[str, ...] = ()
    counts: dict[str, int] = {}
    errors: dict[str, int] = {}

    @property
    def cell(self) -> Cell:
        return Cell(self.failpoint, self.fault, self.finish, self.round)


class Totals:
    """Counts over outcomes."""

    def __init__(self, outcomes: Iterable[Outcome] = ()) -> None:
        self.results: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.outcomes: list[Outcome] = []
        for outcome in outcomes:
            self.add(outcome)

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.results[outcome.result] += 1
        self.counts.update(outcome.counts)
        self.errors.update(outcome.errors)

    @property
    def all_proven(self) -> bool:
        """Whether at least one cell was run, and every cell that was run is proven."""
        return bool(self.outcomes) and self.results[PROVEN] == len(self.outcomes)

    @property
    def wrong(self) -> list[Outcome]:
        """Return every cell that is not proven, those with a broken promise first."""
        order = [VIOLATED, UNPROVEN, MISSED]
        return sorted(
            (each for each in self.outcomes if each.result != PROVEN), key=lambda o: order.index(o.result)
        )


def read_outcomes(path: Path) -> list[Outcome]:
    """Read the outcomes of the cells that are done. ConfigError: a line is not an outcome."""
    outcomes = []
    for number, line in enumerate(whole_lines(path), 1):
        try:
            outcomes.append(json_decoder(Outcome).decode(line))
        except msgspec.MsgspecError as error:
            msg = f"{path}, line {number}: {error}; remove the line: its cell is run again"
            raise ConfigError(msg) from None
    return outcomes


def whole_lines(path: Path) -> list[bytes]:
    """Read the lines of a file that grows by lines, and truncate the file after its last whole line.

    A line that was torn by a full disk or a power cut would otherwise become the start of the next one.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
        os.truncate(path, sum(map(len, lines)))
    return lines
