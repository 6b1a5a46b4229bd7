"""A query over FOLDER/input to its end, in a classic session or through Spark Connect: a file is a batch.

    python connect_query.py FOLDER NAMESPACE MASTER [PLACE]

MASTER: ``local[2]``, or the URL of a Spark Connect server. PLACE: ``server`` kills the server from the
function of batch 1, ``client`` this process. Every call of a transaction is made in each batch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from support.spark_driver import session
from tidegate.spark import Derived, VersionedSink, configure

BATCHES = [
    [{"k": f"k{n}", "n": n} for n in range(30)],
    [{"k": f"k{n}", "n": 100 * n - 100} for n in range(10)],  # k0 is deleted
    [{"k": f"k{n}", "n": 7} for n in range(0, 40, 3)],
    [{"k": "k1", "n": -1}],
]


STARTS = 30


def started(sink, *arguments):
    """Call ``start``, again on a loaded machine: Spark gives the process of foreachBatch 10 s."""
    for _ in range(STARTS):
        try:
            return sink.start(*arguments)
        except PySparkException as error:
            if "worker failed to connect back" not in str(error):
                raise
    raise TimeoutError("the process of foreachBatch does not start")


def add_input(folder: Path, *numbers: int) -> None:
    """Add the files of these batches, older first."""
    (folder / "input").mkdir(exist_ok=True)
    for number in numbers:
        path = folder / "input" / f"{number}.json"
        hidden = path.with_name(f"_{path.name}")  # Spark does not look at such names
        hidden.write_text("\n".join(map(json.dumps, BATCHES[number])))
        os.utime(hidden, (1_600_000_000 + 100 * number,) * 2)
        hidden.rename(path)


def add(key, rows, state, emit):
    """Add to a key's state, and list its last number."""
    total = (state or {"n": 0})["n"] + sum(row["n"] for row in rows)
    emit("listed", key, {"n": total})
    return {"n": total}


def late(key, state, emit):
    """Keep a state that had no rows for long."""
    return state


def list_all(instance, rows, state, emit):
    """Keep every number that came."""
    return [*state, *(b"%d" % row["n"] for row in rows)]


def make_all_calls(txn, rows):
    """Make each call once."""
    by = {"key": "k", "order_by": "n"}
    txn.upsert("newest", rows, delete_when="n < 0", **by)
    txn.upsert("greatest", rows, key="k", newer_by="n")
    txn.reduce("sums", rows, key="k", reducers={"n": "sum"})
    txn.replace("only", rows, **by)
    txn.patch("patched", rows, ignore_nulls=True, **by)
    txn.apply_changes("changes", rows, key="k", sequence_by="n")
    txn.upsert("left", rows, **by)
    txn.delete("left", rows.where("n = 7"), key="k")
    schemas = {"outputs": {"listed": ("k string", "n bigint")}, "schema": "n bigint"}
    txn.update("states", rows, key="k", fn=add, timeout="3 days", on_timeout=late, order_by="n", **schemas)
    txn.local_state("seen", rows, list_all, order_by="n")


def main(folder: Path, namespace: str, master: str, place: str = "") -> None:
    client = os.getpid()

    def write(txn, rows):
        if txn.batch_id == 1 and place:
            (folder / "killed").touch()
            os.kill(os.getppid() if place == "server" else client, signal.SIGKILL)
        make_all_calls(txn, rows)

    if master.startswith("sc:"):
        spark = configure(SparkSession.builder.remote(master)).getOrCreate()
    else:
        spark = session(master, "connect query")
    log, store = f"file://{folder}/wal", f"sqlite://{folder}/store"
    derived = [Derived("by_n", of="newest", key="n", aggregates={"keys": "count", "sum": ("sum", "n")})]
    where = {"namespace": namespace, "wal": log, "store": store}
    sink = VersionedSink(**where, parallelism=2, small_batch_rows=0, derived=derived)
    rows = spark.readStream.schema("k string, n bigint").option("maxFilesPerTrigger", 1)
    batches = rows.json(f"file://{folder}/input").writeStream.trigger(availableNow=True)
    query = started(sink, batches, folder / f"checkpoint-{namespace}", write)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
