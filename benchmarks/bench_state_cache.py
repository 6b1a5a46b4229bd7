r"""What the cache of state is worth: ``reduce`` with all in memory, 57 % of it on a disk, 43 % kept, none.

    tools/run python benchmarks/bench_state_cache.py [--keys 100000] [--batch 25000] [--rounds 3]
    tools/run python tests/services/run.py redis -- python benchmarks/bench_state_cache.py --store {redis}

local[2]. Per mode one query over Spark's rate-micro-batch: it writes every key once, then ``--rounds``
batches of uniform keys, then as many of zipf ones (rank r about 1/r of the time). A state is about 100
bytes. Printed, medians over the rounds: seconds of a batch, seconds that the slower task spent reading
state, the share of keys that the cache knew; and ratios to "no cache".
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from harness import UNIT, new_folder, parser_of, rate, run_batches, sink_in, spark_on

TEXT_BYTES, ROW_BYTES = 70, 150
"""A state is a JSON object of about 100 bytes; with its key and place a row of the cache takes 150."""


class Batch(NamedTuple):
    """One batch's seconds, those of reading state, and the share of keys that were known."""

    seconds: float
    reading: float
    known: float


def keys_of(arguments: argparse.Namespace) -> str:
    """The key of a row by its number: first every key, then uniform, then zipf."""
    filled = -(-arguments.keys // arguments.batch) * arguments.batch
    zipf_from = filled + (arguments.rounds + 1) * arguments.batch
    return (
        f"CASE WHEN value < {filled} THEN value % {arguments.keys}"
        f" WHEN value < {zipf_from} THEN floor({arguments.keys} * {UNIT})"
        f" ELSE floor(pow({arguments.keys}, {UNIT})) - 1 END"
    )


def run(
    spark: Any, arguments: argparse.Namespace, cache_bytes: int, memory_bytes: int
) -> dict[str, list[Batch]]:
    """The batches of one mode, by their keys' distribution; the first of each only warms up."""
    fills = -(-arguments.keys // arguments.batch)
    count = fills + 2 * (arguments.rounds + 1)
    batches: list[Batch] = []

    def reduce(txn: Any, rows: Any) -> None:
        txn.reduce("state", rows, key="k", reducers={"n": "sum", "text": "last"}, order_by="value")

    options = {"state_cache_bytes": cache_bytes, "state_memory_bytes": memory_bytes, "keep_versions": 1}
    with (
        new_folder() as folder,
        sink_in(
            folder, arguments, f"-{cache_bytes}-{memory_bytes}", local_dir=str(folder / "local"), **options
        ) as sink,
    ):
        commit = sink.each(reduce)

        def write(rows: Any, batch_id: int) -> None:
            started = time.perf_counter()
            commit(rows, batch_id)
            state = sink.last_state
            asked = state.hits + state.absent + state.misses
            known = (state.hits + state.absent) / asked if asked else 0.0
            batches.append(Batch(time.perf_counter() - started, state.seconds, known))

        stream = rate(spark, arguments.batch).selectExpr(
            f"cast(cast({keys_of(arguments)} as bigint) as string) AS k",
            "value AS n",
            f"rpad(cast(value as string), {TEXT_BYTES}, '.') AS text",
            "value",
        )
        run_batches(stream, write, lambda: len(batches) == count)
    uniform, zipf = fills + 1, fills + arguments.rounds + 2
    return {
        "uniform": batches[uniform : uniform + arguments.rounds],
        "zipf": batches[zipf : zipf + arguments.rounds],
    }


def main() -> None:
    arguments = parser_of(__doc__, wal=False, store=False, keys=100_000, batch=25_000, rounds=3).parse_args()
    size = arguments.keys * ROW_BYTES
    part = int(0.43 * size)
    modes = {
        "no cache": (0, 0),
        "43 %": (part, part),
        "57 % disk": (4 * size, part),
        "all": (4 * size, 4 * size),
    }
    with spark_on() as spark:
        by_mode = {name: run(spark, arguments, *budgets) for name, budgets in modes.items()}
    print(f"{arguments.keys:,} keys of about 100 bytes, {arguments.batch:,} rows a batch")
    print(f"{'':18} {'batch s':>8} {'ratio':>6} {'reading s':>10} {'ratio':>6} {'known':>6}")
    for keys in ("uniform", "zipf"):
        medians = {
            name: [statistics.median(column) for column in zip(*of_mode[keys], strict=True)]
            for name, of_mode in by_mode.items()
        }
        for name, (batch, reading, known) in medians.items():
            whole, read = batch / medians["no cache"][0], reading / medians["no cache"][1]
            print(f"{keys:8}{name:10} {batch:8.2f} {whole:6.2f} {reading:10.3f} {read:6.2f} {known:6.1%}")


if __name__ == "__main__":
    main()
