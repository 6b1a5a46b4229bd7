"""Reading from SQLite: tidegate's reader beside bare sqlite3 on the same files, in one run.

    tools/run python benchmarks/bench_reader.py [--keys 100000]

A namespace with two versions of every key is read through ``tidegate.connect`` and, with the
statements of docs/storage-format.md, by bare sqlite3: one key, and a thousand keys at once. The
bare reads check nothing (no horizon, no floor) and decode the same JSON. Printed: p50 of each
and the ratio.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tidegate
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.keys.groups import key_group
from tidegate.options import Endpoints, Options
from tidegate.sinks.open_store import open_store
from tidegate.testing import arrow_barrier
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Column, TableSchema

KEY_GROUPS, SHARDS = 128, 16
SCHEMA = TableSchema((Column("key", "string"),), (Column("n", "bigint"), Column("text", "string")))
ONE = "SELECT value FROM t_t WHERE kg = ? AND key = ? AND version <= ? ORDER BY version DESC LIMIT 1"


def p50(times: int, read: Callable[[], object]) -> float:
    """The median of so many reads, in microseconds."""
    took = []
    for _ in range(times):
        started = time.perf_counter_ns()
        read()
        took.append((time.perf_counter_ns() - started) / 1000)
    return statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keys", type=int, default=100_000)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    where = Endpoints("bench", f"file://{folder}/wal", f"sqlite://{folder}/store")
    log, store = open_log(where.wal, "bench"), open_store(where.store, "bench")
    coordinator = Coordinator(where, log, store, Options(key_groups=KEY_GROUPS))
    open_namespace(coordinator, "bench")
    arrow_barrier.BYTES_SCHEMA = SCHEMA  # the rows below are JSON
    keys = [b"key-%07d" % number for number in range(arguments.keys)]
    for version in range(2):
        rows = dict.fromkeys(keys, b'{"n":%d,"text":"%s"}' % (version, b"x" * 40))
        commit(
            coordinator,
            arrow_barrier.ArrowBarrier(log, {"t": rows}, arrow_barrier.batch("bench", version), KEY_GROUPS),
        )
    store.close()

    files = [sqlite3.connect(path) for path in sorted((folder / "store" / "bench").glob("shard-*.sqlite"))]
    chance = random.Random(1)

    def bare_one(key: bytes) -> object:
        group = key_group(key, KEY_GROUPS)
        (value,) = files[group * SHARDS // KEY_GROUPS].execute(ONE, (group, key, 2)).fetchone()
        return json.loads(value[1:])

    gate = tidegate.connect(where.store, namespace="bench")
    names = [key.decode() for key in keys]
    with gate.snapshot() as snapshot:
        table = snapshot.table("t")
        assert table.get(names[0]) == bare_one(keys[0])
        some = [chance.randrange(len(keys)) for _ in range(1_000)]
        results = {
            "get, one key": (
                p50(3_000, lambda: bare_one(keys[chance.randrange(len(keys))])),
                p50(3_000, lambda: table.get(names[chance.randrange(len(keys))])),
            ),
            "get_many, 1,000 keys": (
                p50(50, lambda: [bare_one(keys[one]) for one in some]),
                p50(50, lambda: table.get_many([names[one] for one in some])),
            ),
        }
    print(f"{arguments.keys:,} keys, two versions of each; p50 in microseconds")
    for name, (bare, ours) in results.items():
        print(f"{name:22} bare sqlite3 {bare:9.1f}   tidegate {ours:9.1f}   ratio {ours / bare:.2f}")
    gate.close()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
