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
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from harness import new_folder, parser_of, percentile, rate, running, seconds_of, sink_in, spark_on, tree

MIB = 1024 * 1024
TENTHS = 10


def resident_mib() -> dict[str, float]:
    """By kind of process. One that ends meanwhile counts nothing."""
    sizes = {"driver": 0.0, "JVM": 0.0, "workers": 0.0}
    for pid in tree(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/comm").read_text().strip()
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
        kind = "driver" if pid == os.getpid() else "JVM" if command == "java" else "workers"
        sizes[kind] += pages * os.sysconf("SC_PAGESIZE") / MIB
    return sizes


def kept_mib(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """What log and store take, where that can be asked."""
    sizes = {}
    if not arguments.wal:
        sizes["log"] = (
            sum(each.stat().st_size for each in (folder / "wal").rglob("*") if each.is_file()) / MIB
        )
    if (arguments.store or "").startswith("redis:"):
        import redis

        client: Any = redis.Redis.from_url(arguments.store)
        sizes["Redis"] = client.info("memory")["used_memory"] / MIB
        client.close()
    return sizes


def main() -> None:
    parser = parser_of(__doc__, wal=False, store=False, minutes=60.0, rows=1_000)
    parser.add_argument("--a-minute", type=int, default=100, help="versions")
    arguments = parser.parse_args()
    milliseconds: list[float] = []
    tenths: list[list[float]] = []
    with (
        new_folder() as folder,
        spark_on() as spark,
        sink_in(folder, arguments, table="t", key="id") as sink,
    ):

        def write(batch: Any, batch_id: int) -> None:
            milliseconds.append(1_000 * seconds_of(lambda: sink(batch, batch_id)))

        rows = rate(spark, arguments.rows).selectExpr("value % 100000 as id", "value", "timestamp")
        trigger = f"{60_000 // arguments.a_minute} milliseconds"
        with running(rows.writeStream.foreachBatch(write).trigger(processingTime=trigger)) as query:
            for tenth in range(1, TENTHS + 1):
                before = len(milliseconds)
                query.awaitTermination(arguments.minutes * 60 / TENTHS)
                if query.exception() is not None:
                    raise SystemExit(str(query.exception()))
                samples = milliseconds[before:]
                if not samples:
                    raise SystemExit(f"tenth {tenth} has no version: give more --minutes")
                tenths.append([percentile(samples, share) for share in (0.5, 0.99)])
                memory = "   ".join(
                    f"{name} {mib:,.0f} MiB"
                    for name, mib in (resident_mib() | kept_mib(arguments, folder)).items()
                )
                p50, p99 = tenths[-1]
                print(
                    f"{tenth:2} of {TENTHS}: {len(samples):5} versions   p50 {p50:6.1f} ms"
                    f"   p99 {p99:6.1f} ms   {memory}",
                    flush=True,
                )
    for name, first, last in zip(("p50", "p99"), tenths[1], tenths[-1], strict=True):
        print(f"drift of {name}: {last / first:.2f}")


if __name__ == "__main__":
    main()
