"""Dialogues with servers, each written once, for threads and for an event loop.

A dialogue is a generator: it yields a request, is sent the reply, or the error in its place, and returns
its result. So what is asked, in which order, and what a reply means is the same code for both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")
Errors = tuple[type[Exception], ...]


def run(
    steps: Generator[Request, Any, Result], ask: Callable[[Request], Any], answers: Errors = ()
) -> Result:
    """Run a dialogue; ``answers`` are the errors of ``ask`` that count as replies, others pass through."""
    reply: Any = None
    while True:
        try:
            request = steps.send(reply)
        except StopIteration as end:
            result: Result = end.value
            return result
        try:
            reply = ask(request)
        except answers as error:
            reply = error


async def run_async(
    steps: Generator[Request, Any, Result], ask: Callable[[Request], Awaitable[Any]], answers: Errors = ()
) -> Result:
    """Do ``run`` on an event loop."""
    reply: Any = None
    while True:
        try:
            request = steps.send(reply)
        except StopIteration as end:
            result: Result = end.value
            return result
        try:
            reply = await ask(request)
        except answers as error:
            reply = error
