r"""How long a merge takes on a Redis that is some way off, and how long others wait there meanwhile.

    tools/run python tests/services/run.py redis -- python benchmarks/bench_redis_far_merge.py --store {redis}

The way is a relay on this machine that keeps every byte for half of the time there and back. "fixed" has two
flights on their way, however far the server is. A reader beside the server reads a key every 5 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from far import relayed

from tidegate.sinks.records import Identity, ReadAt
from tidegate.sinks.redis.client import calls
from tidegate.sinks.redis.client.settings import settings_of
from tidegate.sinks.redis.store import RedisStore
from tidegate.testing.store.harness import counts_of, get, put, stamp

WAYS = {"fixed": math.inf, "by the way": calls.FLIGHT_S}
EVERY_S = 0.005


@contextlib.contextmanager
def far(url: str, way_ms: float) -> Iterator[str]:
    """The URL of the same server, so far off."""
    with relayed(settings_of(url, {}).seeds[0], way_ms) as port:
        yield f"redis://127.0.0.1:{port}"


class Beside:
    """Reads a key every so often; what each read took, counted from when it was due."""

    def __init__(self, store: RedisStore, key: bytes, version: int) -> None:
        self.took: list[float] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(store, key, version))

    def _run(self, store: RedisStore, key: bytes, version: int) -> None:
        due = time.monotonic()
        while not self._ending.is_set():
            store.get(ReadAt("t", version), key)
            self.took.append(time.monotonic() - due)
            due += EVERY_S
            time.sleep(max(0.0, due - time.monotonic()))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ending.set()
            self._thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", required=True)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--groups", type=int, nargs="+", default=[128])
    parser.add_argument("--ways-ms", type=float, nargs="+", default=[0.0, 1.0, 5.0])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{arguments.rows:,} rows merged onto as many, median of {arguments.rounds}; reads beside it, p99")
    print(f"{'groups':>6} {'way, ms':>8} {'flights':>11} {'s':>7} {'rows/s':>9} {'p99, ms':>8}")
    for groups in arguments.groups:
        _measure(arguments, groups)


def _measure(arguments: argparse.Namespace, groups: int) -> None:
    namespace = f"bench-{os.getpid()}-{groups}"
    near = RedisStore(arguments.store, namespace)
    keys = [b"key-%08d" % at for at in range(arguments.rows)]
    try:
        near.create(Identity("bench", namespace, groups))
        near.claim(1, "bench")
        put(near, 1, {"t": dict.fromkeys(keys, b"x" * 60)}, groups)
        version = 1
        near.announce(1)
        _retire(near, keys, 1, groups)
        for way_ms in arguments.ways_ms:
            with far(arguments.store, way_ms) as url:
                took: dict[str, list[float]] = {name: [] for name in WAYS}
                reads: dict[str, list[float]] = {name: [] for name in WAYS}
                for _ in range(arguments.rounds):
                    for name, flight_s in WAYS.items():
                        version += 1
                        put(near, version, {"t": dict.fromkeys(keys, b"%060d" % version)}, groups)
                        near.announce(version)
                        calls.FLIGHT_S = flight_s
                        store = RedisStore(url, namespace)
                        store.pointer()
                        beside = Beside(near, keys[0], version)
                        with beside.running():
                            begun = time.monotonic()
                            _retire(store, keys, version, groups)
                            took[name].append(time.monotonic() - begun)
                        reads[name] += beside.took
                        store.close()
                        assert get(near, "t", keys[:1], version) == [b"%060d" % version]
            for name in WAYS:
                middle = statistics.median(took[name])
                p99 = statistics.quantiles(reads[name], n=100)[98] * 1e3
                print(
                    f"{groups:6} {way_ms:8.1f} {name:>11} {middle:7.2f} {arguments.rows / middle:9,.0f}"
                    f" {p99:8.2f}",
                    flush=True,
                )
    finally:
        near.drop()
        near.close()


def _retire(store: RedisStore, keys: list[bytes], version: int, groups: int) -> None:
    counts = counts_of({"t": dict.fromkeys(keys, b"")}, groups)
    assert store.retire(stamp(version), counts, iter(()))


if __name__ == "__main__":
    sys.exit(main())
