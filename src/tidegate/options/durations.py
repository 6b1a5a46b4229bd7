"""Durations as users write them: a timedelta, seconds, or words such as "7 days". Pure."""

from __future__ import annotations

import datetime
import re

from tidegate.base.text import brief
from tidegate.errors import ConfigError

US = 1_000_000
LEAST_S, MOST_S = 1, 36_525 * 86_400
UNITS = {"s": 1, "second": 1, "min": 60, "minute": 60, "h": 3_600, "hour": 3_600, "d": 86_400, "day": 86_400}
UNITS |= {"week": 604_800} | {f"{unit}s": seconds for unit, seconds in UNITS.items() if len(unit) > 1}
UNITS["weeks"] = UNITS["week"]
WORDS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")

Duration = datetime.timedelta | float | str
"""A time to live as the user gave it; a number is seconds."""


def duration_us(name: str, value: object) -> int:
    """Convert to microseconds.

    >>> duration_us("ttl", "7 days") == duration_us("ttl", 604800)
    True

    Raises: ConfigError that names ``what``, when it is no duration, or not of 1 second to 100
    years.
    """
    seconds: float | None = None
    if isinstance(value, datetime.timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    elif isinstance(value, str) and (words := WORDS.fullmatch(value)) and words[2] in UNITS:
        seconds = float(words[1]) * UNITS[words[2]]
    if seconds is None:
        raise ConfigError(
            f"{name} is {brief(value)}; it must be a duration: seconds, a timedelta, or a number"
            " and a unit, as in"
            " '7 days', '12 hours', '90 min', '30 s'"
        )
    if not LEAST_S <= seconds <= MOST_S:
        raise ConfigError(f"{name} is {brief(value)}; it must be 1 second to 36,525 days")
    return round(seconds * US)
