"""The asyncio reader on Cassandra, whose requests run in threads: a cancelled one harms none, and it ends."""

import asyncio
import threading
import time

import pytest

import tidegate
import tidegate.aio
from services.support.workloads.random_versions import random_version, writer_on
from tidegate.sinks.cassandra.client import session


@pytest.fixture
def writer(cassandra_tables, tmp_path):
    example = writer_on(cassandra_tables, tmp_path)
    yield example
    example.driver.store.drop()
    example.close()


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
            assert sum(repr(where.store) in name for name in session._shared.sessions) == 1

    asyncio.run(read())
    end = time.monotonic() + 30
    while any(thread.name.startswith("asyncio_") for thread in threading.enumerate()):
        assert time.monotonic() < end, "a thread of the event loop is still there"
        time.sleep(0.01)
