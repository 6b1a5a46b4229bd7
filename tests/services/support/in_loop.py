"""``tidegate.aio`` for a test that has no event loop: its calls run in one, in a thread of its own.

With it one test is of both readers:

    @BOTH
    def test_it(connect, writer):
        with connect(url, namespace) as gate:
            assert gate.table("aircraft").get("N1") == row
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidegate
import tidegate.aio

WAIT_S = 60.0


class Plain:
    """An object of ``tidegate.aio`` without ``await``, and so is all that its calls return."""

    def __init__(self, loop: asyncio.AbstractEventLoop, of: Any) -> None:
        self._loop, self._of = loop, of

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        return (lambda *args, **named: self._called(found, *args, **named)) if callable(found) else found

    def __enter__(self) -> Any:
        return self._called(self._of.__aenter__)

    def __exit__(self, *error: object) -> None:
        self._called(self._of.__aexit__, *error)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._called(self._of.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def _called(self, fn: Callable[..., Any], *args: Any, **named: Any) -> Any:
        async def call() -> Any:
            result = fn(*args, **named)
            return await result if inspect.iscoroutine(result) else result

        result = asyncio.run_coroutine_threadsafe(call(), self._loop).result(WAIT_S)
        return Plain(self._loop, result) if type(result).__module__.startswith("tidegate.aio.") else result


class InLoop(Plain):
    """What ``tidegate.connect`` returns, by the asyncio reader."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(asyncio.new_event_loop(), tidegate.aio)
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        try:
            self._of = self._called(tidegate.aio.connect, *args, **named)._of
        except BaseException:
            self._end()
            raise

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        try:
            self._called(self._of.close)
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


BOTH = pytest.mark.parametrize("connect", [tidegate.connect, InLoop], ids=["InThread", "InLoop"])
