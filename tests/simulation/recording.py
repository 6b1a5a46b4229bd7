"""The record of a long run of the simulation: one JSON line for each chunk of schedules that is done.

A run that was interrupted continues where it ended: chunks that are in the file are not played again, and the
sum of its lines is the run. Nothing of a schedule that broke an invariant is in it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

import tidegate
from simulation.coverage import Tally
from simulation.plays.world import Fault
from tidegate.base.decoders import json_decoder
from tidegate.committers.states import Event, State


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chunk that is done: schedules ``first`` to ``end`` - 1 of a seed, and their counts.

    ``release`` is tidegate's; ``seconds`` are of the process's processor time. Transitions are named ``STATE
    on EVENT``.
    """

    release: str
    seed: int
    first: int
    end: int
    seconds: float
    calls: int
    versions: int
    hits: int
    in_flight: int
    faults: dict[str, int]
    errors: dict[str, int]
    transitions: dict[str, int]
    failpoints: dict[str, int]

    @property
    def indexes(self) -> range:
        """The schedules."""
        return range(self.first, self.end)

    def tally(self) -> Tally:
        """Return the counts as a tally, to be added up."""
        named = ((name.partition(" on "), times) for name, times in self.transitions.items())
        return Tally(
            schedules=len(self.indexes),
            calls=self.calls,
            versions=self.versions,
            hits=self.hits,
            in_flight=self.in_flight,
            faults=Counter({Fault[name]: times for name, times in self.faults.items()}),
            errors=Counter(self.errors),
            transitions=Counter({(State[of], Event[on]): times for (of, _, on), times in named}),
            failpoints=Counter(self.failpoints),
        )


def line_of(seed: int, indexes: range, tally: Tally, seconds: float) -> Line:
    """Make the line for a chunk that is done."""
    transitions = {f"{state.name} on {event.name}": n for (state, event), n in tally.transitions.items()}
    return Line(
        tidegate.__version__,
        seed,
        indexes.start,
        indexes.stop,
        round(seconds, 3),
        tally.calls,
        tally.versions,
        tally.hits,
        tally.in_flight,
        {fault.name: times for fault, times in tally.faults.items()},
        dict(tally.errors),
        transitions,
        dict(tally.failpoints),
    )


class Record:
    """A run's file. One process at a time writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists():
            with path.open("rb+") as file:  # a crash may have cut off the last line
                file.truncate(file.read().rfind(b"\n") + 1)

    def lines(self) -> Iterator[Line]:
        """Read the lines of chunks that are done. ValueError: a line is of another release, or damaged."""
        content = self.path.read_bytes() if self.path.exists() else b""
        for number, text in enumerate(content.splitlines(), 1):
            try:
                line = json_decoder(Line).decode(text)
            except msgspec.DecodeError as error:
                raise ValueError(f"{self.path}, line {number}: {error}; give another file") from error
            if line.release != tidegate.__version__:
                what = f"it is of release {line.release}, this is {tidegate.__version__}"
                raise ValueError(f"{self.path}, line {number}: {what}; give another file")
            yield line

    def add(self, line: Line) -> None:
        """Append a line. Durable on return."""
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def left(indexes: range, done: list[range], chunk: int) -> list[range]:
    """List the schedules that are not done, in order, in chunks of at most ``chunk``."""
    chunks, at = [], indexes.start
    for of_line in sorted(done, key=lambda each: each.start):
        if of_line.stop <= at or of_line.start >= indexes.stop:
            continue
        chunks += cut(range(at, of_line.start), chunk)
        at = of_line.stop
    return [*chunks, *cut(range(at, indexes.stop), chunk)]


def cut(indexes: range, chunk: int) -> list[range]:
    """Cut the schedules into chunks of at most ``chunk``."""
    return [indexes[at : at + chunk] for at in range(0, len(indexes), chunk)]
