"""Shrinking of a failing schedule: the search for few of its deeds that still break the same invariant.

Delta debugging: of the processes, the faults, the moves, larger pieces are left out, then smaller ones,
repeatedly while it helps. The result is minimal in that no single deed can be left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from simulation.coverage import Tally
from simulation.invariants import Violation
from simulation.replay import Deeds, Drawn, RecordingWorld, ReplayedWorld, joined
from simulation.schedule import dice, parts_of, play
from simulation.trace import in_words

T = TypeVar("T")
REPLAYS_MAX = 4_000
"""The number of tries, some 15 ms each; the shortest schedule found by then is reported."""


@dataclasses.dataclass
class Shrunk:
    """A schedule as it failed, and the part of it that is left."""

    seed: int
    index: int
    violation: str
    deeds: Deeds
    drawn: Drawn
    replays: int = 0

    def fails(self, deeds: Deeds) -> bool:
        """Return whether these deeds break the same invariant; keep them if so."""
        if self.replays >= REPLAYS_MAX:
            return False
        self.replays += 1
        violation = played(self.seed, self.index, ReplayedWorld(self.drawn, deeds), deeds)
        if violation is None or invariant(violation) != invariant(self.violation):
            return False
        self.deeds, self.violation = deeds, violation
        return True


def shrunk(seed: int, index: int) -> str:
    """Describe the shrunk schedule in words. ValueError: it keeps every invariant."""
    found = recorded(seed, index)
    if not found.fails(found.deeds):
        return f"schedule {index} of seed {seed} keeps every invariant when played from its record"
    before = size(found.deeds)
    shrink(found)
    world = ReplayedWorld(found.drawn, found.deeds)
    played(seed, index, world, found.deeds)
    deeds = f"{before} deeds shrunk to {size(found.deeds)} in {found.replays} tries"
    return "\n".join(
        [f"seed {seed}, schedule {index}: {deeds}", *in_words(world.trace), f"-> {found.violation}"]
    )


def recorded(seed: int, index: int) -> Shrunk:
    """Record the schedule as it fails. ValueError: it does not."""
    world = RecordingWorld(dice(seed, index))
    parts = parts_of(seed, index)
    unlimited = Deeds(parts, 0, (), (), (), ())
    violation = played(seed, index, world, unlimited)
    if violation is None:
        msg = f"schedule {index} of seed {seed} keeps every invariant"
        raise ValueError(msg)
    return Shrunk(seed, index, violation, world.deeds(parts, 0), world.drawn)


def played(seed: int, index: int, world: RecordingWorld | ReplayedWorld, deeds: Deeds) -> str | None:
    """Play these deeds; return the violation, or None."""
    try:
        play(seed, index, Tally(), world, parts=deeds.parts, batches=deeds.batches or None)
    except Violation as violation:
        return str(violation).partition("\nrepeat: ")[0]
    return None


def invariant(violation: str) -> str:
    """Return the invariant that a violation names."""
    return violation.partition(":")[0]


def size(deeds: Deeds) -> int:
    """Count the deeds."""
    return len(deeds.processes) + len(deeds.faults) + len(deeds.moves) + len(deeds.settled)


def shrink(found: Shrunk) -> None:
    """Leave out deeds until none can be left out."""
    while True:
        before = size(found.deeds)
        _fewer_parts(found)
        for name in ("processes", "faults", "settled", "moves"):
            _fewer(found, name)
        if size(found.deeds) == before or found.replays >= REPLAYS_MAX:
            return


def _fewer_parts(found: Shrunk) -> None:
    for part in sorted(found.deeds.parts):
        found.fails(dataclasses.replace(found.deeds, parts=found.deeds.parts - {part}))
    for batches in (1, 2):
        if found.fails(dataclasses.replace(found.deeds, batches=batches)):
            return


def _fewer(found: Shrunk, name: str) -> None:
    def fails(items: Sequence[Any]) -> bool:
        fewer: dict[str, Any] = {name: tuple(joined(list(items))) if name == "moves" else tuple(items)}
        return found.fails(dataclasses.replace(found.deeds, **fewer))

    minimised(getattr(found.deeds, name), fails, lambda: getattr(found.deeds, name))


def minimised(
    items: Sequence[T], fails: Callable[[Sequence[T]], bool], kept: Callable[[], Sequence[T]]
) -> None:
    """Leave out halves, quarters, and so on, down to single items, while it still ``fails``.

    ``kept`` returns the items that are left, which may be fewer than those that were tried.
    """
    length = len(items)
    while length:
        at = 0
        while at < len(items):
            if fails([*items[:at], *items[at + length :]]):
                items = kept()
            else:
                at += length
        length = min(length // 2, len(items))
