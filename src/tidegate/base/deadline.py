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

import contextlib
import contextvars
import math
import threading
import weakref
from collections.abc import Callable
from numbers import Real
from time import monotonic
from typing import Any, NamedTuple

from tidegate.base.text import brief
from tidegate.errors import ConfigError


class _Call(NamedTuple):
    """A call: when it began, by ``time.monotonic``, the lock that it holds, and the call around it."""

    began: float
    held: weakref.ref[Any]
    outer: _Call | None


_call: contextvars.ContextVar[_Call | None] = contextvars.ContextVar("tidegate_call", default=None)


def one_call(*, fresh: bool = False) -> contextlib.AbstractContextManager[Any]:
    """Return a context whose requests share one deadline; a nested one shares the outer one's.

    ``fresh``: a deadline of its own even then. The context is a lock, and the call lasts while it is held: by
    the ``with`` statement alone, so also an exception at the statement's first or last line ends it.
    """
    lock, outer = threading.Lock(), _present()
    if fresh or outer is None:
        _call.set(_Call(monotonic(), weakref.ref(lock), outer))
    return lock


def _present() -> _Call | None:
    """Return the innermost call that has not ended."""
    call = _call.get()
    while call is not None:
        lock = call.held()
        if lock is not None and lock.locked():
            return call
        call = call.outer
    return None


def end_of(timeout_s: float) -> float:
    """Return the end of the current call, by ``time.monotonic``; outside of one, ``timeout_s`` from now."""
    call = _present()
    return (monotonic() if call is None else call.began) + timeout_s


def left_of(timeout_s: float) -> float:
    """Return the seconds left of the current call, perhaps none; infinity outside of one."""
    call = _present()
    return math.inf if call is None else call.began + timeout_s - monotonic()


def over_at(end: float) -> Callable[[Any], bool]:
    """Return a ``stop`` for tenacity: no attempt starts at ``end`` or later."""
    return lambda state: bool(monotonic() + state.upcoming_sleep >= end)


def outside() -> contextvars.Context:
    """Return the current context without its call: for work that also serves others."""
    context = contextvars.copy_context()
    context.run(_call.set, None)
    return context


def check_ends(name: str, seconds: object) -> None:
    """Raise ConfigError for a time after which no wait ends, such as None, NaN or an infinity."""
    try:
        ends = isinstance(seconds, Real) and math.isfinite(seconds) and not isinstance(seconds, bool)
    except OverflowError:  # a whole number that no float is
        ends = False
    if not ends:
        raise ConfigError(
            f"{name} is {brief(seconds)}; it must be a number of seconds: every wait has an end"
        )
