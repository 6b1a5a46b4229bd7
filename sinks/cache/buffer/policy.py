"""The choice of units to spill, load or drop, after FLIP-50: large and cold out, hot and small in. Pure.

The weight of a unit is the weighted average of its size and its request rate, each normalised by
the largest among the candidates. A spill takes the heaviest when large and cold ones weigh most; a
load takes the heaviest when hot and small ones do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from tidegate.sinks.cache.buffer.note import Segment, UnitManifest, UnitStats

NEW_SHARE = 0.3
"""The share of the newest batch in a request rate; the one before it has 0.7 of that, and so on."""
SIZE_SHARE = 0.5
"""The share of the size in a weight; the request rate has the rest."""
RATE_MIN = 1e-3
"""A unit with a lower rate is not loaded: it would only be spilled again."""


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


def per_key_group(notes: Iterable[UnitManifest]) -> dict[int, UnitStats]:
    """Return the statistics of each key group; a unit of several is spread evenly."""
    found: dict[int, UnitStats] = {}
    for note in notes:
        first, end = note.groups
        for at, group in enumerate(range(first, end)):
            before, whole, count = found.get(group, UnitStats()), note.account, end - first
            found[group] = UnitStats(
                before.memory_bytes + _share(whole.memory_bytes, at, count),
                before.disk_bytes + _share(whole.disk_bytes, at, count),
                before.rate + whole.rate / count,
                max(before.batch, whole.batch),
            )
    return found


def _share(amount: int, at: int, count: int) -> int:
    """Return the at-th of ``count`` parts that add up to the amount and differ by at most one."""
    return amount * (at + 1) // count - amount * at // count


def to_spill(
    accounts: Mapping[str, UnitStats], target: int, batch: int, size_share: float = SIZE_SHARE
) -> list[str]:
    """Return units whose bytes in memory make up ``target``, the first to spill in front.

    No more than needed: without any one of them the rest falls short. If all units with bytes in
    memory do not suffice, it returns all.
    """
    sizes = {unit: account.memory_bytes for unit, account in accounts.items() if account.memory_bytes > 0}
    rates = _cooled(accounts, batch)
    order = _ordered(sizes, lambda size, rate: size_share * size + (1 - size_share) * (1 - rate), rates)
    return _just_enough(order, sizes, target)


def to_load(
    accounts: Mapping[str, UnitStats], room: int, batch: int, size_share: float = SIZE_SHARE
) -> list[str]:
    """Return units whose bytes on disk fit into ``room`` together, the first to load in front."""
    rates = _cooled(accounts, batch)
    sizes = {
        unit: account.disk_bytes
        for unit, account in accounts.items()
        if account.disk_bytes > 0 and rates[unit] >= RATE_MIN
    }
    chosen = []
    for unit in _ordered(sizes, lambda size, rate: size_share * (1 - size) + (1 - size_share) * rate, rates):
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
