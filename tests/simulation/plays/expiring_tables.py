"""Tables whose rows expire, in some of a simulation's schedules: varying times to live, stepping clocks.

Rows must expire by the times of decisions alone. So a driver's clock sometimes jumps forward or back, by up
to a quarter of an hour: less than the time by which a decision may be ahead of another clock.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from simulation.plays.world import VirtualClock, World

TIMES_TO_LIVE_S = (None, 1.0, 2.0, 5.0, 30.0, 900.0)
STEPS_S = (-900.0, -30.0, -3.0, 3.0, 30.0, 900.0)
STEPS_MOST = 2
FIRST_S = 20.0
"""The usual time by which a schedule's batches are over, unless its servers are silent."""


class SteppingClock(VirtualClock):
    """A process's clock that is set forward or back at some moments; its monotonic clock continues."""

    def __init__(self, world: World, skew_us: int, steps: Sequence[tuple[float, float]]) -> None:
        super().__init__(world, skew_us)
        self._steps = steps

    def now_us(self) -> int:
        passed = self.monotonic()
        return super().now_us() + sum(int(by_s * 1e6) for at, by_s in self._steps if at <= passed)


class ExpiringTables:
    """Times to live, and the steps of clocks, in one schedule."""

    def __init__(self, chance: random.Random, tables: Sequence[str]) -> None:
        self._chance = chance
        self._tables = tables
        self._usual = self._times_to_live()

    def times_to_live(self) -> Mapping[str, float]:
        """Return the times to live that a driver is started with, in seconds; most drivers have the same."""
        return self._usual if self._chance.random() < 0.6 else self._times_to_live()

    def _times_to_live(self) -> dict[str, float]:
        drawn = {table: self._chance.choice(TIMES_TO_LIVE_S) for table in self._tables}
        return {table: seconds for table, seconds in drawn.items() if seconds is not None}

    def clock(self, world: World, skew_us: int) -> VirtualClock:
        """Return the clock of one driver's process."""
        chance = self._chance
        steps = [
            (world.now + chance.random() * FIRST_S, chance.choice(STEPS_S))
            for _ in range(chance.randint(0, STEPS_MOST))
        ]
        return SteppingClock(world, skew_us, steps)
