"""The cost of a small table in a namespace with many key groups, with and without key groups of its own.

    tools/run python tests/services/run.py redis -- python benchmarks/bench_small_tables.py {redis}
    tools/run python tests/services/run.py cassandra -- python benchmarks/bench_small_tables.py {cassandra}

Each version changes every row. The log is in files, and one process stages and applies, so the times of a
version are those of the store and of the plan.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable

import tidegate
from tidegate.options import Options
from tidegate.options.endpoints import parse_stores
from tidegate.testing.example import Example


def median_ms(rounds: int, run: Callable[[int], object]) -> float:
    """Return the median of the times of these runs, in milliseconds."""
    took = []
    for number in range(rounds):
        began = time.perf_counter()
        run(number)
        took.append(1000 * (time.perf_counter() - began))
    return statistics.median(took)


def measure(store: str, key_groups: int, of_table: int, keys: int, rounds: int) -> list[str]:
    """Write and read one table; return the row of the result."""
    name = f"small{uuid.uuid4().hex[:8]}"
    options = Options(
        key_groups=key_groups,
        table_key_groups={"airports": of_table},
        apply_deadline_s=300,
        allow_unsafe=True,
    )
    store_options = {"create": True} if store.startswith("cassandra") else {}
    (at,) = parse_stores(store, store_options)
    with tempfile.TemporaryDirectory() as folder:
        example = Example(f"file://{folder}", [at], name, options=options)

        def write(number: int) -> None:
            example.write({"airports": {f"A{n}": {"departures": number, "delay": 0.5} for n in range(keys)}})

        write(-1)
        written = median_ms(rounds, write)
        with tidegate.connect(store, name) as gate, gate.snapshot() as snapshot:
            table = snapshot.table("airports")
            scanned = median_ms(rounds, lambda _: list(table.scan()))
            asked = [f"A{n}" for n in range(0, keys, max(keys // 100, 1))]
            read = median_ms(rounds, lambda _: table.get_many(asked))
        example.close()
    return [f"{of_table:,}", *(f"{value:,.1f} ms" for value in (written, scanned, read))]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("store")
    arguments.add_argument("--key-groups", type=int, default=4_096)
    arguments.add_argument("--of-table", type=int, default=4)
    arguments.add_argument("--keys", type=int, default=1_000)
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    print("| key groups of the table | a version, until visible | a scan | 100 keys |\n|---|---|---|---|")
    for of_table in (given.key_groups, given.of_table):
        row = measure(given.store, given.key_groups, of_table, given.keys, given.rounds)
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
