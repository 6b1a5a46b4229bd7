"""When to spill or load, and which units, after FLIP-50: large and cold out, hot and small in. Pure.

Three signals start a move: the share of the memory budget in use, the share of the container's
memory, and the wait for memory. Between the thresholds nothing moves, and a load ends below the
start of a spill, so that neither causes the other.

The weight of a unit is the weighted average of its size and its request rate, both per key group
and normalised by the largest among the candidates. A spill takes the heaviest when large and cold
ones weigh most; a load takes the heaviest when hot and small ones do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from tidegate.options.state_spill import StateSpill

Reason: TypeAlias = Literal["", "budget", "container", "wait", "room"]
"""The signal that started a spill; ``room``: there is room, which starts a load."""


class ContainerMemory(NamedTuple):
    """Memory of a container that only a spill or an end of a process frees, and its limit, in bytes."""

    used: int
    limit: int


class Sample(NamedTuple):
    """One measurement of the signals."""

    memory_bytes: int
    """The memory tier's bytes, of all processes of the host."""
    budget_bytes: int
    container: ContainerMemory | None = None
    """None: the container has no limit, or there is none."""
    wait_share: float = 0.0


class Advice(NamedTuple):
    """The bytes to move; at most one of the two is not 0."""

    spill_bytes: int = 0
    load_bytes: int = 0
    reason: Reason = ""


def advise(sample: Sample, bands: StateSpill) -> Advice:
    """Return how much of the memory tier to spill, by the signal that asks for most, or how much to load."""
    used, budget = sample.memory_bytes, sample.budget_bytes
    spills: dict[Reason, float] = {}
    rooms = [bands.load_to * budget - used if used < bands.load_below * budget else 0]
    if used > bands.spill_above * budget:
        spills["budget"] = used - bands.spill_to * budget
    if sample.container is not None:
        taken, limit = sample.container
        if taken > bands.container_spill_above * limit:
            spills["container"] = taken - bands.container_spill_to * limit
        below = taken < bands.container_load_below * limit
        rooms.append(bands.container_load_to * limit - taken if below else 0)
    if sample.wait_share > bands.wait_spill_above:
        spills["wait"] = min(used - bands.wait_spill_to * budget, bands.wait_spill_share * budget)
    if sample.wait_share and sample.wait_share >= bands.wait_load_below:
        rooms.append(0)
    for reason in sorted(spills, key=lambda each: -spills[each])[:1]:
        if (spill := min(used, math.ceil(spills[reason]))) > 0:
            return Advice(spill_bytes=spill, reason=reason)
    load = 0 if spills else int(min(rooms))
    return Advice(load_bytes=load, reason="room") if load > 0 else Advice()


# -- which units ----------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """A unit that may move: its bytes in its tier, its key groups, and the mean request rate of these."""

    bytes: int
    groups: int = 1
    rate: float = 0.0


Candidates: TypeAlias = Mapping[str, Candidate]


def to_spill(units: Candidates, target: int, bands: StateSpill) -> list[str]:
    """Return units in memory that make up ``target``, the first to spill in front.

    No more than needed: without any one of them the rest falls short. If all units do not suffice,
    it returns all.
    """
    size = bands.size_share
    return _just_enough(
        _ordered(units, lambda large, hot: size * large + (1 - size) * (1 - hot)), units, target
    )


def to_load(units: Candidates, room: int, bands: StateSpill) -> list[str]:
    """Return units on disk that fit into ``room`` together, the first to load in front."""
    size, chosen = bands.size_share, []
    hot_units = {name: unit for name, unit in units.items() if unit.rate >= bands.rate_min}
    for name in _ordered(hot_units, lambda large, hot: size * (1 - large) + (1 - size) * hot):
        if units[name].bytes <= room:
            chosen.append(name)
            room -= units[name].bytes
    return chosen


def to_drop(units: Candidates, target: int) -> list[str]:
    """Return units on disk to drop for ``target`` bytes there: the coldest, no more than needed."""
    return _just_enough(sorted(units, key=lambda name: (units[name].rate, name)), units, target)


def _ordered(units: Candidates, weight: Callable[[float, float], float]) -> list[str]:
    """Sort the units by descending weight of (normalised size, normalised rate), per key group."""
    sizes = {name: unit.bytes / max(1, unit.groups) for name, unit in units.items()}
    size_max = max(sizes.values(), default=0) or 1
    rate_max = max((unit.rate for unit in units.values()), default=0.0) or 1.0
    weights = {name: weight(sizes[name] / size_max, unit.rate / rate_max) for name, unit in units.items()}
    return sorted(units, key=lambda name: (-weights[name], name))


def _just_enough(order: list[str], units: Candidates, target: int) -> list[str]:
    """Return the first units that make up the target, without dispensable ones."""
    chosen: list[str] = []
    total = 0
    for name in order:
        if total >= target:
            break
        chosen.append(name)
        total += units[name].bytes
    for name in reversed(chosen.copy()):
        if total - units[name].bytes >= target:
            chosen.remove(name)
            total -= units[name].bytes
    return chosen
