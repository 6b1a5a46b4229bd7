"""Second pass over a history: the versions in order, and every read against the content of its version."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable

from tidegate.torture.history import events
from tidegate.torture.history.offers import Place
from tidegate.torture.history.source import Source
from tidegate.torture.judge.answers import Answer, Mismatch, Wrong, differs, writers_of, wrongs
from tidegate.torture.judge.candidates import Candidates
from tidegate.torture.judge.diagnosis import Diagnosis
from tidegate.torture.judge.possible_contents import MOST, CandidateState, step
from tidegate.torture.judge.recency import Fit, NewestReads, Shown
from tidegate.torture.judge.tables import Tables
from tidegate.torture.judge.timeline import LooseRead, Timeline
from tidegate.torture.judge.verdict import Verdict

BEYOND = 8
"""The number of versions after the last one seen that reads alone may have shown."""
MOST_EXPLAINED = 200
"""The number of wrong answers that are traced back to their writers; further ones are counted."""


class Contents:
    """The second pass over one namespace."""

    def __init__(self, timeline: Timeline, candidates: Candidates, source: Source, verdict: Verdict) -> None:
        self._timeline, self._candidates, self._source, self._verdict = timeline, candidates, source, verdict
        self._states = [CandidateState(Tables())]
        self._mismatches: list[Mismatch] = []
        self._witnessed: set[int] = set()
        self._scanned: dict[str, int] = {}
        self._loose: dict[int, list[LooseRead]] = {}
        for read in timeline.loose:
            self._loose.setdefault(read.least, []).append(read)
        self._active: list[Fit] = []
        self._unfit: list[Shown] = []
        self._newest = NewestReads(timeline)

    def check(self) -> None:
        """Judge all reads, and trace wrong answers back to their causes."""
        for version in range(self._candidates.top + 1):
            if version and not self._step(version):
                return
            self._snapshots(version)
            self._loose_reads(version)
        self._read_beyond()
        self._newest.check()
        if self._mismatches:
            made = {v: choices[0].offer for v, choices in enumerate(self._candidates.choices) if choices}
            made.update(self._states[0].offers())
            Diagnosis(self._timeline, made, self._source, self._witness).judge(self._mismatches)

    def _step(self, version: int) -> bool:
        """Advance to the next version; False when too much is unknown to continue."""
        choices = self._candidates.choices[version]
        stepped = step(self._states, version, choices, self._source.changes)
        if choices and not stepped:
            self._timeline.find(
                "hole",
                f"no batch is left that can be version {version}: each candidate is another version",
                "a batch for each version",
                f"version {self._candidates.top} was seen",
                self._timeline.sights[self._candidates.top][1],
            )
        self._states = stepped or self._states
        if len(self._states) > MOST:
            self._verdict.unjudged.append(
                f"namespace {self._timeline.name}, from version {version} on: more than {MOST} contents are"
                " possible, because outcomes of batches are unknown"
            )
            return False
        self._verdict.count("versions")
        return True

    def _snapshots(self, version: int) -> None:
        places = self._timeline.reads.get(version, ())
        if len(self._states) > 1:
            self._states = self._best(self._states, places)
        first = len(self._mismatches)
        tables = self._states[0].tables
        for place in places:
            event = self._answer(place)
            mistakes = list(wrongs(tables, event))
            self._witnessed.update(writers_of(tables, event, mistakes))
            self._note(mistakes, version, place, event)
        if len(self._mismatches) > first:
            self._compare_within(version, self._mismatches[first:])

    def _best(self, states: list[CandidateState], places: Iterable[Place]) -> list[CandidateState]:
        """Keep the states that contradict the fewest answers: none, when the history is right."""
        against = [0] * len(states)
        for place in places:
            event = self._read(place)
            for index, state in enumerate(states):
                against[index] += next(wrongs(state.tables, event), None) is not None
        return [state for state, number in zip(states, against, strict=True) if number == min(against)]

    def _read(self, place: Place) -> Answer:
        event = self._source.event(place)
        assert isinstance(event, events.Read | events.Scanned)
        return event

    def _answer(self, place: Place) -> Answer:
        """Read an answer, and count its keys."""
        event = self._read(place)
        keys = event.rows if isinstance(event, events.Scanned) else len(event.found) + len(event.absent)
        self._verdict.count("keys", keys)
        return event

    def _note(
        self, mistakes: list[Wrong], version: int, place: Place, event: Answer, loose: int | None = None
    ) -> None:
        if not mistakes and isinstance(event, events.Scanned):
            self._scanned[event.table] = version
        for wrong in mistakes:
            if len(self._mismatches) < MOST_EXPLAINED:
                self._mismatches.append(Mismatch(wrong, version, place, event.began, loose))
            else:
                self._verdict.broken["atomic"] = self._verdict.broken.get("atomic", 0) + 1

    def _compare_within(self, version: int, mismatches: list[Mismatch]) -> None:
        """Find, for each wrong answer, another answer of the same snapshot that differs."""
        snapshots: dict[tuple[str, int], list[Mismatch]] = {}
        for mismatch in mismatches:
            event = self._read(mismatch.place)
            snapshots.setdefault((mismatch.place.file, event.snapshot), []).append(mismatch)
        for place in self._timeline.reads[version]:
            event = self._read(place)
            for mismatch in snapshots.get((place.file, event.snapshot), ()):
                if differs(event, mismatch.wrong):
                    mismatch.other = str(place)

    def _loose_reads(self, version: int) -> None:
        """Judge reads at the newest version: right if they are right at a version that it can have been."""
        for read in self._loose.pop(version, ()):
            newest = bisect.bisect_right(self._candidates.possible_at, read.at) - 1
            self._active.append(Fit(Shown(read), self._answer(read.place), max(newest, version)))
        left: list[Fit] = []
        for fit in self._active:
            if any(next(wrongs(state.tables, fit.answer), None) is None for state in self._states):
                fit.shown.at(version)
            if version < fit.newest:
                left.append(fit)
            elif fit.shown.highest >= 0:
                self._newest.add(fit.shown)
            elif version == self._candidates.top:
                self._unfit.append(fit.shown)
            else:
                self._wrong(fit.shown.read, fit.answer, version)
        self._active = left

    def _wrong(self, read: LooseRead, answer: Answer, version: int) -> None:
        tables = self._states[0].tables
        mistakes = list(wrongs(tables, answer))
        self._witnessed.update(writers_of(tables, answer, mistakes))
        self._note(mistakes, version, read.place, answer, read.least)

    def _read_beyond(self) -> None:
        """Judge reads that fit no version seen elsewhere.

        Their version may be one that only they have shown, after the last look.
        """
        top = self._candidates.top
        for shown in self._unfit:
            self._newest.add(shown)
        states = [dataclasses.replace(state, tables=state.tables.copy()) for state in self._states]
        for version in range(top + 1, top + BEYOND + 1):
            choices = self._candidates.beyond(version) if self._unfit else []
            states = step(states, version, choices, self._source.changes)
            if not states or len(states) > MOST:
                break
            for shown in self._newest.since(min(choice.offer.at for choice in choices)):
                answer = self._read(shown.read.place)
                if any(next(wrongs(state.tables, answer), None) is None for state in states):
                    shown.at(version)
        for shown in self._unfit:
            if shown.highest < 0:
                self._wrong(shown.read, self._read(shown.read.place), top)

    def _witness(self, version: int, tables: Iterable[str]) -> bool:
        """Return whether a right answer shows a change of this version, in a table that it changed."""
        return version in self._witnessed or any(self._scanned.get(name, 0) >= version for name in tables)
