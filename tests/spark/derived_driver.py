"""The driver of test_derived_killed.py: orders with three derived tables, and places of kills and reruns.

    python derived_driver.py FOLDER OPTIONS PLACE

OPTIONS: those of the sink, as JSON. PLACE: ``stage`` kills this driver and its JVM in batch 1 from a staging
task whose frames are durable, ``derive`` from a task that has staged groups' rows. ``again``: in each batch
the first run of a staging task, and of a task that derives, fails after its frames are durable. ``none``:
nothing.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.spark_driver import run_query, session
from tidegate.spark import Derived, VersionedSink
from tidegate.spark.staging import job

DERIVED = [
    Derived(
        "customers",
        of="orders",
        key="customer",
        aggregates={
            "orders": "count",
            "total": ("sum", "n"),
            "least": ("min", "n"),
            "top": ("top", "k", 3, "n"),
        },
    ),
    Derived("even", of="orders", key=["customer", "k"], where="even", aggregates={"mean": ("avg", "n")}),
    Derived("spent", of="visits", key="customer", aggregates={"n": "count", "visits": ("sum", "n")}),
]


def write_input(folder: Path) -> None:
    """A file for each batch, older first; the last but one comes twice."""
    (folder / "input").mkdir()
    chance = random.Random(7)
    batches = [[(f"k{chance.randrange(60)}", chance.randrange(-9, 99)) for _ in range(40)] for _ in range(8)]
    for index, rows in enumerate([*batches, batches[-1]]):
        path = folder / "input" / f"{index}.json"
        path.write_text("\n".join(json.dumps({"k": key, "n": n}) for key, n in rows))
        os.utime(path, (1_600_000_000 + 100 * index,) * 2)


def recount(orders: dict[str, Any], visits: dict[str, Any]) -> dict[str, dict[Any, Any]]:
    """The derived tables of these rows."""
    customers, even, spent, ranks = {}, {}, {}, {}
    for of, rows in ((customers, orders), (spent, visits)):
        for row in rows.values():
            if row["customer"] is not None:
                of.setdefault(row["customer"], []).append(row["n"])
    for key, row in orders.items():
        if row["customer"] is not None:
            ranks.setdefault(row["customer"], []).append((row["n"], key))
        if row["customer"] is not None and row["even"]:
            even[row["customer"], key] = row["n"]
    return {
        "customers": {
            name: {
                "orders": len(all_n),
                "total": sum(all_n),
                "least": min(all_n),
                "top": [key for _, key in sorted(ranks[name])[:-4:-1]],
            }
            for name, all_n in customers.items()
        },
        "even": {key: {"mean": n} for key, n in even.items()},
        "spent": {name: {"n": len(all_n), "visits": sum(all_n)} for name, all_n in spent.items()},
    }


def kill(drivers: tuple[int, ...]) -> None:
    for process in drivers:
        os.kill(process, signal.SIGKILL)
    signal.pause()  # the JVM takes this worker along


def faulty(original: Callable[..., Any], place: str, drivers: tuple[int, ...]) -> Callable[..., Any]:
    """A maker of tasks that kill or fail once their frames are durable."""

    def make(*arguments: Any) -> Any:
        run = original(*arguments)

        def task(batches: Iterator[Any]) -> Iterator[Any]:
            from pyspark import TaskContext

            output, context = list(run(batches)), TaskContext.get()
            if place == "kill" and context.getLocalProperty("streaming.sql.batchId") == "1":
                kill(drivers)
            if place == "again" and context.attemptNumber() == 0 and context.partitionId() == 1:
                raise OSError("the first run of a task fails")
            yield from output

        return task

    return make


def write(txn: Any, rows: Any) -> None:
    """Each kind of call in turn."""
    orders = rows.selectExpr("k", "n", "'c' || pmod(n, 5) AS customer", "n % 2 = 0 AS even")
    visits = rows.selectExpr("k", "1L AS n", "nullif('c' || pmod(n, 3), 'c1') AS customer")
    of = "orders", orders, "k"
    match txn.batch_id % 4:
        case 0:
            txn.upsert(*of, order_by="n", delete_when="n < 0")
        case 1:
            txn.upsert(*of, newer_by="n")
        case 2:
            txn.patch("orders", orders.select("k", "n"), "k", order_by="n")
        case _:
            txn.delete("orders", rows.filter("n > 50"), "k")
    txn.reduce("visits", visits, "k", {"n": "sum", "customer": "last"}, order_by="n")


def main(folder: Path, options: dict[str, Any], place: str) -> None:
    spark = session("local[2,4]", "derived")
    drivers = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()), os.getpid()
    at = "kill" if place in ("stage", "derive") else place
    if place in ("stage", "again"):
        job._task = faulty(job._task, at, drivers)
    if place in ("derive", "again"):
        job._derive = faulty(job._derive, at, drivers)
    sink = VersionedSink(parallelism=2, driver_stage_max_rows=0, derived=DERIVED, **options)
    run_query(spark, folder, sink.each(write))
    sink.close()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3])
