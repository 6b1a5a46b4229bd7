r"""Versions with few rows in each of many key groups, in Cassandra: sent together, and each group alone.

    tools/run python tests/services/run.py cassandra -- \
        python benchmarks/bench_cassandra_groups.py --store {cassandra} [--rounds 6]

No Spark, no log: one process applies versions whose change-log is in memory already. Baseline: the same with
a request for each key group. Both in turns; printed are medians behind the first round, and their ratios:

    apply      seconds until all rows and their counts are acknowledged
    processor  seconds of this process's own processor of that, its driver's threads included
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import uuid
from typing import Any

import pyarrow as pa

from tidegate.sinks.cassandra import rows as cassandra_rows
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Identity, Stamp
from tidegate.sinks.store import Store
from tidegate.wal.frame import Chunk, Run

GRID = [(1_024, 1), (1_024, 10), (8_192, 12), (128, 800)]
VALUE_BYTES = 66
TOGETHER_BYTES = {"together": cassandra_rows.TOGETHER_BYTES, "alone": 0}


def changes(key_groups: int, rows: int) -> Chunk:
    def column(values: list[bytes]) -> Any:
        return pa.array(values, pa.binary())

    return Chunk(
        0,
        [
            Run(
                group,
                "t",
                column([b"key-%d-%d" % (group, row) for row in range(rows)]),
                column([b"+" + os.urandom(VALUE_BYTES - 1) for _ in range(rows)]),
            )
            for group in range(key_groups)
        ],
    )


def measured(store: Store, key_groups: int, rows: int, rounds: int) -> None:
    chunk = changes(key_groups, rows)
    counts = {group: {"t": rows} for group in range(key_groups)}
    took: dict[str, list[tuple[float, float]]] = {way: [] for way in TOGETHER_BYTES}
    version = 0
    for turn in range(rounds + 1):
        for way in sorted(TOGETHER_BYTES, reverse=turn % 2 == 1):
            version += 1
            stamp = Stamp(version, time.time_ns() // 1_000)
            cassandra_rows.TOGETHER_BYTES = TOGETHER_BYTES[way]
            began, before = time.perf_counter(), time.process_time()
            store.apply(stamp, chunk)
            took[way].append((time.perf_counter() - began, time.process_time() - before))
            store.seal(stamp, counts)
    medians = {
        way: [statistics.median(each) for each in zip(*some[1:], strict=True)] for way, some in took.items()
    }
    for way, (apply, processor) in medians.items():
        print(
            f"{key_groups:>6,} key groups of {rows:>4,} rows  {way:9}  apply {apply:6.3f} s"
            f"  processor {processor:6.3f} s"
        )
    ratios = [mine / base for mine, base in zip(medians["together"], medians["alone"], strict=True)]
    print(f"{'':36}ratio      apply {ratios[0]:6.2f}    processor {ratios[1]:6.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", required=True)
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    for key_groups, rows in GRID:
        namespace = f"bench-{uuid.uuid4().hex[:8]}"
        store = open_store(arguments.store, namespace, {"create": True})
        try:
            store.create(Identity(uuid.uuid4().hex, namespace, key_groups))
            store.claim(1, "bench")
            measured(store, key_groups, rows, arguments.rounds)
            store.drop()
        finally:
            store.close()


if __name__ == "__main__":
    main()
