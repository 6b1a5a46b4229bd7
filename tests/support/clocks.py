"""Fake clocks of tests. The one for store suites ships: `tidegate.testing.store.harness.ManualClock`."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.base.clock import Clock


class HandClock(Clock):
    """A clock that moves only by ``sleep``, by ``advance``, and by setting ``seconds``.

    ``seconds`` count from the clock's start, as ``monotonic`` does. Each call of ``now_us`` moves both clocks
    by ``tick_us``. ``slept`` lists the sleeps, and ``on_sleep`` runs after each of them.
    """

    def __init__(self, start_us: int = 1_700_000_000_000_000, *, tick_us: int = 0) -> None:
        self.seconds = 0.0
        self.slept: list[float] = []
        self.on_sleep: Callable[[], object] = lambda: None
        self._start_us, self._tick_us, self._ticked_us = start_us, tick_us, 0

    def now_us(self) -> int:
        self._ticked_us += self._tick_us
        return self._start_us + self._ticked_us + round(self.seconds * 1e6)

    def monotonic(self) -> float:
        return self.seconds + self._ticked_us / 1e6

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)
        self.on_sleep()

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


class ClockAhead(Clock):
    """The machine's clock with a wall clock that is ``ahead_us`` ahead; its monotonic clock is right."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.ahead_us = int(seconds * 1e6)

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us
