"""Peak memory of one task staging its change-log, at 1 M and at 5 M rows.

    tools/run python benchmarks/bench_stage_memory.py

Each size runs in a process of its own: sorted Arrow batches of 10,000 rows, as Spark hands them
over, go through ``stage_task`` into a file log; the process reports its peak resident size
(ru_maxrss). The figure at no rows is what Python, Arrow and tidegate take by themselves.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

BATCH_ROWS, VALUE = 10_000, b"+" + b"v" * 60


def batches(rows: int) -> Iterator[Any]:
    """Sorted changes of 64 key groups, made as they are asked for."""
    import pyarrow as pa

    from tidegate.wal.bad_rows import CHANGES

    per_group = max(1, rows // 64)
    for first in range(0, rows, BATCH_ROWS):
        numbers = range(first, min(first + BATCH_ROWS, rows))
        columns = [
            pa.array([number // per_group for number in numbers], pa.int32()),
            pa.array([0] * len(numbers), pa.int32()),
            pa.array([b"key-%09d" % number for number in numbers], pa.binary()),
            pa.array([VALUE] * len(numbers), pa.binary()),
        ]
        yield pa.record_batch(columns, schema=CHANGES)


def stage(rows: int) -> None:
    """Stage so many rows and print what it took."""
    from tidegate.wal.bad_rows import StageSpec
    from tidegate.wal.changelog import stage_task
    from tidegate.wal.file_log import FileLog

    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        log = FileLog(folder, "bench")
        log.create()
        spec = StageSpec("uuid", "a1", ("t",), (("string",),), 900_000, 32_768, 1 << 24, 64)
        started = time.perf_counter()
        ack = stage_task(batches(rows), spec, log, task=0, task_attempt="0", host="h")
        seconds = time.perf_counter() - started
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        json.dumps(
            {"rows": ack.rows, "frames": len(ack.frames), "seconds": seconds, "peak_mib": peak_kib / 1024}
        )
    )


def main() -> None:
    if len(sys.argv) > 1:
        stage(int(sys.argv[1]))
        return
    print(f"{'rows':>12} {'frames':>8} {'seconds':>8} {'peak MiB':>9}")
    for rows in (0, 1_000_000, 5_000_000):
        done = subprocess.run(
            [sys.executable, __file__, str(rows)], capture_output=True, text=True, check=True, timeout=600
        )
        found = json.loads(done.stdout)
        print(f"{rows:>12,} {found['frames']:>8,} {found['seconds']:>8.1f} {found['peak_mib']:>9.0f}")


if __name__ == "__main__":
    main()
