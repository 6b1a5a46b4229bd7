r"""Functions beside scripts (EVALSHA) on Redis: a read of one key, and a small version.

    tools/run python tests/services/run.py redis -- \
        python benchmarks/bench_redis_functions.py --store {redis}

Both clients work alternately on two namespaces of the same rows. Printed are medians in microseconds, and the
median of the paired ratios, scripts to functions.
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from collections.abc import Callable

from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Identity
from tidegate.sinks.store import Store
from tidegate.testing.store.harness import get, put

KEY_GROUPS, ROWS, ROUNDS = 8, 100, 500
CONTENT = {"t": {b"key-%d" % at: b"x" * 60 for at in range(ROWS)}}


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e6


def version(store: Store, number: int) -> None:
    """Apply, seal, publish, and retire the one before: what a small batch asks of the store."""
    put(store, number, CONTENT)
    store.announce(number)


def compare(name: str, by_function: Callable[[int], object], by_script: Callable[[int], object]) -> None:
    pairs = []
    for at in range(1, ROUNDS + 1):
        works = [lambda at=at: by_function(at), lambda at=at: by_script(at)]
        first, second = (timed(works[(at + turn) % 2]) for turn in range(2))
        pairs.append((first, second) if at % 2 == 0 else (second, first))
    functions, scripts = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(script / function for function, script in pairs)
    print(f"{name}: functions {functions:.0f} us, scripts {scripts:.0f} us, ratio {ratio:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    store = parser.parse_args().store
    stores = []
    for functions in (True, False):
        name = f"bench{uuid.uuid4().hex[:8]}"
        made = open_store(store, name, {"functions": functions})
        made.create(Identity(uuid.uuid4().hex, name, KEY_GROUPS))
        stores.append(made)
    try:
        one, other = stores
        compare("a version of 100 rows", lambda at: version(one, at), lambda at: version(other, at))
        keys = [b"key-1"]
        compare("a read", lambda _: get(one, "t", keys, ROUNDS), lambda _: get(other, "t", keys, ROUNDS))
        many = list(CONTENT["t"])
        both = [lambda _, store=store: get(store, "t", many, ROUNDS) for store in (one, other)]
        compare("a read of 100", *both)
    finally:
        for made in stores:
            made.drop()
            made.close()


if __name__ == "__main__":
    main()
