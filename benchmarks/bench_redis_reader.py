r"""Reads from Redis beside the same client without versions: one key, a thousand keys, and under a writer.

    tools/run python tests/services/run.py redis -- \
        python benchmarks/bench_redis_reader.py --store {redis} [--keys 400000]

Bare: redis-py, an HGET of a hash that holds the key, or one pipeline with an HMGET per hash. Rounds
of both in turns; printed are medians of all calls, and their ratio. Then p99 of ``get`` at rest, and while
another process applies, seals, publishes and merges versions of as many changes as there are keys. A read
that waits keeps those behind it from being asked, so that a few long stalls vanish among many quick reads:
p99 is given once more for reads that come every millisecond, whatever the one before does (the correction
of "coordinated omission" in HdrHistogram, https://hdrhistogram.github.io/HdrHistogram/).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from harness import (
    alternate_calls,
    keys_up_to,
    microseconds_of,
    new_folder,
    parser_of,
    percentile,
    write_versions,
    writer_of,
)

import tidegate
from tidegate.committers.steps.retire import retire_up_to
from tidegate.keys.groups import key_group
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.aliases import Target
from tidegate.sinks.open_store import open_store

KEY_GROUPS = 128


def write(store: str, namespace: str, wal: str, keys: int, versions: int) -> None:
    """Write versions that change every key, each merged as soon as it may be."""
    dropped = 0

    def retire(coordinator: Any) -> None:
        nonlocal dropped
        log, store, options = coordinator.log, coordinator.store, coordinator.options
        dropped = retire_up_to(log, store, coordinator.folded, options, lambda: False, dropped)

    with writer_of(Endpoints(namespace, wal, store), Options(key_groups=KEY_GROUPS)) as coordinator:
        write_versions(coordinator, keys_up_to(keys), versions, lambda: retire(coordinator))


def p99(samples: list[float]) -> float:
    return percentile(samples, 0.99)


def every_ms(took: list[float]) -> list[float]:
    """What reads had waited that had come every 1,000 us, also while one of these was out."""
    return [each - behind for each in took for behind in range(0, max(int(each), 1), 1_000)]


def main() -> None:
    parser = parser_of(__doc__, store=True, keys=400_000)
    parser.add_argument("--write", nargs=3, metavar=("NAMESPACE", "WAL", "VERSIONS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        namespace, wal, versions = arguments.write
        write(arguments.store, namespace, wal, arguments.keys, int(versions))
        return
    with new_folder() as folder:
        namespace, wal = f"bench-{os.getpid()}", f"file://{folder}/wal"
        write(arguments.store, namespace, wal, arguments.keys, 2)
        compare(arguments.store, namespace, arguments.keys)
        under_a_writer(arguments.store, namespace, wal, arguments.keys)
        open_store(arguments.store, namespace).drop()


def compare(url: str, namespace: str, count: int) -> None:
    client: Any = redis.Redis.from_url(url)
    keys = keys_up_to(count)
    store = open_store(url, namespace)
    identity = store.identity()
    assert identity is not None
    hashes = {group: f"tg:{{{namespace}/{group}}}:t:d:2:{identity.uuid}" for group in range(KEY_GROUPS)}
    chance = random.Random(1)
    many = [keys[chance.randrange(count)] for _ in range(1_000)]

    def bare_one() -> Any:
        key = keys[chance.randrange(count)]
        return json.loads(client.hget(hashes[key_group(key, KEY_GROUPS)], key)[1:])

    def bare_many() -> Any:
        by_group = defaultdict(list)
        for key in many:
            by_group[key_group(key, KEY_GROUPS)].append(key)
        pipe = client.pipeline(transaction=False)
        for group, of_group in by_group.items():
            pipe.hmget(hashes[group], of_group)
        return [json.loads(value[1:]) for values in pipe.execute() for value in values]

    store.aliases().set(f"{namespace}-live", Target(namespace, identity.uuid))
    gate = tidegate.connect(url, namespace=namespace)
    alias = tidegate.connect(url, namespace=f"{namespace}-live")
    newest, by_alias = gate.table("t"), alias.table("t")
    names = [key.decode() for key in keys]
    many_names = [key.decode() for key in many]
    with gate.snapshot() as snapshot:
        table = snapshot.table("t")
        assert table.get(names[5]) == {"n": 1, "text": "x" * 40}
        reads: dict[str, tuple[Callable[[], object], Callable[[], object], int]] = {
            "get, one key": (bare_one, lambda: table.get(names[chance.randrange(count)]), 1_000),
            "get, the newest": (bare_one, lambda: newest.get(names[chance.randrange(count)]), 1_000),
            "get, by an alias": (bare_one, lambda: by_alias.get(names[chance.randrange(count)]), 1_000),
            "get_many, 1,000 keys": (bare_many, lambda: table.get_many(many_names), 20),
        }
        results = {
            name: alternate_calls({"bare": bare, "ours": ours}, 10, calls).values()
            for name, (bare, ours, calls) in reads.items()
        }
    print(f"{count:,} keys in {KEY_GROUPS} key groups, two versions of each; p50 in microseconds")
    for name, (bare, ours) in results.items():
        print(f"{name:22} bare redis-py {bare:9.1f}   tidegate {ours:9.1f}   ratio {ours / bare:.2f}")
    store.aliases().drop(f"{namespace}-live")
    for each in (alias, gate, store, client):
        each.close()


def under_a_writer(url: str, namespace: str, wal: str, count: int) -> None:
    """Both kinds of reads in turns, at rest and beside the writer: what the machine and Redis do to any
    client stands beside what they do to tidegate's.
    """
    gate = tidegate.connect(url, namespace=namespace)
    client: Any = redis.Redis.from_url(url)
    client.hset("bench-bare", mapping={b"key-%07d" % at: b"x" * 60 for at in range(10_000)})
    table, chance = gate.table("t"), random.Random(2)

    def ours() -> object:
        return table.get(f"key-{chance.randrange(count):07}")

    def bare() -> object:
        return client.hget("bench-bare", b"key-%07d" % chance.randrange(10_000))

    reads = {"bare HGET": bare, "tidegate": ours}
    at_rest: dict[str, list[float]] = {name: [] for name in reads}
    busy: dict[str, list[float]] = {name: [] for name in reads}
    for _ in range(50):
        for name, read in reads.items():
            at_rest[name] += microseconds_of(read, 200)
    command = [sys.executable, __file__, "--store", url, "--keys", str(count), "--write", namespace, wal, "3"]
    started = time.monotonic()
    with subprocess.Popen(command) as writer:
        while writer.poll() is None:
            for name, read in reads.items():
                busy[name] += microseconds_of(read, 200)
    took = time.monotonic() - started
    print(f"get at the newest version, while 3 versions of {count:,} changes came and merged, {took:.1f} s:")
    kinds = {"p50": statistics.median, "p99": p99, "p99, a read every ms": lambda each: p99(every_ms(each))}
    for name in reads:
        for word, figure in {**kinds, "longest": max}.items():
            rest, under = figure(at_rest[name]), figure(busy[name])
            ratio = f"{under / rest:.1f}x"
            print(f"  {name:9} {word:21} {rest:6.0f} us at rest, {under:6.0f} us beside it: {ratio}")
    print(f"  ({len(busy['tidegate']):,} reads of each under the writer)")
    client.unlink("bench-bare")
    client.close()
    gate.close()


if __name__ == "__main__":
    main()
