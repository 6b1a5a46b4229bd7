"""What ends with an asyncio gate, also when it is closed at an awkward moment."""

from __future__ import annotations

import asyncio
import threading

import pytest

import tidegate.aio
from tidegate.errors import ConfigError
from tidegate.sinks.open_store import open_store
from tidegate.sinks.redis.client.single_flight import SingleFlight
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.testing.example import write_flights

DEADLINE_S = 30.0


def test_a_shared_run_that_is_closed_before_it_began_says_so_to_who_waits():
    async def main():
        shared = SingleFlight(asyncio.Event().wait, lambda: ConfigError("closed"))
        waiting = asyncio.ensure_future(shared.result())
        await asyncio.sleep(0)  # who waits has begun the run, which has not had its first step
        await shared.close()
        with pytest.raises(ConfigError, match="closed"):
            await waiting

    asyncio.run(main())


def test_a_close_that_is_cancelled_ends_the_renewals_and_the_connections_all_the_same(tmp_path, monkeypatch):
    write_flights(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    asked, answers, closed = threading.Event(), threading.Event(), threading.Event()

    def release(_store, _lease_id):
        asked.set()
        assert answers.wait(DEADLINE_S)

    async def main():
        gate = await tidegate.aio.connect(f"sqlite://{tmp_path}/store", "flights")
        snapshot = await gate.snapshot()
        monkeypatch.setattr(SqliteStore, "release", release)
        monkeypatch.setattr(SqliteStore, "close", lambda _store: closed.set())
        closing = asyncio.ensure_future(gate.close())
        assert await asyncio.to_thread(asked.wait, DEADLINE_S)
        closing.cancel()
        await asyncio.sleep(0)
        answers.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(closing), DEADLINE_S)
        assert closed.is_set()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, "nothing renews the lease any more"
        return snapshot

    asyncio.run(main())


class Flip:
    """An alias that names ``blue``, then ``green``, and stores whose close lasts until it is told to end."""

    def __init__(self, root, monkeypatch):
        self.url = f"sqlite://{root}/store"
        for namespace in ("green", "blue"):
            write_flights(f"file://{root}/wal", self.url, namespace, alias="live")
        self.root, self.begun, self.go_on = root, threading.Event(), threading.Event()
        self.closed = []
        close = SqliteStore.close

        def slow(store):
            self.begun.set()
            assert self.go_on.wait(DEADLINE_S)
            self.closed.append(store.where.rpartition(" ")[2])
            close(store)

        self.slow = lambda: monkeypatch.setattr(SqliteStore, "close", slow)

    def to_green(self):
        write_flights(f"file://{self.root}/wal", self.url, "green", alias="live")

    def leases(self, namespace):
        store = open_store(self.url, namespace, None, None)
        return [lease.version for lease in store.leases()]


def test_who_is_cancelled_while_the_namespace_before_a_flip_is_closed_holds_no_lease(tmp_path, monkeypatch):
    """The snapshot of the namespace that the alias names now was taken already."""
    flip = Flip(tmp_path, monkeypatch)

    async def main():
        gate = await tidegate.aio.connect(flip.url, "live")
        assert await gate.version() == 3
        flip.to_green()
        flip.slow()
        taking = asyncio.ensure_future(gate.snapshot()._take())
        assert await asyncio.to_thread(flip.begun.wait, DEADLINE_S)
        taking.cancel()
        (taken,) = await asyncio.gather(taking, return_exceptions=True)
        if not isinstance(taken, BaseException):
            await taken.close()  # whoever has it gives it back
        flip.go_on.set()
        assert flip.leases("green") == []
        await gate.close()
        assert sorted(flip.closed) == ["blue", "green", "live"]

    asyncio.run(main())


def test_a_close_waits_for_a_namespace_that_a_call_lets_go_meanwhile(tmp_path, monkeypatch):
    """That was closed beside it, and was not done when the event loop ended."""
    flip = Flip(tmp_path, monkeypatch)
    reading, read_on, blue_may_end = threading.Event(), threading.Event(), threading.Event()
    pointer, close = SqliteStore.pointer, SqliteStore.close

    def is_blue(store):
        return store.where.endswith("blue")

    def slow_pointer(store):
        if is_blue(store):
            reading.set()
            assert read_on.wait(DEADLINE_S)
        return pointer(store)

    def slow_close(store):
        flip.begun.set()
        assert (blue_may_end if is_blue(store) else flip.go_on).wait(DEADLINE_S)
        close(store)

    async def main():
        gate = await tidegate.aio.connect(flip.url, "live")
        monkeypatch.setattr(SqliteStore, "pointer", slow_pointer)
        call = asyncio.ensure_future(gate.version())  # in blue
        assert await asyncio.to_thread(reading.wait, DEADLINE_S)
        flip.to_green()
        await gate.version()  # in green
        monkeypatch.setattr(SqliteStore, "close", slow_close)
        closing = asyncio.ensure_future(gate.close())
        assert await asyncio.to_thread(flip.begun.wait, DEADLINE_S)  # green is being closed
        read_on.set()
        assert await call == 3
        flip.go_on.set()
        assert not (await asyncio.wait([closing], timeout=0.5))[0]
        blue_may_end.set()
        await asyncio.wait_for(closing, DEADLINE_S)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_snapshot_whose_close_is_cancelled_before_its_lease_was_given_back_gives_it_back(
    tmp_path, monkeypatch
):
    """A request that had not been sent yet is sent beside."""
    write_flights(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")

    async def main():
        async with await tidegate.aio.connect(f"sqlite://{tmp_path}/store", "flights") as gate:
            snapshot, store = await gate.snapshot(), gate._reader.store
            release, connecting = store.release, asyncio.Event()

            async def first_connects(lease_id):
                if not connecting.is_set():
                    connecting.set()
                    await asyncio.Event().wait()
                await release(lease_id)

            monkeypatch.setattr(store, "release", first_connects)
            closing = asyncio.ensure_future(snapshot.close())
            await connecting.wait()
            closing.cancel()
            await asyncio.wait([closing])
        assert open_store(f"sqlite://{tmp_path}/store", "flights", None, None).leases() == []

    asyncio.run(main())


def test_a_close_that_is_cancelled_while_requests_end_closes_the_store_all_the_same(tmp_path, monkeypatch):
    write_flights(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    asked, answers, closed = threading.Event(), threading.Event(), threading.Event()

    def pointer(_store):
        asked.set()
        assert answers.wait(DEADLINE_S)

    async def main():
        gate = await tidegate.aio.connect(f"sqlite://{tmp_path}/store", "flights")
        monkeypatch.setattr(SqliteStore, "pointer", pointer)
        monkeypatch.setattr(SqliteStore, "close", lambda _store: closed.set())
        reading = asyncio.ensure_future(gate.version())
        assert await asyncio.to_thread(asked.wait, DEADLINE_S)
        reading.cancel()
        closing = asyncio.ensure_future(gate.close())
        await asyncio.sleep(0.01)
        closing.cancel()
        asyncio.get_running_loop().call_later(0.05, answers.set)  # the close waits for the request
        await asyncio.gather(reading, closing, return_exceptions=True)
        assert closed.is_set(), "nobody can close it again"

    asyncio.run(main())


def test_a_lease_that_is_still_being_taken_is_given_back_behind_that(tmp_path, monkeypatch):
    """Who took it was cancelled. A release beside it came first, and the lease stayed for a minute."""
    write_flights(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    url, lease, asked, go_on = (
        f"sqlite://{tmp_path}/store",
        SqliteStore.lease,
        threading.Event(),
        threading.Event(),
    )

    def slow(store, one, ttl_s):
        asked.set()
        assert go_on.wait(DEADLINE_S)
        lease(store, one, ttl_s)

    async def main():
        async with await tidegate.aio.connect(url, "flights") as gate:
            monkeypatch.setattr(SqliteStore, "lease", slow)
            taking = asyncio.ensure_future(gate.snapshot()._take())
            assert await asyncio.to_thread(asked.wait, DEADLINE_S)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            await asyncio.sleep(0.3)  # time for a release that does not wait
            go_on.set()
        assert open_store(url, "flights", None, None).leases() == []

    asyncio.run(main())
