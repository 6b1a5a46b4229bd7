"""What became of a cell, and of a run: plain data, as it stands in the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from tidegate.torture.schedule import Cell

PROVEN, VIOLATED, UNPROVEN, MISSED = "proven", "violated", "unproven", "missed"
RESULTS = {
    PROVEN: "the fault happened, everything was finished, and every promise held",
    VIOLATED: "a promise was broken",
    UNPROVEN: "it could not be finished or judged",
    MISSED: "the fault did not happen",
}
"""What can become of a cell."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, and where the history says so."""

    rule: str
    invariant: str
    what: str
    expected: str = ""
    seen: str = ""
    events: tuple[str, ...] = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one cell. ``history`` is its folder below the report's, '' when it was not kept."""

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
    """Outcomes, counted."""

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
        """Something was run, and every cell of it is proven."""
        return bool(self.outcomes) and self.results[PROVEN] == len(self.outcomes)

    @property
    def wrong(self) -> list[Outcome]:
        """Every cell that is not proven, those with a broken promise first."""
        order = [VIOLATED, UNPROVEN, MISSED]
        return sorted(
            (each for each in self.outcomes if each.result != PROVEN), key=lambda o: order.index(o.result)
        )
