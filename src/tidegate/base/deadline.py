"""One deadline for all requests of a reader's call to its store (docs/decisions/0042).

A read may take several requests, each of which may be sent again, to another server, over another
connection. ``one_call`` marks the start of the user's call; every wait for a reply inside it counts
the store's ``timeout_s`` from there. Outside of it every request counts from its own start, as
writers and background work do.

The start is part of the context (``contextvars``): it is inherited by tasks that the call starts,
and by threads of ``asyncio.to_thread``. Work that outlives the call starts with ``fresh``. It is
never held over a ``yield`` to a consumer in another context: a generator's context is its consumer's.
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
    """A context whose requests share one deadline; a nested one shares the outer one's.

    ``fresh``: a deadline of its own even then.
    """

    __slots__ = ("_before", "_fresh")

    def __init__(self, *, fresh: bool = False) -> None:
        self._fresh = fresh
        self._before: float | None = None

    def __enter__(self) -> None:
        self._before = _began.get()
        if self._fresh or self._before is None:
            try:
                _began.set(monotonic())
            except BaseException:  # an interrupt: nothing would set it back
                _began.set(self._before)
                raise

    def __exit__(self, *_: object) -> None:
        _began.set(self._before)  # not by a token: a context collected unfinished ends in another one


def end_of(timeout_s: float) -> float:
    """Return the end of the current call, by ``time.monotonic``; outside of one, ``timeout_s`` from now."""
    began = _began.get()
    return (monotonic() if began is None else began) + timeout_s


def left_of(timeout_s: float) -> float:
    """Return the seconds left of the current call, perhaps none; infinity outside of one."""
    began = _began.get()
    return math.inf if began is None else began + timeout_s - monotonic()


def over_at(end: float) -> Callable[[Any], bool]:
    """Return a ``stop`` for tenacity: no attempt starts at ``end`` or later."""
    return lambda state: bool(monotonic() + state.upcoming_sleep >= end)


def outside() -> contextvars.Context:
    """Return the current context without its call: for work that also serves others."""
    context = contextvars.copy_context()
    context.run(_began.set, None)
    return context


def check_ends(name: str, seconds: object) -> None:
    """Raise ConfigError for a time after which no wait ends, such as None, NaN or an infinity."""
    if isinstance(seconds, bool) or not isinstance(seconds, Real) or not math.isfinite(seconds):
        raise ConfigError(f"{name} is {seconds!r}; it must be a number of seconds: every wait has an end")
