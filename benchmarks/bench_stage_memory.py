"""Peak memory of one task staging its change-log: at 1 M and at 5 M rows, and with large states.

    tools/run python benchmarks/bench_stage_memory.py

Each size runs in a process of its own: sorted Arrow batches of 10,000 rows, as Spark hands them
over, go through ``stage_task`` into a file log; the process reports its peak resident size
(ru_maxrss). The figure at no rows is what Python, Arrow and tidegate take by themselves.

Then 10,000 keys that come in one Arrow batch are patched (one column of two is set), each with a state of
so many bytes, which a store in memory makes as it is asked.
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

BATCH_ROWS, VALUE, PATCH = 10_000, b"+" + b"v" * 60, b'+{"n":2}'
STATES = (1_000, 10_000, 50_000)


def batches(rows: int, value: bytes) -> Iterator[Any]:
    """Sorted changes of 64 key groups, made as they are asked for."""
    import pyarrow as pa

    from tidegate.wal.staging.spec import CHANGES

    per_group = max(1, rows // 64)
    for first in range(0, rows, BATCH_ROWS):
        numbers = range(first, min(first + BATCH_ROWS, rows))
        columns = [
            pa.array([number // per_group for number in numbers], pa.int32()),
            pa.array([0] * len(numbers), pa.int32()),
            pa.array([b"key-%09d" % number for number in numbers], pa.binary()),
            pa.array([value] * len(numbers), pa.binary()),
        ]
        yield pa.record_batch(columns, schema=CHANGES)


def patching(state_bytes: int, spec: Any) -> Any:
    """A merge for states of so many bytes each."""
    import pyarrow as pa

    from tidegate.spark.state.merge import PatchedTable, merge_with

    def read(_table: str, _start: int, rows: Any) -> Any:
        return pa.array([b'{"n":1,"s":"%s"}' % (b"s" * state_bytes) for _ in range(len(rows))], pa.binary())

    return merge_with(read, [PatchedTable(0, "t", 0, ("n", "s"))], 1, spec)


def stage(rows: int, state_bytes: int) -> None:
    """Stage so many rows and print what it took."""
    from tidegate.wal.file.log import FileLog
    from tidegate.wal.staging.changelog import stage_task
    from tidegate.wal.staging.spec import StageSpec

    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        log = FileLog(folder, "bench")
        log.create()
        spec = StageSpec("uuid", "a1", ("t",), (("string",),), 900_000, 32_768, 1 << 24, 64)
        started = time.perf_counter()
        merge = patching(state_bytes, spec) if state_bytes else None
        given = batches(rows, PATCH if state_bytes else VALUE)
        ack = stage_task(given, spec, log, task=0, task_attempt="0", host="h", merge=merge)
        seconds = time.perf_counter() - started
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        json.dumps(
            {"rows": ack.rows, "frames": len(ack.frames), "seconds": seconds, "peak_mib": peak_kib / 1024}
        )
    )


def measured(rows: int, state_bytes: int) -> dict[str, Any]:
    """What it took in a process of its own."""
    words = [sys.executable, __file__, str(rows), str(state_bytes)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    if len(sys.argv) > 1:
        stage(int(sys.argv[1]), int(sys.argv[2]))
        return
    print(f"{'rows':>12} {'frames':>8} {'seconds':>8} {'peak MiB':>9}")
    for rows in (0, 1_000_000, 5_000_000):
        found = measured(rows, 0)
        print(f"{rows:>12,} {found['frames']:>8,} {found['seconds']:>8.1f} {found['peak_mib']:>9.0f}")
    print(f"{'state bytes':>12} {'all, MiB':>8} {'seconds':>8} {'peak MiB':>9}")
    for size in STATES:
        found, total = measured(BATCH_ROWS, size), BATCH_ROWS * size >> 20
        print(f"{size:>12,} {total:>8,} {found['seconds']:>8.1f} {found['peak_mib']:>9.0f}")


if __name__ == "__main__":
    main()
