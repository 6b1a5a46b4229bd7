"""Control flow that is written once, as a generator, for threads and for event loops."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

from tidegate.base import forks

Result = TypeVar("Result")

Steps: TypeAlias = Generator[Any, Any, Result]
"""A control flow for threads and event loops: ``reply = yield store.pointer()`` is one call of the store.

In a thread the expression after ``yield`` is the reply already, and ``run`` sends it back. On an event loop
it is a coroutine, and ``run_async`` awaits it. An error of the call is raised at the ``yield`` in both.
"""


def run(steps: Steps[Result]) -> Result:
    """Run the steps in this thread, in a child without anything of its parent's."""
    forks.notice()
    reply = None
    try:
        while True:
            reply = steps.send(reply)
    except StopIteration as end:
        result: Result = end.value
        return result
    except BaseException:  # an interrupt between two steps: its traceback would keep what they hold
        _abandon(steps)
        raise


def _abandon(steps: Steps[Any]) -> None:
    with contextlib.suppress(RuntimeError):  # they take one more step, which nobody does
        steps.close()


async def run_async(steps: Steps[Result]) -> Result:
    """Run the steps in this task."""
    try:
        call = steps.send(None)
        while True:
            try:
                reply = await call
            except BaseException as error:  # noqa: BLE001 - the steps handle it, cancellation too
                call = steps.throw(error)
            else:
                call = steps.send(reply)
    except StopIteration as end:
        result: Result = end.value
        return result
    except BaseException:
        _abandon(steps)
        raise


def not_run(returned: object) -> str:
    """Return what a called function is if nothing in it has run yet, async or a generator; else ''."""
    if inspect.iscoroutine(returned):
        returned.close()  # else Python warns that nobody awaits it
    is_async = inspect.isawaitable(returned) or inspect.isasyncgen(returned)
    return "async" if is_async else "a generator" * inspect.isgenerator(returned)
