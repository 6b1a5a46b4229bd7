"""Outcomes of cells and their totals: plain data, in the form that the report has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

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
