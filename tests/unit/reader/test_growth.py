"""What gates and snapshots leave behind in a process: objects, descriptors, threads and tasks, by count."""

from __future__ import annotations

import asyncio
import gc
import threading
import uuid
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tidegate
import tidegate.aio
from tidegate.sinks.open_store import open_store
from tidegate.testing.example import write_flights

SIZES = [
    pytest.param(60, 300, id="few"),
    pytest.param(2_000, 10_000, id="many", marks=pytest.mark.slow),
]
SPARE = 0.05
"""The growth that is allowed for each gate or snapshot, in objects: caches move a little."""


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    """The URL of a store with three versions."""
    url = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"sqlite://{tmp_path}/store"
    write_flights(f"file://{tmp_path}/wal", url)
    return url


def counted():
    """Count objects, descriptors and threads; an event loop has weak references to ended tasks."""
    for _ in range(3):
        gc.collect()
    objects = [each for each in gc.get_objects() if type(each) is not weakref.ReferenceType]
    return len(objects), len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


def check(before, after, count):
    objects, descriptors, threads = (now - then for then, now in zip(before, after, strict=True))
    assert descriptors <= 0
    assert threads <= 1, "an open gate has one, or none"
    assert objects <= max(SPARE * count, 30), f"{objects} objects more after {count}"


@pytest.mark.parametrize("gates, snapshots", SIZES)
def test_gates_and_snapshots_of_threads_leave_nothing(url, gates, snapshots):
    def open_and_close(count):
        for _ in range(count):
            with tidegate.connect(url, "flights") as gate, gate.snapshot() as snapshot:
                assert snapshot.table("aircraft").get("N14228")

    open_and_close(20)
    before = counted()
    open_and_close(gates)
    check(before, counted(), gates)

    def take(gate, count):
        held = [gate.snapshot() for _ in range(count)]
        for snapshot in held[::2]:
            snapshot.close()
        for snapshot in held[1::2]:
            assert snapshot.table("aircraft").get("N14228")
            snapshot.close()

    with tidegate.connect(url, "flights") as gate:
        take(gate, 20)
        before = counted()
        take(gate, snapshots)
        check(before, counted(), snapshots)
    assert not open_store(url, "flights", None, None).leases()


@pytest.mark.parametrize("gates, snapshots", SIZES)
def test_gates_and_snapshots_of_an_event_loop_leave_nothing(url, gates, snapshots):
    async def open_and_close(count):
        for _ in range(count):
            async with await tidegate.aio.connect(url, "flights") as gate, gate.snapshot() as snapshot:
                assert await snapshot.table("aircraft").get("N14228")

    async def take(gate, count):
        held = await asyncio.gather(*(gate.snapshot()._take() for _ in range(count)))
        await asyncio.gather(*(snapshot.table("aircraft").get("N14228") for snapshot in held))
        await asyncio.gather(*(snapshot.close() for snapshot in held))
        for _ in range(5):  # the callbacks of ended tasks
            await asyncio.sleep(0)

    async def main():
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(1)  # a store keeps connections for each thread
        loop.set_default_executor(executor)
        await open_and_close(20)
        before = counted()
        await open_and_close(gates)
        check(before, counted(), gates)
        async with await tidegate.aio.connect(url, "flights") as gate:
            await take(gate, snapshots)
            before, tasks = counted(), len(asyncio.all_tasks())
            await take(gate, snapshots)
            check(before, counted(), snapshots)
            assert len(asyncio.all_tasks()) <= tasks
        assert asyncio.all_tasks() == {asyncio.current_task()}
        executor.shutdown()

    asyncio.run(main())
    assert not open_store(url, "flights", None, None).leases()
