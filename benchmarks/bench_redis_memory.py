r"""What a key costs Redis: in the base, in each layer, and as a plain SET of the same bytes.

    tools/run python tests/services/run.py redis -- python benchmarks/bench_redis_memory.py --store {redis}

Every version rewrites all keys (11 bytes, values of 66); what a layer pushes out is merged at once. Then the
house-keeping: MEMORY USAGE of all keys of a namespace with one version in 128 key groups, beside one plain
hash of the same rows.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from bench_redis_reader import write

from tidegate.sinks.open_store import open_store

PIPELINE = 5_000


def house_keeping(client: Any, store: str, namespace: str, rows: int) -> None:
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        write(store, namespace, f"file://{folder}/wal", rows, 1)
    plain, ours, hashes = f"{namespace}-plain", 0, 0
    for key in client.scan_iter(match=f"tg:{{{namespace}*", count=1_000):
        used = client.memory_usage(key, samples=0)
        ours += used
        if b":d:" in key:
            hashes += used
            client.hset(plain, mapping=client.hgetall(key))
    bare = client.memory_usage(plain, samples=0)
    assert client.hlen(plain) == rows
    more = (ours - bare) / rows
    print(
        f"{rows:,} rows: a plain hash {bare / rows:.1f} bytes a key, all of the namespace"
        f" {ours / rows:.1f}: {more:+.1f}, of which {(ours - hashes) / rows:.1f} are not hashes of rows"
    )
    open_store(store, namespace).drop()
    client.unlink(plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", required=True)
    parser.add_argument("--keys", type=int, default=200_000)
    arguments = parser.parse_args()
    client: Any = redis.Redis.from_url(arguments.store)

    def used() -> int:
        return int(client.info("memory")["used_memory"])

    namespace = f"bench-{os.getpid()}"
    empty, names = used(), [f"{namespace}:{at:07d}"[-11:] for at in range(arguments.keys)]
    for at in range(0, arguments.keys, PIPELINE):
        pipe = client.pipeline(transaction=False)
        for name in names[at : at + PIPELINE]:
            pipe.set(name, "x" * 66)
        pipe.execute()
    print(f"plain SETs:                {(used() - empty) / arguments.keys:6.1f} bytes a key")
    empty = used()
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        for version in range(1, 5):
            write(arguments.store, namespace, f"file://{folder}/wal", arguments.keys, 1)
            print(f"tidegate, after version {version}: {(used() - empty) / arguments.keys:6.1f} bytes a key")
    open_store(arguments.store, namespace).drop()
    for rows in (1_000, 100_000):
        house_keeping(client, arguments.store, f"{namespace}-{rows}", rows)
    for at in range(0, arguments.keys, PIPELINE):
        client.unlink(*names[at : at + PIPELINE])


if __name__ == "__main__":
    main()
