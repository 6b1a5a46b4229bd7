"""Measure a restore of a version that the store has retired, on a log in files and a store in SQLite.

tools/run python benchmarks/bench_restore.py --rows 1000000 --versions 1000

Version 1 has all rows; each later one changes some of them. The restore goes back to version 1: it computes
the rows from the log, compares them with the visible ones, and writes those that differ.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import tempfile
import time

from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.restore import restore
from tidegate.committers.operations.restore_plan import plan_restore
from tidegate.committers.steps.retire import retire_up_to
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.open_log import open_log

KEY_GROUPS, VALUE = 16, b"v" * 60


def driver_at(folder: str) -> Coordinator:
    """Make a coordinator that is not open."""
    where = Endpoints("bench", f"file://{folder}/wal", f"sqlite://{folder}/store")
    log, store = open_log(where.wal, "bench"), open_store(where.store, "bench")
    return Coordinator(where, log, store, Options(key_groups=KEY_GROUPS, keep_versions=2))


def write(folder: str, rows: int, versions: int, changes: int) -> None:
    """Write the versions, and retire all but the last two."""
    chance, driver = random.Random(0), driver_at(folder)
    open_namespace(driver, "bench")
    for number in range(versions + 1):
        keys = chance.sample(range(rows), changes) if number else range(rows)
        value = b"%d" % number + VALUE
        table = {"t": {b"%d" % key: value for key in keys}}
        commit(driver, ArrowBarrier(driver.log, table, batch("bench", number), KEY_GROUPS))
    retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)
    driver.store.close()
    driver.log.close()


def main() -> None:
    """Print the seconds of the preview and of the restore, and the memory of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--versions", type=int, default=1_000)
    parser.add_argument("--changes", type=int, default=1_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        begun = time.monotonic()
        # In a process of its own, so that the memory below is the restore's.
        writer = multiprocessing.get_context("spawn").Process(
            target=write, args=(folder, given.rows, given.versions, given.changes)
        )
        writer.start()
        writer.join()
        print(f"written in {time.monotonic() - begun:.0f} s", flush=True)
        driver, begun = driver_at(folder), time.monotonic()
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        plan = plan_restore(driver, 1)
        planned = time.monotonic()
        done = restore(driver, plan)
        ended, peak_kb = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        (entry,) = driver.store.catalog(done.visible, done.visible)
        print(
            f"{given.rows:,} rows, {given.versions:,} versions back, {sum(entry.changes.values()):,} rows"
            f" written: preview {planned - begun:.1f} s, restore {ended - planned:.1f} s; peak memory"
            f" {before_kb // 1024} MiB before it, {peak_kb // 1024} MiB after it"
        )


if __name__ == "__main__":
    main()
