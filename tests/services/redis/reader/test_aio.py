"""The asyncio reader on real Redis: equal to the threaded one, repeatable, monotonic, safe to cancel."""

import asyncio
import contextlib
import gc
import time

import pytest
import redis

import tidegate
import tidegate.aio
from services.support.redis.cluster import RedisCluster
from services.support.redis.sentinel import RedisSentinel
from services.support.redis.server import RedisServer
from services.support.workloads.random_versions import random_version, writer_on
from tidegate.errors import ConfigError, StoreNotVerifiedError, StoreUnavailableError, WaitTimeoutError
from tidegate.sinks.records import ReadAt
from tidegate.sinks.redis.client.aio import channel as redis_channel
from tidegate.sinks.redis.client.aio.channel import Channel, connected
from tidegate.sinks.redis.client.settings import settings_of

DEADLINE_S = 30.0


async def until(condition):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.005)


def run(writer, read, url=None, **options):
    """Run ``read(gate)`` in an event loop of its own; nothing of it is left behind."""
    endpoints = writer.driver.endpoints

    async def main():
        gate = await tidegate.aio.connect(url or endpoints.store, endpoints.namespace, options)
        async with gate:
            found = await asyncio.wait_for(read(gate), 100)
        assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()
        return found

    found = asyncio.run(main())
    gc.collect()  # a connection that was not closed warns now
    return found


@pytest.fixture
def writer(redis: RedisServer, tmp_path):
    example = writer_on(redis.url, tmp_path)
    yield example
    example.driver.store.drop()
    example.close()


def counts(server):
    """Calls so far by command."""
    return {
        name.removeprefix("cmdstat_"): found["calls"] for name, found in server.info("commandstats").items()
    }


# -- equal to the threaded reader -------------------------------------------------------------------


def compare(writer, **options):
    for seed in range(6):
        random_version(writer, seed)
    endpoints = writer.driver.endpoints

    async def read(gate):
        with tidegate.connect(endpoints.store, endpoints.namespace) as other:
            assert await gate.version() == other.version() == 6
            assert await gate.tables() == other.tables()
            assert await gate.history() == other.history()
            absent = {"aircraft": ["X"], "airports": ["X"], "legs": [("X", 1)], "notes": [b"X"]}
            for version in [info.version for info in other.history()]:
                with other.snapshot(version) as theirs:
                    async with gate.snapshot(version) as mine:
                        assert (mine.tables(), mine.decided_at) == (theirs.tables(), theirs.decided_at)
                        for name in theirs.tables():
                            rows = list(theirs.table(name).scan())
                            assert [row async for row in mine.table(name).scan()] == rows
                            keys = [*absent[name], *(key for key, _ in rows)]
                            assert await mine.table(name).get_many(keys) == dict(rows)
                            singles = await asyncio.gather(*(mine.table(name).get(key) for key in keys))
                            assert singles == [theirs.table(name).get(key) for key in keys]
                            assert await mine.table(name).schema() == theirs.table(name).schema()
            for name in other.tables():
                theirs = other.table(name).scan().to_arrow()
                assert (await gate.table(name).scan().to_arrow()).equals(theirs)

    run(writer, read, **options)


@pytest.mark.parametrize("functions", [True, False])
def test_all_reads_equal_the_threaded_readers(writer, functions):
    compare(writer, functions=functions)


@pytest.mark.xdist_group("redis_cluster")
def test_all_reads_equal_on_a_cluster(redis_cluster: RedisCluster, tmp_path):
    writer = writer_on(redis_cluster.url, tmp_path)
    compare(writer)
    writer.driver.store.drop()
    writer.close()


@pytest.mark.xdist_group("redis_sentinel")
def test_all_reads_equal_behind_sentinels_and_go_on_at_the_listed_primary(
    redis_sentinel: RedisSentinel, tmp_path
):
    writer = writer_on(redis_sentinel.url, tmp_path)
    compare(writer)

    async def read(gate):
        async with gate.snapshot() as snapshot:
            before = await snapshot.table("aircraft").scan().to_arrow()
            await asyncio.to_thread(redis_sentinel.failover)
            with pytest.raises(StoreNotVerifiedError, match="restarted or was promoted"):
                await snapshot.table("aircraft").get("N1")
            await asyncio.to_thread(random_version, writer, 7)  # the writer compares it with the log
            assert (await snapshot.table("aircraft").scan().to_arrow()).equals(before)
        assert await gate.version() == 7

    try:
        run(writer, read)
    finally:
        redis_sentinel.heal()
        writer.driver.store.drop()
        writer.close()


def test_by_tls_and_with_an_acl_user(private_redis, tmp_path):
    server = private_redis(tls=True, users={"reader": "on >secret ~* &* +@all"})
    settings = {name: server.tls_settings[name] for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")}
    url = server.url_for("reader", "secret")

    async def refused(where, options):
        await tidegate.aio.connect(where, "flights", options)

    with pytest.raises(ConfigError, match="no namespace"):
        asyncio.run(refused(url, settings))
    with pytest.raises(ConfigError, match="refuses this user") as caught:
        asyncio.run(refused(server.url_for("reader", "wrong"), settings))
    assert "wrong" not in str(caught.value)
    with pytest.raises(StoreUnavailableError, match=r"no answer within 2\.0 s"):
        asyncio.run(refused(url, {"timeout_s": 2}))  # it trusts nobody


@pytest.mark.parametrize("asked", [False, True])
def test_nothing_is_left_of_a_tls_connection_to_a_silent_server(private_redis, asked):
    """It would wait for the server's part of the end of TLS, longer than the loop goes on."""
    server = private_redis(tls=True)
    settings = settings_of(server.url, {**server.tls_settings, "socket_timeout": 0.2})

    async def main():
        channel = Channel(await connected(settings.seeds[0], settings), limit_s=0.2)
        await asyncio.to_thread(server.pause)
        if asked:
            with pytest.raises(redis.TimeoutError):
                await channel.send((b"PING\r\n",))
        await channel.close()

    try:
        asyncio.run(main())
        gc.collect()  # a connection that was not closed warns now
    finally:
        server.resume()


# -- one read, one call -----------------------------------------------------------------------------


def test_a_get_of_a_snapshot_is_one_call(writer, redis):
    random_version(writer, 1)

    async def read(gate):
        async with gate.snapshot() as snapshot:
            table = snapshot.table(snapshot.tables()[0])
            await asyncio.gather(
                *(table.get(key) for key in ("N1", "N2", "N3"))
            )  # the server's id is known now
            before = counts(redis)
            await asyncio.gather(*(table.get(f"N{n}") for n in range(200)))
            after = counts(redis)
        assert after["fcall_ro"] - before["fcall_ro"] == 200
        assert after.get("fcall", 0) - before.get("fcall", 0) == 0

    writer.write({"aircraft": {f"N{n}": {"carrier": "UA", "flights": n} for n in range(40)}})
    run(writer, read)


def test_many_tasks_share_few_connections(writer, redis):
    writer.write({"aircraft": {f"N{n}": {"carrier": "UA", "flights": n} for n in range(200)}})

    async def read(gate):
        async with gate.snapshot() as snapshot:
            table = snapshot.table("aircraft")
            for _ in range(5):
                found = await asyncio.gather(*(table.get(f"N{n % 200}") for n in range(1_000)))
                assert [row["flights"] for row in found] == [n % 200 for n in range(1_000)]
            (node,) = gate._reader.store._calls.servers._nodes.values()
            mine = [line for line in redis.ask("CLIENT", "LIST").splitlines() if "name=many" in line]
            assert len(node._channels) == len(mine) <= redis_channel.CONNECTIONS

    run(writer, read, client_name="many")


# -- waiting ----------------------------------------------------------------------------------------


def test_wait_for_wakes_without_polling(writer, redis):
    random_version(writer, 1)

    async def read(gate):
        with pytest.raises(WaitTimeoutError):
            await gate.wait_for(2, timeout=0.05)
        before = counts(redis)
        waiting = [asyncio.ensure_future(gate.wait_for(2, timeout=DEADLINE_S)) for _ in range(50)]
        # All of them look once, and one blocked read waits for all: then there is nothing to count.
        await until(lambda: "xread" in redis.ask("CLIENT", "LIST"))
        await asyncio.to_thread(random_version, writer, 2)
        assert await asyncio.gather(*waiting) == [2] * 50
        return counts(redis)["xread"] - before.get("xread", 0)

    started = time.monotonic()
    reads = run(writer, read)
    assert reads <= 2 + 2 * (time.monotonic() - started)  # about one a second, whoever waits


# -- cancellation -----------------------------------------------------------------------------------


def test_cancelled_requests_never_give_their_replies_to_others(writer):
    writer.write({"aircraft": {f"N{n}": {"carrier": "UA", "flights": n} for n in range(100)}})

    async def read(gate):
        async with gate.snapshot() as snapshot:
            table = snapshot.table("aircraft")

            async def one(n):
                return (await table.get(f"N{n}"))["flights"]

            for cancelled_after in range(12):
                tasks = [asyncio.ensure_future(one(n)) for n in range(100)]
                many = asyncio.ensure_future(table.get_many([f"N{n}" for n in range(100)]))
                for _ in range(cancelled_after):
                    await asyncio.sleep(0)
                many.cancel()
                for task in tasks[::3]:
                    task.cancel()
                found = await asyncio.gather(*tasks, return_exceptions=True)
                for n, value in enumerate(found):
                    assert value == n or (n % 3 == 0 and isinstance(value, asyncio.CancelledError))
                assert await one(7) == 7
            for node in gate._reader.store._calls.servers._nodes.values():
                await until(lambda node=node: node._slots.free == redis_channel.FLIGHTS_MAX)
                assert all(not channel.out for channel in node._channels)

    run(writer, read)


def test_two_hundred_gets_at_the_newest_version_at_once(writer):
    writer.write({"aircraft": {f"N{n}": {"carrier": "UA", "flights": n} for n in range(200)}})

    async def read(gate):
        table = gate.table("aircraft")
        found = await asyncio.gather(*(table.get(f"N{n}") for n in range(200)))
        assert [row["flights"] for row in found] == list(range(200))

    run(writer, read)


def test_a_request_without_a_turn_proves_nothing_about_the_server(writer):
    writer.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})

    async def read(gate):
        table = gate.table("aircraft")
        assert await table.get("N1")
        servers = gate._reader.store._calls.servers
        (node,), view = servers._nodes.values(), servers.known
        slots, node._slots.free = node._slots.free, 0
        with pytest.raises(StoreUnavailableError, match=r"pending all the time|no time was left"):
            await table.get("N1")
        assert servers.known is view
        assert node.ready
        node._slots.free = slots
        assert await table.get("N1")

    run(writer, read, timeout_s=0.5)


def test_a_thousand_snapshots_at_once_take_few_requests(writer):
    writer.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})

    async def read(gate):
        store, asked = gate._reader.store, []
        for name in ("lease", "release", "catalog"):
            plain = getattr(store, name)
            setattr(store, name, lambda *args, n=name, p=plain: asked.append(n) or p(*args))
        await gate.tables()
        snapshots = await asyncio.gather(*(gate.snapshot()._take() for _ in range(1_000)))
        await asyncio.gather(*(snapshot.close() for snapshot in snapshots))
        assert asked.count("lease") == asked.count("release") <= 5, "one, or a few on a slow machine"
        assert asked.count("catalog") == 0, "the entry came with the pointer"

    run(writer, read)


# -- servers that go --------------------------------------------------------------------------------


def test_a_server_that_is_silent_is_an_error_in_time_and_closing_does_not_wait(private_redis, tmp_path):
    server = private_redis()
    writer = writer_on(server.url, tmp_path)
    random_version(writer, 1)

    async def read(gate):
        table = gate.table((await gate.tables())[0])
        server.pause()
        try:
            found = await asyncio.gather(*(table.get("N1") for _ in range(300)), return_exceptions=True)
            assert {type(each) for each in found} == {StoreUnavailableError}
        finally:
            server.resume()
        assert await gate.version() == 1

    run(writer, read, timeout_s=0.5)
    writer.close()


def test_0013_a_list_from_before_the_version_is_not_relied_on(writer):
    """Two looks at the pointer whose answers come in the other order: the older list says nothing of v."""
    random_version(writer, 1)

    async def read(gate):
        store = gate._reader.store
        older = (await gate.version()) and store._known
        random_version(writer, 2)
        await gate.version()
        store._known = older
        assert store._listed_for(1)() == older.listed
        assert store._listed_for(2)() == frozenset()
        assert await store.get_many(ReadAt("aircraft", 2), [b"x"]) is not None  # it looks again
        assert store._known.pointer.visible == 2

    run(writer, read)


@pytest.mark.parametrize("of", ["gate", "snapshot"])
def test_a_loop_that_ends_in_the_middle_of_a_scan_has_nothing_to_say(writer, of):
    """asyncio closes all generators of a loop side by side, in any order: none may stand within another."""
    endpoints, told = writer.driver.endpoints, []
    writer.write({"airports": {f"A{n}": {"departures": n, "delay": 0.0} for n in range(100)}})

    async def left_in_its_middle():
        gate = await tidegate.aio.connect(endpoints.store, endpoints.namespace)
        source = gate if of == "gate" else await gate.snapshot()
        scan = source.table("airports").scan()
        assert await anext(scan)
        return gate, scan

    for _ in range(20):
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        with contextlib.closing(loop):
            gate, scan = loop.run_until_complete(left_in_its_middle())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(gate.close())
            del scan
    assert told == []
