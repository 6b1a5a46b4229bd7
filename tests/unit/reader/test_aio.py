"""The asyncio readers on stores that are read in threads: what they answer, hold and refuse."""

import asyncio
import contextlib
import datetime
import doctest
import inspect
import time

import pytest

import tidegate
import tidegate.aio
from support.clocks import HandClock
from tidegate.base.steps import run_async
from tidegate.errors import (
    ConfigError,
    SnapshotExpiredError,
    StoreUnavailableError,
    WaitTimeoutError,
)
from tidegate.sinks.redis.client.single_flight import SingleFlight
from tidegate.testing.example import BATCHES, SCHEMAS, write_flights

UTC = datetime.timezone.utc
DEADLINE_S = 30.0


async def until(condition):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.005)


@pytest.fixture(scope="module", params=["sqlite", "memory"])
def flights(request, tmp_path_factory):
    """The example's three versions; tests only read here."""
    if request.param == "memory":
        write_flights("memory://test-aio", "memory://test-aio")
        return "memory://test-aio"
    root = tmp_path_factory.mktemp("flights")
    write_flights(f"file://{root}/wal", f"sqlite://{root}/store")
    return f"sqlite://{root}/store"


def connected(url, read, clock=None):
    """Run ``read(gate)`` in an event loop of its own."""

    async def main():
        async with await tidegate.aio.connect(url, namespace="flights", clock=clock) as gate:
            return await read(gate)

    return asyncio.run(main())


def test_the_examples_of_the_pages_hold():
    assert doctest.testmod(tidegate.aio).failed == 0


def test_all_reads_equal_the_threaded_readers(flights):
    async def read(gate):
        with tidegate.connect(flights, namespace="flights") as other:
            assert await gate.version() == other.version() == 3
            assert (gate.namespace, gate.key_groups) == (other.namespace, other.key_groups)
            assert await gate.tables() == other.tables()
            assert await gate.history() == other.history()
            assert await gate.history(limit=2) == other.history(limit=2)
            for name in other.tables():
                mine, theirs = gate.table(name), other.table(name)
                rows = dict(theirs.scan())
                assert {key: value async for key, value in mine.scan()} == rows
                assert await mine.get_many(rows) == rows
                assert [await mine.get(key) for key in rows] == list(rows.values())
                assert (await mine.scan().to_arrow()).equals(theirs.scan().to_arrow())
                assert await mine.schema() == theirs.schema() == SCHEMAS[name]
            for version in (1, 2, 3):
                async with gate.snapshot(version) as mine:
                    with other.snapshot(version) as theirs:
                        assert (mine.version, mine.decided_at) == (theirs.version, theirs.decided_at)
                        assert mine.tables() == theirs.tables()
                        for name in theirs.tables():
                            rows = [row async for row in mine.table(name).scan()]
                            assert rows == list(theirs.table(name).scan())

    connected(flights, read)


def test_the_same_errors_with_the_same_words(flights):
    async def caught(ask):
        try:
            answer = ask()
            if inspect.isawaitable(answer):
                await answer
        except tidegate.TidegateError as error:
            return type(error), str(error)
        raise AssertionError("it was not refused")

    def asks(gate):
        naive = datetime.datetime(2026, 1, 1)  # noqa: DTZ001
        return [
            lambda: gate.table("aircraft").get(7),
            lambda: gate.table("legs").get("EWR"),
            lambda: gate.table("airport").get("EWR"),
            lambda: gate.snapshot(version=4),
            lambda: gate.snapshot(version=0),
            lambda: gate.snapshot(lease_s=-1),
            lambda: gate.snapshot(as_of=naive),
            lambda: gate.snapshot(as_of=naive.replace(year=1999, tzinfo=UTC)),
            lambda: gate.snapshot(version=1, as_of=naive),
            lambda: gate.history(limit=0),
            lambda: gate.wait_for(4, timeout=0.01),
            lambda: gate.wait_for(True),
        ]

    async def read(gate):
        with tidegate.connect(flights, namespace="flights") as other:
            for mine, theirs in zip(asks(gate), asks(other), strict=True):
                assert await caught(mine) == await caught(theirs)

    connected(flights, read)


def test_an_unknown_namespace_and_a_bad_url_are_refused(flights):
    for url, namespace in (
        (flights, "flight"),
        (None, "flights"),
        ("postgres://user:secret@host/db", "flights"),
    ):
        with pytest.raises(ConfigError) as caught:
            asyncio.run(tidegate.aio.connect(url, namespace))
        with pytest.raises(ConfigError) as same:
            tidegate.connect(url, namespace)
        assert str(caught.value) == str(same.value)
        assert "secret" not in str(caught.value)


def test_what_is_closed_stays_closed(flights):
    async def read():
        gate = await tidegate.aio.connect(flights, namespace="flights")
        table = gate.table("aircraft")
        snapshot = await gate.snapshot()
        pinned = snapshot.table("aircraft")
        async with gate.snapshot() as ended:
            gone = ended.table("aircraft")
        await ended.close()
        with pytest.raises(ConfigError, match="snapshot of version 3 was closed"):
            await gone.get("N14228")
        await gate.close()
        await gate.close()
        for ask in (gate.version, gate.snapshot, lambda: table.get("N"), lambda: pinned.get("N")):
            with pytest.raises(ConfigError, match="was closed: connect again"):
                await ask()
        await snapshot.close()
        return gate

    gate = asyncio.run(read())
    assert "Gate to" in repr(gate)


def test_a_gate_of_another_event_loop_is_refused(flights):
    async def open_one():
        return await tidegate.aio.connect(flights, namespace="flights")

    gate = asyncio.run(open_one())
    with pytest.raises(ConfigError, match="another event loop"):
        asyncio.run(gate.version())
    with pytest.raises(ConfigError, match="another event loop"):
        asyncio.run(gate.close())


def test_a_scan_of_the_newest_version_holds_it_until_its_end(writer):
    async def read(gate):
        scan = gate.table("airports").scan()
        rows = [await scan.__anext__()]
        writer.write(BATCHES[1])
        assert writer.driver.store.announce(2) == 1
        rows += [row async for row in scan]
        assert min(rows) == ("EWR", {"departures": 1, "delay": 2.0})
        assert writer.driver.store.announce(2) == 2
        async with gate.table("airports").scan() as scan:
            await scan.__anext__()
        assert [row async for row in scan] == []
        assert writer.driver.store.leases() == []

    writer.write(BATCHES[0])
    connected(writer.driver.endpoints.store, read)


@pytest.mark.parametrize("batches_before", [0, 1])
def test_i8_a_scan_leaves_a_version_that_is_retired_before_its_first_row(writer, batches_before):
    async def read(gate):
        store = gate._reader.store
        scan_groups = store.scan_groups

        async def retired(at, groups):
            batches = 0
            async for batch in scan_groups(at, groups):
                if at.version == 1 and batches == batches_before:
                    writer.write(BATCHES[1])
                    raise SnapshotExpiredError("version 1 was retired")
                batches += 1
                yield batch

        store.scan_groups = retired
        scan = gate.table("airports").scan()
        if batches_before:
            with pytest.raises(SnapshotExpiredError, match="version 1 was retired"):
                [row async for row in scan]
        else:
            assert dict([row async for row in scan])["EWR"] == {"departures": 2, "delay": 1.5}

    writer.write(BATCHES[0])
    connected(writer.driver.endpoints.store, read)
    assert writer.driver.store.leases() == []


def test_i8_a_snapshot_refuses_by_its_own_clock_once_its_lease_may_be_gone(writer):
    clock = HandClock()

    async def read(gate):
        gate._reader.leases._run = _nothing
        async with gate.snapshot(lease_s=10) as snapshot:
            table = snapshot.table("airports")
            scan = table.scan()
            await scan.__anext__()
            clock.seconds = 9.9
            assert await table.get("EWR")
            clock.seconds = 10.0
            for ask in (lambda: table.get("EWR"), scan.__anext__):
                with pytest.raises(
                    SnapshotExpiredError, match="lease of this snapshot on version 1 has run out"
                ):
                    await ask()
            with pytest.raises(SnapshotExpiredError):
                snapshot.table("airports")

    writer.write(BATCHES[0])
    connected(writer.driver.endpoints.store, read, clock)


async def _nothing():
    pass


def test_i8_a_lease_is_renewed_while_it_is_held_and_refused_when_it_was_revoked(writer):
    clock = HandClock()

    async def read(gate):
        store, renewals = gate._reader.store, gate._reader.leases
        async with gate.snapshot(lease_s=12) as snapshot:
            for _ in range(4):
                clock.seconds, last = snapshot._hold.active.due, snapshot._hold.active.deadline
                renewals._changed.set()  # as if the time had passed
                await until(lambda last=last: snapshot._hold.active.deadline > last)
            assert clock.seconds > 12
            assert await snapshot.table("airports").get("EWR")

            async def revoked(*_):
                raise SnapshotExpiredError("the horizon passed it")

            store.lease = revoked
            clock.seconds = snapshot._hold.active.due
            renewals._changed.set()
            await until(lambda: snapshot._hold.active.revoked is not None)
            with pytest.raises(SnapshotExpiredError, match="was revoked: the horizon passed it"):
                await snapshot.table("airports").get("EWR")
            await until(lambda: renewals._task is None)

    writer.write(BATCHES[0])
    connected(writer.driver.endpoints.store, read, clock)


@pytest.mark.parametrize("error", [StoreUnavailableError("no answer"), ValueError("a bug")])
def test_i8_a_renewal_without_an_answer_leaves_the_deadline_where_it_was(writer, error):
    clock = HandClock()

    async def read(gate):
        renewals = gate._reader.leases
        renewals._run = _nothing
        async with gate.snapshot(lease_s=12) as snapshot:
            held = snapshot._hold.active

            async def lost(*_):
                raise error

            found, gate._reader.store.lease = gate._reader.store.lease, lost
            clock.seconds = held.due
            await renewals.renew_due()
            assert (held.deadline, held.due) == (12.0, 5.0)
            gate._reader.store.lease = found
            clock.seconds = held.due
            await renewals.renew_due()
            assert (held.deadline, held.due) == (17.0, 9.0)

    writer.write(BATCHES[0])
    connected(writer.driver.endpoints.store, read, clock)


def test_a_snapshot_that_is_cancelled_while_it_is_taken_gives_its_lease_back(writer):
    async def read(gate):
        store, taken, go_on = gate._reader.store, asyncio.Event(), asyncio.Event()
        lease = store.lease

        async def slow(one, ttl_s):
            await lease(one, ttl_s)
            taken.set()
            await go_on.wait()

        store.lease = slow
        task = asyncio.ensure_future(run_async(gate._snapshot_steps(None, None, 60.0)))
        await taken.wait()
        assert len(writer.driver.store.leases()) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: writer.driver.store.leases() == [])

    writer.write(BATCHES[0])
    connected(writer.driver.endpoints.store, read)


def test_wait_for_a_version_that_comes_and_one_that_does_not(writer):
    async def read(gate):
        waiting = asyncio.ensure_future(gate.wait_for(2, timeout=DEADLINE_S))
        with pytest.raises(WaitTimeoutError, match=r"version 2 .* not visible within 0\.05 s"):
            await gate.wait_for(2, timeout=0.05)
        await asyncio.to_thread(writer.write, BATCHES[1])
        assert await waiting == 2

    writer.write(BATCHES[0])
    connected(writer.driver.endpoints.store, read)


def test_a_request_that_was_cancelled_is_over_before_the_store_is_closed(flights):
    async def read():
        gate = await tidegate.aio.connect(flights, namespace="flights")
        requests = [asyncio.ensure_future(gate.table("airports").get("EWR")) for _ in range(20)]
        await asyncio.sleep(0)
        for request in requests[::2]:
            request.cancel()
        assert await requests[1] is not None
        await gate.close()
        found = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(one, (dict, asyncio.CancelledError, ConfigError)) for one in found)

    asyncio.run(read())


def test_the_threaded_reader_offers_all_that_a_store_for_readers_has():
    from tidegate.sinks.aliases import Aliases
    from tidegate.sinks.async_store import AsyncStore
    from tidegate.sinks.store import Store

    for name in AsyncStore.__abstractmethods__:
        of_store = Aliases.get if name == "alias" else getattr(Store, name)
        mine, theirs = map(inspect.signature, (getattr(AsyncStore, name), of_store))
        assert list(mine.parameters) == list(theirs.parameters), name


def test_a_shared_run_is_done_once_for_all_and_outlives_who_is_cancelled():
    async def main():
        runs, go_on = [], asyncio.Event()

        async def make():
            runs.append(1)
            await go_on.wait()
            if len(runs) == 2:
                raise OSError("away")
            return len(runs)

        shared = SingleFlight(make, lambda: ConfigError("closed"))
        waiting = [asyncio.ensure_future(shared.result()) for _ in range(5)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        go_on.set()
        assert await asyncio.gather(*waiting[1:]) == [1] * 4
        with contextlib.suppress(asyncio.CancelledError):
            await waiting[0]
        failed = await asyncio.gather(shared.result(), shared.result(), return_exceptions=True)
        assert [type(each) for each in failed] == [OSError, OSError]
        go_on.clear()
        last = asyncio.ensure_future(shared.result())
        await until(lambda: len(runs) == 3)
        await shared.close()
        with pytest.raises(ConfigError, match="closed"):
            await last

    asyncio.run(main())
