"""``to_arrow`` holds the rows once, as Arrow: of their Python values only some at a time."""

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

import tidegate
import tidegate.aio
from tidegate.options import Options
from tidegate.testing.example import Example
from tidegate.values.decode import CHUNK_ROWS

ROWS = 6 * CHUNK_ROWS + 7
MOST_BYTES = 12_000_000  # on an event loop all rows as Python values took 33 MB, one chunk of them takes 6 MB


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("rows")
    url = f"sqlite://{root}/store"
    example = Example(f"file://{root}/wal", url, options=Options(key_groups=16))
    example.write({"aircraft": {f"N{n}": {"carrier": f"carrier {n}", "flights": n} for n in range(ROWS)}})
    example.close()
    return url


def by_threads(url: str) -> Any:
    with tidegate.connect(url, namespace="flights") as gate:
        return gate.table("aircraft").scan().to_arrow()


def by_event_loop(url: str) -> Any:
    async def main() -> Any:
        async with await tidegate.aio.connect(url, namespace="flights") as gate:
            return await gate.table("aircraft").scan().to_arrow()

    return asyncio.run(main())


@pytest.mark.parametrize("read", [by_threads, by_event_loop])
def test_a_scan_as_an_arrow_table_holds_one_chunk_of_python_values(store: str, read: Callable[[str], Any]):
    tracemalloc.start()
    try:
        table = read(store)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES
    assert table.num_rows == ROWS
    assert table.column("flights").num_chunks == 7
    assert sorted(table.column("flights").to_pylist()) == list(range(ROWS))
