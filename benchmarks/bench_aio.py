"""Reading from Redis in an event loop: `get` through tidegate.aio beside bare redis.asyncio, in one run.

    tools/run python tests/services/run.py redis -- python benchmarks/bench_aio.py {redis}

So many tasks ask for one key after the other. Bare: an HGET of the row's bytes through redis.asyncio with a
connection for each task, without a version, and the same JSON decoded. Tidegate: `get` of a snapshot (one
function call, with the server's id, floor and layers compared) and of the gate (one more, for the newest
version). Printed: requests/s, the median of three rounds that alternate, and the ratio to bare.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable

from redis.asyncio import BlockingConnectionPool, Redis

import tidegate.aio
from tidegate.options import Options
from tidegate.testing.example import Example

KEYS, ROUNDS = 2_000, 3
TASKS = (1, 16, 128)

Get = Callable[[str], Awaitable[object]]


async def rate(get: Get, tasks: int, seconds: float) -> float:
    """Requests per second of so many tasks at once."""
    end, done = time.perf_counter() + seconds, 0

    async def ask(chance: random.Random) -> None:
        nonlocal done
        while time.perf_counter() < end:
            found = await get(f"N{chance.randrange(KEYS)}")
            assert found is not None
            done += 1

    started = time.perf_counter()
    await asyncio.gather(*(ask(random.Random(n)) for n in range(tasks)))
    return done / (time.perf_counter() - started)


async def measure(url: str, namespace: str, seconds: float) -> None:
    pool = BlockingConnectionPool.from_url(url, max_connections=max(TASKS), protocol=2)
    async with (
        Redis(connection_pool=pool) as bare,
        await tidegate.aio.connect(url, namespace) as gate,
        gate.snapshot() as snapshot,
    ):
        pinned, newest = snapshot.table("aircraft"), gate.table("aircraft")

        async def bare_get(key: str) -> object:
            return json.loads(await bare.hget(f"bench:{namespace}", key))

        await bare.hset(
            f"bench:{namespace}",
            mapping={f"N{n}": b'{"carrier":"UA","flights":%d}' % n for n in range(KEYS)},
        )
        gets: dict[str, Get] = {"bare HGET": bare_get, "snapshot get": pinned.get, "gate get": newest.get}
        for tasks in TASKS:
            found: dict[str, list[float]] = {name: [] for name in gets}
            for get in gets.values():
                await rate(get, tasks, seconds / 5)
            for _ in range(ROUNDS):
                for name, get in gets.items():
                    found[name].append(await rate(get, tasks, seconds))
            medians = {name: statistics.median(rates) for name, rates in found.items()}
            shown = "   ".join(
                f"{name} {median:8,.0f}/s  {median / medians['bare HGET']:.2f}x"
                for name, median in medians.items()
            )
            print(f"{tasks:4} tasks   {shown}")
        await bare.unlink(f"bench:{namespace}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", help="redis://host:port")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    arguments = parser.parse_args()
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        writer = Example(f"file://{folder}/wal", arguments.url, namespace, options=Options(key_groups=16))
        try:
            for _ in range(2):
                rows = {f"N{n}": {"carrier": "UA", "flights": n} for n in range(KEYS)}
                writer.write({"aircraft": rows})
            asyncio.run(measure(arguments.url, namespace, arguments.seconds))
        finally:
            writer.driver.store.drop()
            writer.close()


if __name__ == "__main__":
    main()
