"""A handle that is pickled to a worker: refused with what to do there."""

import asyncio
import copy
import pickle
import uuid

import pytest

import tidegate
import tidegate.aio
from tidegate.errors import ConfigError
from tidegate.testing.example import write_flights

COPIES = {"pickle": pickle.dumps, "copy": copy.copy, "deepcopy": copy.deepcopy}


@pytest.fixture
def url():
    url = f"memory://{uuid.uuid4().hex}"
    write_flights(url, url)
    return url


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_each_handle_says_to_connect_in_the_worker(url, copied):
    with (
        tidegate.connect(url, "flights", wal=url) as gate,
        gate.snapshot() as snapshot,
        gate.mirror(["airports"]) as mirror,
    ):
        table = gate.table("airports")
        handles = [gate, snapshot, table, snapshot.table("airports"), table.scan(), mirror, mirror.view()]
        for handle in (*handles, gate.diff(1, 2), gate.changes(1, "airports")):
            with pytest.raises(ConfigError, match="connect in each worker process"):
                copied(handle)


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_each_handle_of_an_event_loop_does_so_too(url, copied):
    async def main():
        async with await tidegate.aio.connect(url, "flights") as gate, gate.snapshot() as snapshot:
            table = gate.table("airports")
            for handle in (gate, snapshot, table, table.scan(), gate.mirror(["airports"]), gate.diff(1, 2)):
                with pytest.raises(ConfigError, match="connect in each worker process"):
                    copied(handle)

    asyncio.run(main())
