"""Tables whose rows expire, in some of a simulation's schedules: times to live that change, clocks that step.

Rows must expire by the times of decisions alone. So a driver's clock jumps now and then, forth and
back, by up to a quarter of an hour: less than what a decision may be ahead of another clock.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from simulation.plays.world import VirtualClock, World

TIMES_TO_LIVE_S = (None, 1.0, 2.0, 5.0, 30.0, 900.0)
STEPS_S = (-900.0, -30.0, -3.0, 3.0, 30.0, 900.0)
STEPS_MOST = 2
FIRST_S = 20.0
"""A schedule's batches are over after about so long, unless its servers are silent."""


class SteppingClock(VirtualClock):
    """A process's clock that is set forth or back at some moments; what is monotonic goes on."""

    def __init__(self, world: World, skew_us: int, steps: Sequence[tuple[float, float]]) -> None:
        super().__init__(world, skew_us)
        self._steps = steps

    def now_us(self) -> int:
        passed = self.monotonic()
        return super().now_us() + sum(int(by_s * 1e6) for at, by_s in self._steps if at <= passed)


class ExpiringTables:
    """Times to live, and when clocks step, in one schedule."""

    def __init__(self, chance: random.Random, tables: Sequence[str]) -> None:
        self._chance = chance
        self._tables = tables
        self._usual = self._times_to_live()

    def times_to_live(self) -> Mapping[str, float]:
        """What a driver is started with, in seconds; most have the same."""
        return self._usual if self._chance.random() < 0.6 else self._times_to_live()

    def _times_to_live(self) -> dict[str, float]:
        drawn = {table: self._chance.choice(TIMES_TO_LIVE_S) for table in self._tables}
        return {table: seconds for table, seconds in drawn.items() if seconds is not None}

    def clock(self, world: World, skew_us: int) -> VirtualClock:
        """The clock of one driver's process."""
        chance = self._chance
        steps = [
            (world.now + chance.random() * FIRST_S, chance.choice(STEPS_S))
            for _ in range(chance.randint(0, STEPS_MOST))
        ]
        return SteppingClock(world, skew_us, steps)
