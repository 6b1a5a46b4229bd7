"""Exhaustive exploration of a small scope: breadth first, with the shortest path to a violation."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)
Step = tuple[str, S]


class Explored(NamedTuple):
    """The coverage of an exploration. ``complete``: nothing is left within the scope."""

    states: int
    transitions: int
    depth: int
    complete: bool
    seconds: float

    def __str__(self) -> str:
        how = "all" if self.complete else "cut short at"
        return (
            f"{how} {self.states:,} states, {self.transitions:,} transitions, depth {self.depth},"
            f" {self.seconds:.1f} s"
        )


class Counterexample(AssertionError):  # noqa: N818 - a finding, not a failure of the program
    """The broken invariant, and the shortest path to it."""

    def __init__(self, broken: str, steps: list[str], states: int) -> None:
        self.broken, self.steps, self.states = broken, steps, states
        way = "\n".join(f"  {number}. {step}" for number, step in enumerate(steps, 1))
        super().__init__(f"{broken}\nafter {len(steps)} steps ({states:,} states seen):\n{way}")


def explore(
    start: S, steps: Callable[[S], Iterable[Step[S]]], states_max: int = 5_000_000, deepest: int = 1_000
) -> Explored:
    """Visit every state once. ``steps`` raises AssertionError where an invariant breaks.

    States are distinguished by their 64-bit hashes. Counterexample: with the steps that lead there.
    """
    began, first = time.monotonic(), hash(start)

    def explored(*, complete: bool) -> Explored:
        return Explored(len(came), transitions, depth, complete, time.monotonic() - began)

    came: dict[int, tuple[int, str]] = {first: (0, "")}
    level, depth, transitions = deque([start]), 0, 0
    while level and depth < deepest:
        following: deque[S] = deque()
        for state in level:
            here = hash(state)
            try:
                for label, reached in steps(state):
                    transitions += 1
                    there = hash(reached)
                    if there not in came:
                        came[there] = (here, label)
                        following.append(reached)
            except AssertionError as broken:
                raise Counterexample(str(broken), _way(came, first, here), len(came)) from broken
            if len(came) > states_max:
                return Explored(
                    len(came), transitions, depth, complete=False, seconds=time.monotonic() - began
                )
        level, depth = following, depth + 1
    return explored(complete=not level)


def _way(came: dict[int, tuple[int, str]], first: int, state: int) -> list[str]:
    steps: list[str] = []
    while state != first:
        state, label = came[state]
        steps.append(label)
    return steps[::-1]
