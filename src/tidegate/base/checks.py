"""A finding about what the promises rest on: a line of ``tidegate doctor``, and what a driver refuses."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Outcome: TypeAlias = Literal["pass", "warn", "fail"]

ONLY_REDIS = "wait_replicas and wait_aof are for a store on Redis: leave them out"


class Check(NamedTuple):
    """What was looked at, how it is (and, when it is not right, what to do), and the promise at stake.

    A driver does not open on a log or a store with a ``fail``, unless ``allow_unsafe`` and it
    ``may_be_allowed``. ``at`` is the full name of what was looked at, where there are several.
    """

    check: str
    outcome: Outcome
    found: str
    promise: str
    at: str = ""
    may_be_allowed: bool = True
