"""The choice of units to spill, load or drop, after FLIP-50: large and cold out, hot and small in. Pure.

The share of the memory budget in use starts a move. Between the thresholds nothing moves, and a load
ends below the start of a spill, so that neither causes the other.

The weight of a unit is the weighted average of its size and its request rate, each normalised by
the largest among the candidates. A spill takes the heaviest when large and cold ones weigh most; a
load takes the heaviest when hot and small ones do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from tidegate.sinks.cache.buffer.note import Segment, UnitStats

SPILL_ABOVE, SPILL_TO = 0.9, 0.8
"""Shares of the memory budget: above the first, spill down to the second."""
LOAD_BELOW, LOAD_TO = 0.6, 0.7
"""Shares of the memory budget: below the first, load up to the second."""

NEW_SHARE = 0.3
"""The share of the newest batch in a request rate; the one before it has 0.7 of that, and so on."""
SIZE_SHARE = 0.5
"""The share of the size in a weight; the request rate has the rest."""
RATE_MIN = 1e-3
"""A unit with a lower rate is not loaded: it would only be spilled again."""


class Advice(NamedTuple):
    """The bytes to move; at most one of the two is not 0."""

    spill_bytes: int = 0
    load_bytes: int = 0


def advise(used_bytes: int, budget_bytes: int) -> Advice:
    """Return how much of the memory tier to spill, or how much to load into it."""
    if used_bytes > SPILL_ABOVE * budget_bytes:
        return Advice(spill_bytes=math.ceil(used_bytes - SPILL_TO * budget_bytes))
    if used_bytes < LOAD_BELOW * budget_bytes:
        return Advice(load_bytes=int(LOAD_TO * budget_bytes - used_bytes))
    return Advice()


def rate_at(account: UnitStats, batch: int) -> float:
    """Return the request rate as of a batch: it decays without requests."""
    rate: float = account.rate * (1 - NEW_SHARE) ** max(0, batch - account.batch)
    return rate


def after_batch(account: UnitStats, batch: int, requests: int) -> UnitStats:
    """Return the statistics after ``requests`` more requests in a batch."""
    rate = rate_at(account, batch) + NEW_SHARE * requests
    return msgspec.structs.replace(account, rate=rate, batch=max(batch, account.batch))


def with_sizes(account: UnitStats, segments: tuple[Segment, ...]) -> UnitStats:
    memory = sum(segment.bytes for segment in segments if segment.tier == "memory")
    disk = sum(segment.bytes for segment in segments if segment.tier == "disk")
    return msgspec.structs.replace(account, memory_bytes=memory, disk_bytes=disk)


def to_spill(accounts: Mapping[str, UnitStats], target: int, batch: int) -> list[str]:
    """Return units whose bytes in memory make up ``target``, the first to spill in front.

    No more than needed: without any one of them the rest falls short. If all units with bytes in
    memory do not suffice, it returns all.
    """
    sizes = {unit: account.memory_bytes for unit, account in accounts.items() if account.memory_bytes > 0}
    rates = _cooled(accounts, batch)
    order = _ordered(sizes, lambda size, rate: SIZE_SHARE * size + (1 - SIZE_SHARE) * (1 - rate), rates)
    return _just_enough(order, sizes, target)


def to_load(accounts: Mapping[str, UnitStats], room: int, batch: int) -> list[str]:
    """Return units whose bytes on disk fit into ``room`` together, the first to load in front."""
    rates = _cooled(accounts, batch)
    sizes = {
        unit: account.disk_bytes
        for unit, account in accounts.items()
        if account.disk_bytes > 0 and rates[unit] >= RATE_MIN
    }
    chosen = []
    for unit in _ordered(sizes, lambda size, rate: SIZE_SHARE * (1 - size) + (1 - SIZE_SHARE) * rate, rates):
        if sizes[unit] <= room:
            chosen.append(unit)
            room -= sizes[unit]
    return chosen


def to_drop(accounts: Mapping[str, UnitStats], target: int, batch: int) -> list[str]:
    """Return units on disk to drop for ``target`` bytes there: the coldest, no more than needed."""
    sizes = {unit: account.disk_bytes for unit, account in accounts.items() if account.disk_bytes > 0}
    rates = _cooled(accounts, batch)
    return _just_enough(sorted(sizes, key=lambda unit: (rates[unit], unit)), sizes, target)


def _cooled(accounts: Mapping[str, UnitStats], batch: int) -> dict[str, float]:
    return {unit: rate_at(account, batch) for unit, account in accounts.items()}


def _ordered(
    sizes: Mapping[str, int], weight: Callable[[float, float], float], rates: Mapping[str, float]
) -> list[str]:
    """Sort the units by descending weight of (normalised size, normalised rate)."""
    size_max = max(sizes.values(), default=0) or 1
    rate_max = max((rates[unit] for unit in sizes), default=0.0) or 1.0
    weights = {unit: weight(size / size_max, rates[unit] / rate_max) for unit, size in sizes.items()}
    return sorted(sizes, key=lambda unit: (-weights[unit], unit))


def _just_enough(order: list[str], sizes: Mapping[str, int], target: int) -> list[str]:
    """Return the first units that make up the target, without dispensable ones."""
    chosen: list[str] = []
    total = 0
    for unit in order:
        if total >= target:
            break
        chosen.append(unit)
        total += sizes[unit]
    for unit in reversed(chosen.copy()):
        if total - sizes[unit] >= target:
            chosen.remove(unit)
            total -= sizes[unit]
    return chosen
