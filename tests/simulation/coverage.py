"""Coverage of a run of the simulation: counts of its events, and the places of the protocol it reached."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator

from simulation.plays.world import Fault
from tidegate.base import failpoints
from tidegate.committers.states import TABLE, Event, Machine, State

Transition = tuple[State, Event]

NOT_REACHED = {
    "READING_BACK on FOREIGN_DIGEST": "another history under the same version: damage, which is refused",
    "READING_BACK on GONE_BACK": "a store that lost what was published: the simulated one loses nothing",
    "repair.after_version": "a store's server lost versions: the simulated one loses nothing",
    "repair.before_listing": "a store's server restarted or was promoted: the simulated one is neither",
}
"""Places that no schedule can reach, with the reason. Tests with real servers and damaged files do."""


@dataclasses.dataclass
class Tally:
    """The counts of many schedules."""

    schedules: int = 0
    calls: int = 0
    versions: int = 0
    hits: int = 0
    in_flight: int = 0
    """The versions in flight that reads of state had to look through."""
    faults: Counter[Fault] = dataclasses.field(default_factory=Counter)
    errors: Counter[str] = dataclasses.field(default_factory=Counter)
    transitions: Counter[Transition] = dataclasses.field(default_factory=Counter)
    failpoints: Counter[str] = dataclasses.field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.calls += other.calls
        self.versions += other.versions
        self.hits += other.hits
        self.in_flight += other.in_flight
        self.faults += other.faults
        self.errors += other.errors
        self.transitions += other.transitions
        self.failpoints += other.failpoints

    def uncovered(self) -> list[Transition]:
        """List the transitions of the state table that no schedule took."""
        listed = [(state, event) for state, events in TABLE.items() for event in events]
        return [transition for transition in listed if transition not in self.transitions]

    def report(self) -> str:
        """Format the summary, one line per kind of count."""
        faults = ", ".join(f"{fault.value} {self.faults[fault]:,}" for fault in Fault)
        errors = ", ".join(f"{name} {count:,}" for name, count in sorted(self.errors.items()))
        uncovered = ", ".join(f"{state.name} on {event.name}" for state, event in self.uncovered())
        covered = sum(len(events) for events in TABLE.values()) - len(self.uncovered())
        return "\n".join(
            [
                f"{self.schedules:,} schedules, {self.calls:,} calls, {self.versions:,} versions",
                f"faults: {faults}",
                f"errors that drivers met: {errors}",
                f"transitions covered: {covered}, not covered: {uncovered or 'none'}",
            ]
        )

    def reached(self) -> dict[str, int]:
        """Count the visits of each transition of the state table and each failpoint, with zeros."""
        listed = [(state, event) for state, events in TABLE.items() for event in events]
        transitions = {
            f"{state.name} on {event.name}": self.transitions[state, event] for state, event in listed
        }
        return transitions | {name: self.failpoints[name] for name in failpoints.NAMES}

    def missed(self) -> list[str]:
        """List the reachable places that were not reached."""
        return [name for name, times in self.reached().items() if not times and name not in NOT_REACHED]

    def coverage(self) -> str:
        """Format a line for each transition and failpoint: its count, or why it has none."""
        reached = self.reached()
        lines = [
            f"{times or '-':>9}  {name:<34} {'' if times else NOT_REACHED.get(name, 'NOT REACHED')}".rstrip()
            for name, times in reached.items()
        ]
        can_be = [name for name in reached if name not in NOT_REACHED]
        there = len(can_be) - len(self.missed())
        of = f"{len(reached) - len(can_be)} more are out of a simulation's reach"
        return "\n".join([*lines, f"reached: {there} of {len(can_be)}; {of}"])


@contextlib.contextmanager
def counted(tally: Tally) -> Iterator[None]:
    """Count the transitions of every Machine of this process, and the failpoints that it reaches."""
    plain_on, plain_hit = Machine.on, failpoints.hit

    def on(machine: Machine, event: Event) -> State:
        tally.transitions[machine.state, event] += 1
        return plain_on(machine, event)

    def hit(name: str) -> None:
        tally.failpoints[name] += 1
        plain_hit(name)

    setattr(Machine, "on", on)  # noqa: B010 - a type checker takes it for a bound method
    setattr(failpoints, "hit", hit)  # noqa: B010
    try:
        yield
    finally:
        setattr(Machine, "on", plain_on)  # noqa: B010
        setattr(failpoints, "hit", plain_hit)  # noqa: B010
