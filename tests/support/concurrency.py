"""Acting in the middle of what a test runs: at a named place, beside it on another thread, within a time."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tidegate.base import failpoints

WAIT_S = 90.0


class Once:
    """Does something at the nth call, once; ``done`` tells whether it did."""

    def __init__(self, action: Callable[[], object], nth: int = 1) -> None:
        self._action, self._left = action, nth
        self.done = False

    def __call__(self, *_: object) -> None:
        self._left -= 1
        if self._left == 0:
            self.done = True
            self._action()


class Failpoints:
    """``at(name, action, nth)``: act at the nth hit of a failpoint of this process."""

    def __init__(self) -> None:
        self._actions: dict[str, Once] = {}
        self.hits: Counter[str] = Counter()

    def hit(self, name: str) -> None:
        self.hits[name] += 1
        if name in self._actions:
            self._actions[name]()

    def at(self, name: str, action: Callable[[], object], nth: int = 1) -> Once:
        assert name in failpoints.NAMES
        self._actions[name] = Once(action, nth)
        return self._actions[name]


class Meanwhile:
    """Work on other threads, each waited for with a deadline; its errors are the test's."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(8)
        self._futures: list[Future[Any]] = []

    def start(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future = self._pool.submit(work, *arguments)
        self._futures.append(future)
        return future

    def finish(self) -> None:
        try:
            for future in self._futures:
                future.result(WAIT_S)
        finally:
            self._futures.clear()
            self._pool.shutdown(wait=False, cancel_futures=True)


@pytest.fixture
def failing_at(monkeypatch: pytest.MonkeyPatch) -> Failpoints:
    here = Failpoints()
    monkeypatch.setattr(failpoints, "hit", here.hit)
    return here


@pytest.fixture
def meanwhile() -> Iterator[Meanwhile]:
    working = Meanwhile()
    yield working
    working.finish()


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """The block ends in time. It cannot be torn out of a hang: pytest's own time-out does that."""
    start = time.monotonic()
    yield
    took = time.monotonic() - start
    assert took < seconds, f"took {took:.1f} s"
