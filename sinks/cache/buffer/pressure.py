"""Memory pressure of the buffer: how much to spill now, or how much may be loaded back.

Three signals: the share of the byte budget in use, the process's memory, and the wait of the last
batch. Each has a threshold to spill above and one to load below. Between them nothing moves, and a
load ends below the start of a spill, so that neither causes the other.
"""

from __future__ import annotations

import dataclasses
import resource
import sys
from pathlib import Path
from typing import NamedTuple

from tidegate.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """When to spill and when to load, as shares of a limit. Raises: ConfigError, they contradict
    each other.
    """

    spill_above: float = 0.9
    """Of the byte budget: above it, spill ..."""
    spill_to: float = 0.8
    """... down to this."""
    load_below: float = 0.6
    """Below it, load ..."""
    load_to: float = 0.7
    """... up to this."""
    process_bytes_max: int | None = None
    """The limit of this process's memory; None: not checked. The same shares apply."""
    pause_spill_s: float = 2.0
    """A batch that waited longer than this (garbage collection, page faults) spills ..."""
    pause_load_s: float = 0.5
    """... and only one that waited less than this loads."""
    pause_spill_share: float = 0.1
    """The amount that a pause spills at once, as a share of the byte budget ..."""
    pause_spill_to: float = 0.3
    """... and never below this: a batch may wait for reasons that spilling does not cure."""

    def __post_init__(self) -> None:
        shares = (0, self.load_below, self.load_to, self.spill_to, self.spill_above, 1)
        if list(shares) != sorted(shares) or self.load_to == self.spill_above:
            msg = (
                f"the buffer's thresholds are {shares[1:-1]} (load_below, load_to, spill_to, spill_above);"
                " they must rise, between 0 and 1"
            )
            raise ConfigError(msg)
        if not 0 <= self.pause_load_s <= self.pause_spill_s:
            msg = (
                f"pause_load_s is {self.pause_load_s}; it must be at most pause_spill_s, {self.pause_spill_s}"
            )
            raise ConfigError(msg)


class Sample(NamedTuple):
    """One measurement."""

    memory_bytes: int
    """The memory tier's bytes, of all processes of the host."""
    budget_bytes: int
    process_bytes: int
    """This process's resident memory."""
    pause_s: float


class Advice(NamedTuple):
    """The amounts to move; at most one of the two is not 0."""

    spill_bytes: int = 0
    load_bytes: int = 0
    why: str = ""


class PressureMonitor:
    """The thresholds, and their application to a sample."""

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def advise(self, sample: Sample) -> Advice:
        """Advise a spill by the strongest signal; without any, a load by the weakest."""
        spill = max(self._spills(sample), default=(0, ""))
        if spill[0] > 0:
            return Advice(spill_bytes=spill[0], why=spill[1])
        room = min(self._rooms(sample))
        return Advice(load_bytes=max(0, room))

    def _spills(self, sample: Sample) -> list[tuple[int, str]]:
        limits, found = self.thresholds, []
        used, budget = sample.memory_bytes, sample.budget_bytes
        if used > limits.spill_above * budget:
            found.append((_bytes(used - limits.spill_to * budget), "the byte budget is used up"))
        process_max = limits.process_bytes_max
        if process_max is not None and sample.process_bytes > limits.spill_above * process_max:
            over = _bytes(sample.process_bytes - limits.spill_to * process_max)
            found.append((min(over, used), "the process's memory is used up"))
        if sample.pause_s > limits.pause_spill_s:
            most = _bytes(used - limits.pause_spill_to * budget)
            found.append(
                (min(most, _bytes(limits.pause_spill_share * budget)), "the batch waited for memory")
            )
        return found

    def _rooms(self, sample: Sample) -> list[int]:
        """Return the room that each signal leaves; 0 where it admits nothing."""
        limits = self.thresholds
        pairs = [(sample.memory_bytes, sample.budget_bytes)]
        if limits.process_bytes_max is not None:
            pairs.append((sample.process_bytes, limits.process_bytes_max))
        rooms = [
            int(limits.load_to * limit - used) if used < limits.load_below * limit else 0
            for used, limit in pairs
        ]
        if sample.pause_s > 0 and sample.pause_s >= limits.pause_load_s:
            rooms.append(0)
        return rooms


def _bytes(amount: float) -> int:
    """Round up, so that moving that amount reaches the target."""
    return max(0, -int(-amount // 1))


def resident_bytes() -> int:
    """Return this process's resident memory; without /proc, its maximum so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
