"""Measure backups and their restore by the commands, on a log in files and a store in SQLite.

tools/run python benchmarks/bench_backup.py --rows 1000000 --changes 10000

A full backup of all rows, an increment of the changed ones, a restore of a lost store with the log, and one
without it. Each figure is a whole command, the start of Python included.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.open_log import open_log

KEY_GROUPS, VALUE, DEADLINE_S = 64, b"v" * 60, 600


def main() -> None:
    """Print the seconds of each command, and the bytes of the backups."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        root = Path(folder)
        where = Endpoints("bench", f"file://{folder}/wal", f"sqlite://{folder}/store")
        log, store = open_log(where.wal, "bench"), open_store(where.store, "bench")
        driver = Coordinator(where, log, store, Options(key_groups=KEY_GROUPS))
        open_namespace(driver, "bench")
        common = ["--wal", where.wal, "--store", where.store, "--namespace", "bench"]
        backups = root / "backups"
        for number, rows in enumerate((given.rows, given.changes)):
            value = b"%d" % number + VALUE
            table = {"t": {b"%d" % key: value for key in range(rows)}}
            commit(driver, ArrowBarrier(log, table, batch("bench", number), KEY_GROUPS))
            before = _bytes(backups)
            seconds = _run("backup", str(backups), *common)
            name = "increment" if number else "full backup"
            print(f"{name} of {rows:,} rows: {seconds:.1f} s, {_bytes(backups) - before:,} bytes", flush=True)
        store.end_heartbeat(driver.epoch)
        store.close()
        log.close()
        for name, lost in (("with the log", ["store"]), ("without the log", ["store", "wal"])):
            for each in lost:
                shutil.rmtree(root / each)
            seconds = _run("restore-from", str(backups), "--yes", "--force", *common)
            print(f"restore {name}: {seconds:.1f} s", flush=True)


def _run(*words: str) -> float:
    begun = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "tidegate", *words], check=True, stdout=subprocess.DEVNULL, timeout=DEADLINE_S
    )
    return time.monotonic() - begun


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
