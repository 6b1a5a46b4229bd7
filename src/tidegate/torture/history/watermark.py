"""A watermark: a number that only grows, by time. It bounds what was surely visible when a reader began."""

from __future__ import annotations

import bisect


class Watermark:
    """Lower bounds by time, added in the order of time."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._values: list[int] = []
        self._lines: list[str] = []
        self._forgotten = -1

    def add(self, at: int, value: int, line: str) -> None:
        """Add a bound: from ``at`` on the number is at least ``value``, as ``line`` shows."""
        if at > self._forgotten and value > (self._values[-1] if self._values else 0):
            self._times.append(at)
            self._values.append(value)
            self._lines.append(line)

    def forget(self, at: int) -> None:
        """Drop the bounds so far, and take none until ``at``, which may be later: none of them holds then."""
        self._times, self._values, self._lines = [], [], []
        self._forgotten = at

    def before(self, began: int) -> tuple[int, str]:
        """Return the bound known before ``began``, and the line that shows it; 0 when there is none."""
        index = bisect.bisect_left(self._times, began) - 1
        if index < 0 or began <= self._forgotten:
            return 0, ""
        return self._values[index], self._lines[index]
