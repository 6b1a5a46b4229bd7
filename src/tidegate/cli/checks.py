"""One line of ``tidegate doctor``."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Outcome: TypeAlias = Literal["pass", "warn", "fail"]


class Check(NamedTuple):
    """What was looked at, how it is, and the promise that rests on it."""

    check: str
    outcome: Outcome
    found: str
    promise: str
