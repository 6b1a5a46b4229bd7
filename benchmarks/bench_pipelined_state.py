r"""What pipelined commits gain for stateful batches, with log and store some way off.

    tools/run python tests/services/run.py redis-memory -- \
        python benchmarks/bench_pipelined_state.py --store {redis} [--rounds 3] [--driver-apply 5000]

A broker of its own and the given Redis, each behind a relay that keeps every byte for half of the time there
and back (``--log-ms 2``, ``--store-ms 5``). A query on local[2] sums 50,000 rows a batch by key, over 400,000
keys. Queries with ``commit="sync"`` and pipelined ones take turns. The driver applies versions of up to
``--driver-apply`` changes. Printed: seconds from the second batch's start until the last version is visible,
per batch; and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from far import relayed
from harness import Samples, alternate, new_folder, parser_of, rate, run_batches, sink_in, spark_on

from services.support.kafka.server import KafkaCluster
from tidegate.sinks.redis.client.settings import settings_of

KEYS = 400_000


def query(spark: Any, arguments: argparse.Namespace, name: str, **options: Any) -> float:
    """Run one query on a namespace of its own; return seconds per batch, without the first."""
    began: list[float] = []
    options["driver_apply_max_changes"] = arguments.driver_apply
    with sink_in(None, arguments, name=name, wal_options={}, **options) as sink:

        def add(txn: Any, rows: Any) -> None:
            txn.reduce("sums", rows, key="id", reducers={"n": "sum"})

        each = sink.each(add)

        def write(batch: Any, batch_id: int) -> None:
            began.append(time.monotonic())
            each(batch, batch_id)

        # Consecutive batches have other keys; after eight batches they come again.
        stream = rate(spark, arguments.rows).selectExpr(f"value % {KEYS} as id", "value as n")
        run_batches(stream, write, lambda: len(began) > arguments.batches)
        sink.drain(600)
        return (time.monotonic() - began[1]) / (len(began) - 1)


def main() -> None:
    parser = parser_of(
        __doc__,
        store=True,
        rows=50_000,
        batches=16,
        rounds=3,
        log_ms=2.0,
        store_ms=5.0,
        in_flight=2,
        driver_apply=5_000,
    )
    arguments = parser.parse_args()
    samples: Samples = {"sync": [], "pipelined": []}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(new_folder())
        spark = stack.enter_context(spark_on())
        cluster = stack.enter_context(KafkaCluster(folder / "kafka", proxied=True))
        log_port = cluster.proxied_address(0)[1]
        stack.enter_context(relayed(cluster.proxied_target(0), arguments.log_ms, log_port))
        redis = settings_of(arguments.store, {}).seeds[0]
        port = stack.enter_context(relayed(redis, arguments.store_ms))
        arguments.wal, arguments.store = f"kafka://{cluster.proxied_bootstrap}", f"redis://127.0.0.1:{port}"
        turn = iter(range(1_000))
        ways: dict[str, dict[str, Any]] = {
            "sync": {},
            "pipelined": {"commit": "pipelined", "commit_in_flight": arguments.in_flight},
        }

        def once(way: str) -> None:
            samples[way].append(query(spark, arguments, f"-{next(turn)}", **ways[way]))

        query(spark, arguments, "-first")  # the JVM compiles
        alternate({way: lambda way=way: once(way) for way in ways}, arguments.rounds)
    print(
        f"{arguments.rows:,} rows a batch, {arguments.batches} batches, log {arguments.log_ms:g} ms and store"
        f" {arguments.store_ms:g} ms away; seconds a batch"
    )
    for way, took in samples.items():
        print(f"{way:10} {statistics.median(took):6.3f}   ({', '.join(f'{each:.3f}' for each in took)})")
    print(
        f"sync / pipelined {statistics.median(samples['sync']) / statistics.median(samples['pipelined']):.2f}"
    )


if __name__ == "__main__":
    main()
