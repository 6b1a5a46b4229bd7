"""A check of something that the guarantees rest on: a line of ``tidegate doctor``, and a driver's
preflight.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Outcome: TypeAlias = Literal["pass", "warn", "fail"]

ONLY_REDIS = "wait_replicas and wait_aof are for a store on Redis: leave them out"


class Check(NamedTuple):
    """The subject of a check, its state (with a remedy, when it is wrong), and the guarantee at stake.

    A driver does not open a log or a store with a ``fail``, unless ``allow_unsafe`` is set and the
    check ``may_be_allowed``. ``at`` is the subject's full name, where there are several.
    """

    check: str
    outcome: Outcome
    found: str
    promise: str
    at: str = ""
    may_be_allowed: bool = True
