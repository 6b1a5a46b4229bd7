"""One deadline for all that one call of a reader asks of its store (docs/decisions/0042).

A read may take several requests, each of which may be sent again, to another server, over another
connection. ``one_call`` says where the user's call began; whoever waits for an answer below it counts
the store's ``timeout_s`` from there. Outside of it every request counts from its own beginning, as
writers and background work do.

The beginning goes along with the context (``contextvars``): into tasks that the call starts, and into
threads by ``asyncio.to_thread``. Work that outlives the call begins ``anew``. Never held over a
``yield``: a generator's context is its consumer's.
"""

from __future__ import annotations

import contextvars
import math
from collections.abc import Callable
from numbers import Real
from time import monotonic
from typing import Any

from tidegate.errors import ConfigError

_began: contextvars.ContextVar[float | None] = contextvars.ContextVar("tidegate_call_began", default=None)


class one_call:  # noqa: N801 - it is used as a function
    """What is asked within it shares one deadline; within another one, that one's.

    ``anew``: a deadline of its own even then.
    """

    __slots__ = ("_anew", "_before")

    def __init__(self, *, anew: bool = False) -> None:
        self._anew = anew
        self._before: float | None = None

    def __enter__(self) -> None:
        self._before = _began.get()
        if self._anew or self._before is None:
            _began.set(monotonic())

    def __exit__(self, *_: object) -> None:
        _began.set(self._before)  # not by a token: what is collected unfinished ends in another context


def end_of(timeout_s: float) -> float:
    """When the call that is under way ends, by ``time.monotonic``; outside of one, so long from now."""
    began = _began.get()
    return (monotonic() if began is None else began) + timeout_s


def left_of(timeout_s: float) -> float:
    """Seconds left of the call that is under way, perhaps none; without end outside of one."""
    began = _began.get()
    return math.inf if began is None else began + timeout_s - monotonic()


def over_at(end: float) -> Callable[[Any], bool]:
    """For tenacity's ``stop``: no attempt begins at ``end`` or later."""
    return lambda state: bool(monotonic() + state.upcoming_sleep >= end)


def outside() -> contextvars.Context:
    """The context as it is here, but for the call: for work that serves others, too."""
    context = contextvars.copy_context()
    context.run(_began.set, None)
    return context


def check_ends(name: str, seconds: object) -> None:
    """ConfigError: this is no time after which a wait ends, such as None, NaN or an infinity."""
    if isinstance(seconds, bool) or not isinstance(seconds, Real) or not math.isfinite(seconds):
        raise ConfigError(f"{name} is {seconds!r}; it must be a number of seconds: every wait has an end")
