"""How many tasks run where they ran before, with and without assignment, while workers are killed and added.

    tools/run python benchmarks/bench_affinity.py [--tasks 12] [--stable 6] [--rows 3000] [--step update]

A standalone Spark on this machine: a master and three workers of one core at 127.0.0.1 to .3, a
stream that sums by key (by a reducer, or by a function of ``update``), its versions applied by the
executors. After ``stable`` batches one worker is killed, after as many again another one comes. With
``--play shared`` it and another one are one location; with ``--play rolling`` all are restarted in turn.
Told for each phase, from the tasks' own word where they ran:

    assigned   the task ran on the executor that it was assigned to
    stayed     it ran at the same location (host) as in the batch before: what it cached there is of use
    local      keys whose state the cache at its location knew, of all that were asked for

The first batch of each phase stands apart: there the executors have changed. A run that takes more than ten
minutes is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).parents[1] / "tests" / "spark" / "affinity_driver.py"
DEADLINE_S = 600.0


def run(folder: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Run the driver; what it noted of each batch."""
    with (folder.with_suffix(".log")).open("w") as errors:
        coordinator = subprocess.Popen(
            [sys.executable, str(DRIVER), str(folder), json.dumps(settings)],
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
        try:
            coordinator.wait(timeout=DEADLINE_S)
        finally:
            if (
                coordinator.poll() is None
            ):  # too slow, or this process was told to end: the cluster ends with it
                os.killpg(coordinator.pid, signal.SIGKILL)
                coordinator.wait()
    if coordinator.returncode:
        raise SystemExit(folder.with_suffix(".log").read_text()[-3_000:])
    return [json.loads(line) for line in (folder / "notes").read_text().splitlines()]


def shares(notes: list[dict[str, Any]]) -> dict[tuple[str, str], list[int]]:
    """Of each phase's first and later batches: tasks that ran as assigned, that stayed, all; the slowest
    batch's milliseconds; keys that the caches knew, and all that were asked for.
    """
    found: dict[tuple[str, str], list[int]] = {}
    before: list[list[str]] = []
    phase = ""
    for note in notes:
        which = "later" if note["phase"] == phase else "first"
        phase, ran = note["phase"], note["ran"]
        of = found.setdefault((phase, which), [0] * 6)
        assigned = note["assigned"] or []
        of[0] += sum(name == executor for name, (executor, _) in zip(assigned, ran, strict=False))
        of[1] += sum(was[1] == host for was, (_, host) in zip(before, ran, strict=False))
        of[2] += len(ran)
        of[3] = max(of[3], round(1000 * note["seconds"]))
        of[4:] = [one + more for one, more in zip(of[4:], note["reads"], strict=True)]
        before = ran
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--stable", type=int, default=6)
    parser.add_argument("--rows", type=int, default=3_000)
    parser.add_argument(
        "--step", choices=("reduce", "update"), default="reduce", help="which reads the state"
    )
    parser.add_argument("--play", choices=("lost", "shared", "rolling"), default="lost")
    parser.add_argument("--wait", default="3s", help="spark.locality.wait; Spark's own default")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print("assignment\tphase\tbatches\tassigned\tstayed\tlocal\tslowest batch")
    with tempfile.TemporaryDirectory(prefix="bench-affinity-") as place:
        for affinity in (False, True):
            settings = {"affinity": affinity, **vars(given)}
            notes = run(Path(place) / f"run-{affinity}", settings)
            for (phase, which), (assigned, stayed, tasks, slowest, local, asked) in shares(notes).items():
                met = f"{assigned / tasks:.0%}" if affinity else "-"
                first = phase == "stable" and which == "first"
                print(
                    "with" if affinity else "without", phase, which, met,
                    "-" if first else f"{stayed / tasks:.0%}",
                    f"{local / asked:.1%}" if asked else "-", f"{slowest / 1000:.1f} s",
                    sep="\t", flush=True,
                )  # fmt: skip


if __name__ == "__main__":
    main()
