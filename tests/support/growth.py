"""What a process keeps: counts of objects by type, descriptors and threads, over windows of equal work.

The count of a leak of one object a window is larger after every window. A cache, or a pool of connections,
reaches its size in one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tidegate
import tidegate.aio
from support.wait import DEADLINE_S, EVERY_S, wait_until
from tidegate.committers.background.pipeline import PipelineThread
from tidegate.committers.background.worker import Background
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.steps import trim
from tidegate.options import PIPELINED, Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.sinks.sqlite.disk import idle
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal import fold
from tidegate.wal.open_log import open_log

WINDOWS = 4
KEY_GROUPS = 8
QUIET_S = 0.05
TRANSIENT = frozenset({"frame", "coroutine", "generator", "ReferenceType", "TimerHandle"})
"""Types whose number depends on the moment: an event loop has weak references to ended tasks."""


class Windows:
    """The counts of a process before and after windows of equal work."""

    def __init__(self) -> None:
        # All of them now: one that is made later counts as an object that was kept.
        self._counts = [Counter[str]() for _ in range(WINDOWS + 1)]
        self._next = 0

    def count(self) -> None:
        """Count objects by type, descriptors, and threads, those of clients included."""
        for _ in range(2):
            gc.collect()
        types = map(type, gc.get_objects())
        counts = self._counts[self._next]
        counts.update(
            f"{each.__module__}.{each.__qualname__}" for each in types if each.__name__ not in TRANSIENT
        )
        for folder in ("fd", "task"):
            counts[f"/proc/self/{folder}"] = len(list(Path("/proc/self", folder).iterdir()))
        self._next += 1

    def check(self) -> None:
        """Raise AssertionError: there is more of something after every window."""
        series = {name: [each[name] for each in self._counts] for name in self._counts[-1]}
        grown = {
            name: numbers
            for name, numbers in series.items()
            if all(before < after for before, after in pairwise(numbers))
        }
        assert not grown, f"more after each of {WINDOWS} windows: {grown}"


def windows_of(work: Callable[[int], object], size: int, warm_up: int | None = None) -> None:
    """Do the work in windows of this size after the warm-up; AssertionError: something grows in each."""
    windows = Windows()
    work(warm_up or size)
    windows.count()
    for _ in range(WINDOWS):
        work(size)
        windows.count()
    windows.check()


async def windows_of_tasks(work: Callable[[int], Awaitable[object]], size: int) -> None:
    """Do the same with tasks of an event loop, which has none more at the end."""
    windows = Windows()
    await work(size)
    tasks = len(asyncio.all_tasks())
    windows.count()
    for _ in range(WINDOWS):
        await work(size)
        windows.count()
    windows.check()
    deadline = time.monotonic() + DEADLINE_S
    while len(asyncio.all_tasks()) > tasks:  # the one that renews leases ends by itself
        assert time.monotonic() < deadline, asyncio.all_tasks()
        await asyncio.sleep(EVERY_S)


def wait_until_quiet(others: set[threading.Thread]) -> None:
    """Wait until all threads of tidegate but ``others``, which ran before, wait for work, twice in a row."""

    def are_waiting() -> bool:
        frames = sys._current_frames()
        started = [thread for thread in threading.enumerate() if thread not in others]
        ours = [thread.ident for thread in started if thread.name.startswith("tidegate")]
        return all(frames[ident].f_code.co_name == "wait" for ident in ours if ident in frames)

    def are_quiet() -> bool:
        first = are_waiting()
        time.sleep(QUIET_S)
        return first and are_waiting()

    wait_until(are_quiet, "threads without work")


# -- versions -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def versions_in(wal: str, store: str, **options: Any) -> Iterator[Callable[[int], None]]:
    """Yield a function that makes this number of versions, with the background work of a driver."""
    others = set(threading.enumerate())
    where = Endpoints(f"growth-{uuid.uuid4().hex[:8]}", wal, store)
    how = Options(allow_unsafe=True, key_groups=KEY_GROUPS, keep_versions=2, **options)
    with contextlib.ExitStack() as opened:
        log = opened.enter_context(contextlib.closing(open_log(wal, where.namespace)))
        versioned = opened.enter_context(contextlib.closing(open_store(store, where.namespace)))
        opened.callback(versioned.drop)
        driver = Coordinator(where, log, versioned, how)
        open_namespace(driver, "q")
        background = Background(log, versioned, how, lambda: driver.epoch, folded=lambda: driver.folded)
        opened.callback(background.stop)
        pipeline = PipelineThread(driver, lambda _: background.published())
        opened.callback(pipeline.close)

        def make(count: int) -> None:
            first = driver.last_decided
            for number in range(first, first + count):
                rows = {"t": {b"%d" % key: b"%d" % number for key in range(10)}}
                barrier = ArrowBarrier(log, rows, batch("q", number), KEY_GROUPS)
                if how.commit == PIPELINED:
                    pipeline.commit(barrier)
                else:
                    commit(driver, barrier)
                    background.published()
            pipeline.drain(how.apply_deadline_s)
            wait_until_quiet(others)

        yield make


def check_versions(wal: str, store: str, how: str, monkeypatch: pytest.MonkeyPatch, *, many: bool) -> None:
    """Make versions, 2,000 if ``many``, after as many as the fold keeps.

    The fold keeps 1,000 versions and 1,000 places of Summaries. These tests keep two places, and a test of
    few versions keeps 10. How many threads use a SQLite file at one time is chance, and so is the number of
    idle connections, up to ``IDLE_MAX`` a file: in short windows none is kept.
    """
    monkeypatch.setattr(fold, "SUMMARIES_MAX", 2)
    if not many:
        monkeypatch.setattr(fold, "RECENT_MAX", 10)
        monkeypatch.setattr(trim, "RECENT_MAX", 10)
        monkeypatch.setattr(idle, "IDLE_MAX", 0)
    every = {} if many else {"summary_every": 10}
    with versions_in(wal, store, commit=how, **every) as make:
        size = 500 if many else 10
        windows_of(make, size, warm_up=fold.RECENT_MAX + size)


# -- gates and snapshots --------------------------------------------------------------------------------


def check_gates(url: str, size: int) -> None:
    """Open, read and close gates of threads."""

    def open_and_close(count: int) -> None:
        for _ in range(count):
            with tidegate.connect(url, "flights") as gate, gate.snapshot() as snapshot:
                assert snapshot.table("aircraft").get("N14228")

    windows_of(open_and_close, size)


def check_snapshots(url: str, size: int) -> None:
    """Take snapshots of a gate of threads, all of them open at one time, and read from every second one."""
    others = set(threading.enumerate())
    with tidegate.connect(url, "flights") as gate:

        def take(count: int) -> None:
            snapshots = [gate.snapshot() for _ in range(count)]
            for snapshot in snapshots[::2]:
                snapshot.close()
            for snapshot in snapshots[1::2]:
                assert snapshot.table("aircraft").get("N14228")
                snapshot.close()
            wait_until_quiet(others)

        windows_of(take, size)
    check_no_lease(url)


def check_gates_of_a_loop(url: str, size: int) -> None:
    """Open, read and close gates of an event loop."""

    async def open_and_close(count: int) -> None:
        for _ in range(count):
            async with await tidegate.aio.connect(url, "flights") as gate, gate.snapshot() as snapshot:
                assert await snapshot.table("aircraft").get("N14228")

    run_in_loop(lambda: windows_of_tasks(open_and_close, size))


def check_snapshots_of_a_loop(url: str, size: int) -> None:
    """Take snapshots of a gate of an event loop at one time, and read from all."""

    async def main() -> None:
        async with await tidegate.aio.connect(url, "flights") as gate:

            async def take(count: int) -> None:
                snapshots = await asyncio.gather(*(gate.snapshot()._take() for _ in range(count)))
                await asyncio.gather(*(each.table("aircraft").get("N14228") for each in snapshots))
                await asyncio.gather(*(each.close() for each in snapshots))
                for _ in range(5):  # the callbacks of ended tasks
                    await asyncio.sleep(0)

            await windows_of_tasks(take, size)

    run_in_loop(main)
    check_no_lease(url)


def run_in_loop(main: Callable[[], Awaitable[None]]) -> None:
    """Run it in an event loop with one thread, as stores keep connections for each; no task remains."""

    async def run() -> None:
        with ThreadPoolExecutor(1) as executor:
            asyncio.get_running_loop().set_default_executor(executor)
            await main()
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def check_no_lease(url: str) -> None:
    """Assert that no lease remains in the store."""
    with contextlib.closing(open_store(url, "flights")) as store:
        assert not store.leases()


CHECKS = [
    (check_gates, 6, 500),
    (check_gates_of_a_loop, 6, 500),
    (check_snapshots, 40, 2_500),
    (check_snapshots_of_a_loop, 40, 2_500),
]
"""The checks of readers, with the size of a window of the short tests and of the full ones."""
