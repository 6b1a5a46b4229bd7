r"""What derived tables cost: an upsert alone, with two of them, with values in order, and beside ``reduce``.

    tools/run python benchmarks/bench_derived.py [--keys 1000000] [--batch 50000] [--rounds 5]
    tools/run python benchmarks/bench_derived.py --batch 1000 --rounds 60 --warm-up 20
    tools/run python benchmarks/bench_derived.py --skew 0.5
    tools/run python tests/services/run.py kafka redis-memory -- \
        python benchmarks/bench_derived.py --wal {kafka} --store {redis}

One query, local[2]. Each sink has a namespace of its own with a table of ``--keys`` orders of ``--groups``
customers. All write the same batches of uniform keys, alternately. Each change moves its order to another
customer. ``two``: counts and sums by customer and by day. ``order``: the greatest amount of a customer,
and its three newest orders. ``reduce``: counts and sums by two calls of ``reduce``, which counts changed rows
twice. ``reads``: the bound of ``two``, calls that read and write as many rows, and count nothing.
``--skew``: this share of all orders is of one customer, and ``order`` is left out.
Printed: the median seconds of a batch, and the ratio to the upsert alone.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from harness import (
    UNIT,
    Samples,
    alternate,
    medians,
    new_folder,
    parser_of,
    rate,
    run_batches,
    sink_in,
    spark_on,
)

SUMS = {"orders": "count", "total": ("sum", "amount")}
ORDERS = {"most": ("max", "amount"), "newest": ("top", "id", 3, "at")}


def main() -> None:
    parser = parser_of(
        __doc__,
        wal=False,
        store=False,
        keys=1_000_000,
        groups=10_000,
        batch=50_000,
        rounds=5,
        warm_up=1,
        skew=0.0,
    )
    arguments = parser.parse_args()
    seconds: Samples = {}
    with new_folder() as folder, spark_on() as spark, contextlib.ExitStack() as opened:
        from tidegate.spark import Derived

        both = [Derived(key, of="orders", key=key, aggregates=SUMS) for key in ("customer", "day")]
        in_order = [Derived("customer", of="orders", key="customer", aggregates=ORDERS)]
        derived = {"upsert": [], "two": both, "reduce": [], "reads": []} | (
            {} if arguments.skew else {"order": in_order}
        )
        customer = f"pmod(hash(id, number), {arguments.groups})"
        customer = f"CASE WHEN pmod(hash(number), 1000) < {1000 * arguments.skew} THEN 0 ELSE {customer} END"
        columns = (
            "id",
            f"concat('c', {customer}) AS customer",
            "pmod(hash(number, id), 30) AS day",
            "pmod(hash(id), 1000) AS amount",
            "number AS at",
        )
        rows = spark.range(0, arguments.keys, numPartitions=2).selectExpr("id", "id AS number")
        commits = {}
        for name, tables in derived.items():
            sink = opened.enter_context(
                sink_in(folder / name, arguments, f"-{name}", derived=tables, keep_versions=2)
            )
            sink.load({"orders": rows.selectExpr(*columns)}, token=name, key="id")
            commits[name] = sink.each({"reduce": _reduced, "reads": _read}.get(name, _upserted))

        def write(batch: Any, batch_id: int) -> None:
            sides = {name: (lambda each=each: each(batch, batch_id)) for name, each in commits.items()}
            alternate(sides, 1, seconds, start=batch_id)

        last = arguments.rounds + arguments.warm_up
        numbered = rate(spark, arguments.batch).selectExpr(
            f"cast(floor({arguments.keys} * {UNIT}) AS bigint) AS id", f"value + {arguments.keys} AS number"
        )
        run_batches(numbered.selectExpr(*columns), write, lambda: len(seconds.get("reduce", ())) >= last)
    middle = medians(seconds, arguments.warm_up)
    print(f"{arguments.batch:,} changes of {arguments.keys:,} rows, {arguments.groups:,} customers")
    for name, each in middle.items():
        print(f"{name:8} {each:8.3f} s   {each / middle['upsert']:.2f} of the upsert alone")


def _upserted(txn: Any, rows: Any) -> None:
    txn.upsert("orders", rows, "id", order_by="at")


def _read(txn: Any, rows: Any) -> None:
    txn.upsert("orders", rows, "id", newer_by="at")
    for key in ("customer", "day"):
        txn.patch(key, rows.selectExpr(key, "amount AS total", "at AS orders"), key, order_by="orders")


def _reduced(txn: Any, rows: Any) -> None:
    txn.upsert("orders", rows, "id", order_by="at")
    for key in ("customer", "day"):
        counted = rows.selectExpr(key, "1L AS orders", "amount")
        txn.reduce(key, counted, key, {"orders": "sum", "amount": "sum"})


if __name__ == "__main__":
    main()
