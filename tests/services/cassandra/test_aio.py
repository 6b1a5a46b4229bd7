"""The asyncio reader on Cassandra, whose requests run in threads: equal to the threaded one, and it ends."""

import asyncio
import threading
import time

import pytest

import tidegate
import tidegate.aio
from services.support.workloads.random_versions import random_version, writer_on
from tidegate.errors import ConfigError, WaitTimeoutError
from tidegate.sinks.cassandra.client import session

VERSIONS = 4


@pytest.fixture
def writer(cassandra_tables, tmp_path):
    example = writer_on(cassandra_tables, tmp_path)
    yield example
    example.driver.store.drop()
    example.close()


def test_it_reads_what_the_threaded_reader_reads(writer):
    for seed in range(VERSIONS):
        random_version(writer, seed)
    where = writer.driver.endpoints

    async def read():
        async with await tidegate.aio.connect(where.store, where.namespace) as gate:
            with tidegate.connect(where.store, where.namespace) as other:
                assert await gate.version() == other.version() == VERSIONS
                assert await gate.history() == other.history()
                for version in range(1, VERSIONS + 1):
                    with other.snapshot(version) as theirs:
                        async with gate.snapshot(version) as ours:
                            tables = theirs.tables()
                            assert ours.tables() == tables
                            for name in tables:
                                rows = dict(theirs.table(name).scan())
                                table = ours.table(name)
                                assert {key: value async for key, value in table.scan()} == rows
                                some = list(rows)[:20]
                                asked = [table.get(key) for key in some]
                                assert await asyncio.gather(*asked) == [rows[key] for key in some]
        with pytest.raises(ConfigError, match="closed"):
            await gate.version()

    asyncio.run(read())


def test_wait_for_a_version_that_comes_and_one_that_does_not(writer):
    random_version(writer, 0)
    where = writer.driver.endpoints

    async def read():
        async with await tidegate.aio.connect(where.store, where.namespace) as gate:
            assert await gate.version() == 1
            waiting = asyncio.create_task(gate.wait_for(2, timeout=60))
            await asyncio.to_thread(random_version, writer, 1)
            assert await waiting == 2
            with pytest.raises(WaitTimeoutError):
                await gate.wait_for(3, timeout=0.2)

    asyncio.run(read())


def test_a_hundred_tasks_share_a_session_and_a_cancelled_one_hinders_nobody(writer):
    random_version(writer, 0)
    where = writer.driver.endpoints

    async def read():
        async with await tidegate.aio.connect(where.store, where.namespace) as gate:
            tasks = [asyncio.create_task(gate.version()) for _ in range(100)]
            tasks[3].cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert [one for one in found if one != 1] == [found[3]]
            assert isinstance(found[3], asyncio.CancelledError)
            assert len(session._shared.sessions) == 1

    asyncio.run(read())
    end = time.monotonic() + 30
    while any(thread.name.startswith("asyncio_") for thread in threading.enumerate()):
        assert time.monotonic() < end, "a thread of the event loop is still there"
        time.sleep(0.01)
