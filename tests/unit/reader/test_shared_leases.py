"""Snapshots of one version share a lease of their gate: requests grow with versions, not with snapshots."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid

import pytest

import tidegate
import tidegate.aio
from support.clocks import HandClock
from support.wait import wait_until
from tidegate.errors import ConfigError, SnapshotExpiredError, StoreUnavailableError, TidegateError
from tidegate.reader.leases import active
from tidegate.sinks.open_store import open_store
from tidegate.testing.example import write_flights

DEADLINE_S = 30.0
SNAPSHOTS = 200


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    """The URL of a store with three versions."""
    url = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"sqlite://{tmp_path}/store"
    write_flights(f"file://{tmp_path}/wal", url)
    return url


LEASE_S = 6_000.0


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch):
    """Share a lease for 500 s, however long the snapshots of a test take."""
    monkeypatch.setattr(active, "SHARE_S", LEASE_S)


def leases_in(url):
    with contextlib.closing(open_store(url, "flights", None, None)) as store:
        return [info.version for info in store.leases()]


class Requests:
    """The requests for leases of a gate: their number, and a method that runs before each."""

    def __init__(self, gate, before=lambda: None):
        self.count, self.looks = 0, 0
        keeper, store = gate._reader.leases, gate._reader.store
        lease, alive = store.lease, keeper._alive

        def counted(*args):
            self.count += 1
            before()
            return lease(*args)

        async def counted_async(*args):
            self.count += 1
            await asyncio.to_thread(before)
            await lease(*args)

        def looked():
            self.looks += 1
            return alive()

        store.lease = counted_async if asyncio.iscoroutinefunction(lease) else counted
        keeper._alive = looked


def test_snapshots_of_threads_share_a_lease(url):
    with tidegate.connect(url, "flights") as gate:
        requests = Requests(gate)
        snapshots = [gate.snapshot(lease_s=LEASE_S) for _ in range(SNAPSHOTS)]
        assert requests.count == 1
        assert requests.looks <= 4, "a snapshot that shares a lease wakes no thread"
        assert leases_in(url) == [3]
        with gate.snapshot(version=2):
            assert sorted(leases_in(url)) == [2, 3]
        last = snapshots.pop()
        for snapshot in snapshots:
            snapshot.close()
            snapshot.close()
        assert leases_in(url) == [3]
        assert last.table("aircraft").get("N14228")
        last.close()
        assert leases_in(url) == []
        assert requests.count == 2


def test_snapshots_of_an_event_loop_share_a_lease_and_its_request(url):
    async def main():
        async with await tidegate.aio.connect(url, "flights") as gate:
            requests = Requests(gate)
            snapshots = await asyncio.gather(
                *(gate.snapshot(3, lease_s=LEASE_S)._take() for _ in range(SNAPSHOTS))
            )
            assert requests.count == 1
            snapshots += [await gate.snapshot(lease_s=LEASE_S) for _ in range(SNAPSHOTS)]
            assert requests.count == 1
            assert requests.looks <= 4, "a snapshot that shares a lease wakes no task"
            last = snapshots.pop()
            for snapshot in snapshots:
                await snapshot.close()
            assert leases_in(url) == [3]
            assert await last.table("aircraft").get("N14228")
            await last.close()
            assert leases_in(url) == []

    asyncio.run(main())


def in_threads(count, work):
    """Run work in threads; return their results and errors."""
    results = []

    def run():
        try:
            results.append(work())
        except TidegateError as error:
            results.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, results


def joined(threads):
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_threads_that_take_a_snapshot_at_the_same_time_send_one_request(url):
    with tidegate.connect(url, "flights", clock=HandClock()) as gate:  # however late the last thread starts
        go_on = threading.Event()
        requests = Requests(gate, lambda: go_on.wait(DEADLINE_S))
        threads, snapshots = in_threads(8, lambda: gate.snapshot(lease_s=LEASE_S))
        newest = gate._reader.leases._newest
        wait_until(lambda: [len(active.holds) for active in newest.values()] == [8])
        go_on.set()
        joined(threads)
        assert requests.count == 1
        assert [snapshot.version for snapshot in snapshots] == [3] * 8


def test_a_renewal_is_one_request_and_a_later_snapshot_has_its_own_lease(url):
    clock = HandClock()
    with tidegate.connect(url, "flights", clock=clock) as gate:
        gate._reader.leases._run = lambda begun: begun.end()
        requests = Requests(gate)
        early = [gate.snapshot(lease_s=30) for _ in range(SNAPSHOTS)]
        clock.seconds = 10
        gate._reader.leases.renew_due()
        assert requests.count == 2
        late = gate.snapshot(lease_s=30)
        assert requests.count == 3, "max_lease_s counts from the time of taking"
        assert [info.version for info in gate._reader.store.leases()] == [3, 3]
        clock.seconds = 39
        assert early[0].table("aircraft").get("N14228")
        clock.seconds = 40
        for snapshot in [*early, late]:
            with pytest.raises(SnapshotExpiredError, match="has run out"):
                snapshot.table("aircraft")
        with gate.snapshot(lease_s=30) as newest:
            assert newest.table("aircraft").get("N14228")
        with pytest.raises(SnapshotExpiredError, match="has run out"):
            early[0].table("aircraft")


def test_a_shared_lease_that_is_revoked_ends_all_its_snapshots_and_no_later_one(url):
    clock = HandClock()
    with tidegate.connect(url, "flights", clock=clock) as gate:
        gate._reader.leases._run = lambda begun: begun.end()
        first, second = gate.snapshot(lease_s=30), gate.snapshot(lease_s=30)
        assert first._hold.active is second._hold.active
        first._hold.active.revoked = SnapshotExpiredError("the horizon passed it")
        for snapshot in (first, second):
            with pytest.raises(SnapshotExpiredError, match="was revoked"):
                snapshot.table("aircraft")
        with gate.snapshot(lease_s=30) as newest:
            assert newest.table("aircraft").get("N14228")


def test_a_request_without_an_answer_is_sent_again_by_the_calls_that_waited_for_it(url):
    """Their own deadlines may be later than that of the first call."""
    with tidegate.connect(url, "flights") as gate:
        go_on, errors = threading.Event(), iter([StoreUnavailableError("no answer")])

        def before():
            assert go_on.wait(DEADLINE_S)
            for error in errors:
                raise error

        requests = Requests(gate, before)
        threads, results = in_threads(5, lambda: gate.snapshot(lease_s=LEASE_S))
        wait_until(lambda: [len(a.holds) for a in gate._reader.leases._newest.values()] == [5])
        go_on.set()
        joined(threads)
        assert sum(isinstance(result, StoreUnavailableError) for result in results) == 1
        assert requests.count == 5
    assert leases_in(url) == []


def test_a_request_without_an_answer_is_sent_again_by_tasks(url):
    async def main():
        async with await tidegate.aio.connect(url, "flights") as gate:
            errors = iter([StoreUnavailableError("no answer")])

            def before():
                for error in errors:
                    raise error

            requests = Requests(gate, before)
            calls = (gate.snapshot(3, lease_s=LEASE_S)._take() for _ in range(20))
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert sum(isinstance(result, StoreUnavailableError) for result in results) == 1
            assert 1 < requests.count <= 20
        assert leases_in(url) == []

    asyncio.run(main())


def test_tasks_that_are_cancelled_leave_the_lease_to_the_others(url):
    async def main():
        async with await tidegate.aio.connect(url, "flights") as gate:
            go_on = threading.Event()
            requests = Requests(gate, lambda: go_on.wait(DEADLINE_S))
            calls = [asyncio.ensure_future(gate.snapshot(lease_s=LEASE_S)._take()) for _ in range(5)]
            newest = gate._reader.leases._newest
            while [len(active.holds) for active in newest.values()] != [5]:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0)
            for call in calls[:4]:  # the first sent the request
                call.cancel()
            await asyncio.wait(calls[:4])
            go_on.set()
            snapshot = await calls[4]
            assert requests.count == 1
            assert leases_in(url) == [3]
            await snapshot.close()
            assert leases_in(url) == []

    asyncio.run(main())


# -- a gate that is closed meanwhile ----------------------------------------------------------------------


def test_a_gate_of_threads_that_is_closed_while_leases_are_taken_releases_them(url):
    gate = tidegate.connect(url, "flights")
    asked, go_on = threading.Semaphore(0), threading.Event()

    def before():
        asked.release()
        assert go_on.wait(DEADLINE_S)

    Requests(gate, before)
    versions = iter([1, 2, 3, 3, 3])
    threads, results = in_threads(5, lambda: gate.snapshot(next(versions), lease_s=LEASE_S))
    for _ in range(3):
        assert asked.acquire(timeout=DEADLINE_S)
    (closing,), _ = in_threads(1, gate.close)
    wait_until(lambda: gate._reader.leases._closing)
    with pytest.raises(ConfigError, match="closed"):
        gate._reader.leases.take(3, 60.0)
    assert closing.is_alive(), "it waits for the requests"
    go_on.set()
    joined([closing, *threads])
    assert leases_in(url) == []
    assert all(isinstance(result, ConfigError) for result in results), results


def test_a_gate_of_an_event_loop_that_is_closed_while_leases_are_taken_releases_them(url):
    async def main():
        gate = await tidegate.aio.connect(url, "flights")
        asked, go_on = threading.Semaphore(0), threading.Event()

        def before():
            asked.release()
            assert go_on.wait(DEADLINE_S)

        Requests(gate, before)
        calls = [
            asyncio.ensure_future(gate.snapshot(version, lease_s=LEASE_S)._take()) for version in (1, 2, 3, 3)
        ]
        for _ in range(3):
            assert await asyncio.to_thread(asked.acquire, timeout=DEADLINE_S)
        closing = asyncio.ensure_future(gate.close())
        while not gate._reader.leases._closing:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        with pytest.raises(ConfigError, match="closed"):
            await gate._reader.leases.take(3, 60.0)
        assert not closing.done(), "it waits for the requests"
        go_on.set()
        await asyncio.wait_for(closing, DEADLINE_S)
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, ConfigError) for result in results), results
        assert leases_in(url) == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
