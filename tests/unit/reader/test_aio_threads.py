"""Diffs and the rows of a version in an event loop: what they answer, and how they end."""

import asyncio
import threading

import pytest

import tidegate
import tidegate.aio
from tidegate.aio.in_threads import InThreads
from tidegate.errors import ConfigError, SnapshotExpiredError
from tidegate.testing.example import write_flights


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("flights")
    wal, store = f"file://{root}/wal", f"sqlite://{root}/store"
    write_flights(wal, store)
    return wal, store


def connected(places, read):
    wal, store = places

    async def main():
        async with await tidegate.aio.connect(store, namespace="flights", wal=wal) as gate:
            return await read(gate)

    return asyncio.run(main())


def test_they_equal_those_of_threads(places):
    async def read(gate):
        with tidegate.connect(places[1], namespace="flights", wal=places[0]) as other:
            assert [change async for change in gate.diff(1, 3)] == list(other.diff(1, 3))
            assert await gate.diff(1).counts() == other.diff(1).counts()
            assert await gate.diff(0, 2).tables() == other.diff(0, 2).tables()
            assert [row async for row in gate.changes(2, "aircraft")] == list(other.changes(2, "aircraft"))
            assert await gate.changes(2, "airports").to_arrow() == other.changes(2, "airports").to_arrow()

    connected(places, read)


def test_errors_come_where_they_are_awaited(places):
    async def read(gate):
        diff, changes = gate.diff(1, 99), gate.changes(1, "nothing")
        with pytest.raises(ConfigError, match="version 99"):
            await diff.counts()
        with pytest.raises(ConfigError, match="no table 'nothing'"):
            await anext(changes)
        with pytest.raises(StopAsyncIteration):
            await anext(changes)
        with pytest.raises(ConfigError, match="no table 'nothing' at version 1 nor at 3"):
            await gate.diff(1, tables=["nothing"]).tables()

    connected(places, read)


def test_a_closed_gate_reads_no_more(places):
    async def read(gate):
        diff = gate.diff(1, 3)
        await anext(diff)
        await diff.close()
        assert [change async for change in diff] == []
        await gate.close()
        with pytest.raises(ConfigError, match="closed"):
            await anext(gate.diff(1, 3))

    connected(places, read)


def test_a_cancelled_step_ends_before_the_rows_are_closed():
    """Two threads never touch the rows at the same time."""
    entered, leave, closed = threading.Event(), threading.Event(), []

    class Rows:
        def __iter__(self):
            return self

        def __next__(self):
            entered.set()
            assert leave.wait(30)
            closed.append("stepped")
            raise SnapshotExpiredError("retired")

        def close(self):
            closed.append("closed")

    async def main():
        rows = InThreads(Rows)
        step = asyncio.ensure_future(anext(rows))
        await asyncio.to_thread(entered.wait, 30)
        step.cancel()
        await asyncio.sleep(0)
        assert closed == []
        leave.set()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert closed == ["stepped", "closed"]

    asyncio.run(main())
