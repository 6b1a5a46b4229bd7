r"""Small versions for a long time: whether anything grows, slowly or not.

    tools/run python tests/services/run.py kafka redis -- \
        python benchmarks/bench_steady.py --wal {kafka} --store {redis} [--minutes 60] [--a-minute 100]

One query on local[2] with a trigger makes so many versions a minute of 1,000 rows each, over 100,000 keys,
to file+sqlite unless told otherwise. Printed for each tenth of the run: versions, p50 and p99 of the call of
foreachBatch (which is the time to visible), and at its end the resident memory of the driver, of the JVM and
of Python's workers, Redis's own memory, the bytes of the log in files. The first tenth warms up; drift is the
last tenth over the second.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
MIB = 1024 * 1024
TENTHS = 10


def p50_and_p99(values: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(values, n=100)
    return cuts[49], cuts[98]


def tree(pid: int) -> list[int]:
    """A process and all below it. One that ends meanwhile is left out."""
    found = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                for child in (task / "children").read_text().split():
                    found += tree(int(child))
    return found


def resident_mib() -> dict[str, float]:
    """By kind of process. One that ends meanwhile counts nothing."""
    found = {"driver": 0.0, "JVM": 0.0, "workers": 0.0}
    for pid in tree(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/comm").read_text().strip()
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
        kind = "driver" if pid == os.getpid() else "JVM" if command == "java" else "workers"
        found[kind] += pages * os.sysconf("SC_PAGESIZE") / MIB
    return found


def kept_mib(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """What log and store take, where that can be asked."""
    found = {}
    if not arguments.wal:
        found["log"] = (
            sum(each.stat().st_size for each in (folder / "wal").rglob("*") if each.is_file()) / MIB
        )
    if (arguments.store or "").startswith("redis:"):
        import redis

        client: Any = redis.Redis.from_url(arguments.store)
        found["Redis"] = client.info("memory")["used_memory"] / MIB
        client.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--a-minute", type=int, default=100, help="versions")
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--wal")
    parser.add_argument("--store")
    arguments = parser.parse_args()
    from pyspark.sql import SparkSession

    from tidegate.spark import VersionedSink

    folder = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = session.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    sink = VersionedSink(
        namespace=f"bench-{os.getpid()}",
        wal=arguments.wal or f"file://{folder}/wal",
        store=arguments.store or f"sqlite://{folder}/store",
        table="t",
        key="id",
        allow_unsafe=True,
    )
    took: list[float] = []

    def write(batch: Any, batch_id: int) -> None:
        started = time.perf_counter()
        sink(batch, batch_id)
        took.append(time.perf_counter() - started)

    query = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", arguments.rows)
        .option("numPartitions", 2)
        .load()
        .selectExpr("value % 100000 as id", "value", "timestamp")
        .writeStream.foreachBatch(write)
        .trigger(processingTime=f"{60_000 // arguments.a_minute} milliseconds")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    tenths: list[list[float]] = []
    for tenth in range(1, TENTHS + 1):
        seen = len(took)
        query.awaitTermination(arguments.minutes * 60 / TENTHS)
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
        these = [1_000 * each for each in took[seen:]]
        tenths.append(these)
        memory = "   ".join(
            f"{name} {mib:,.0f} MiB" for name, mib in (resident_mib() | kept_mib(arguments, folder)).items()
        )
        p50, p99 = p50_and_p99(these)
        print(
            f"{tenth:2} of {TENTHS}: {len(these):5} versions   p50 {p50:6.1f} ms"
            f"   p99 {p99:6.1f} ms   {memory}",
            flush=True,
        )
    query.stop()
    sink.close()
    spark.stop()
    shutil.rmtree(folder)
    for name, first, last in zip(
        ("p50", "p99"), p50_and_p99(tenths[1]), p50_and_p99(tenths[-1]), strict=True
    ):
        print(f"drift of {name}: {last / first:.2f}")


if __name__ == "__main__":
    main()
