"""Time and identity, passed in so that a simulation can control them."""

from __future__ import annotations

import secrets
import time


class Clock:
    """Wall clock, monotonic clock, sleep and fresh ids of one process.

    ``now_us`` is microseconds since the epoch (UTC); ``monotonic`` is seconds and only good for
    differences; ``new_id`` is 16 hex digits, fresh and random per call.
    """

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def new_id(self) -> str:
        return secrets.token_hex(8)
