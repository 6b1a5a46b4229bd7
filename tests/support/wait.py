"""Waiting for a state: looked at again and again, up to a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

DEADLINE_S = 100.0
EVERY_S = 0.005

Found = TypeVar("Found")


def wait_until(found: Callable[[], Found], what: str = "it", deadline_s: float = DEADLINE_S) -> Found:
    """What ``found`` returns once it is true. TimeoutError: it was not in time."""
    end = time.monotonic() + deadline_s
    while not (result := found()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {deadline_s:g} s")
        time.sleep(EVERY_S)
    return result
