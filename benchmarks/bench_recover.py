"""``tidegate recover`` beside the normal apply of the same rows by the executors, in one run.

    tools/run python tests/services/run.py kafka -- python benchmarks/bench_recover.py --wal {kafka}

The log is on Kafka (or where ``--wal`` says), the store SQLite. Each round writes the same rows, so the
same keys, as two versions, in turns: one is applied by the executors of local[2] as ever; of the other
the driver stops right after the decision, and the command makes it visible without Spark. What is
compared is the time from a decided version to a visible one: the driver's (apply, seal, publish),
the command's own (the same steps, and reading the manifest), and that of the whole command, from the
start of its process to its end. ``--profile`` shows where the command's time goes instead, in one round.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate import failpoints

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

NAMESPACE, TABLE = "bench", "t"
DEADLINE_S = 600.0
INSIDE = """
import sys, time
from tidegate.cli import main
from tidegate.committers import recover

complete = recover.complete

def timed(*arguments):
    started = time.perf_counter()
    complete(*arguments)
    print("seconds inside:", time.perf_counter() - started, file=sys.stderr)

recover.complete = timed
main()
"""
"""The command itself, but that it tells how long its work took."""
PROFILED = """
import cProfile, pstats, sys
from tidegate.cli import main
from tidegate.committers import recover

complete, profile = recover.complete, cProfile.Profile()

def profiled(*arguments):
    profile.runcall(complete, *arguments)
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(25)

recover.complete = profiled
main()
"""


class Bench:
    """A namespace whose two kinds of versions take turns."""

    def __init__(self, wal: str, folder: Path, rows: int) -> None:
        from pyspark.sql import SparkSession

        self._where = {"namespace": NAMESPACE, "wal": wal, "store": f"sqlite://{folder}/store"}
        self._options: dict[str, Any] = {}
        self._config = folder / "wal.conf"
        if wal.startswith("kafka:"):
            self._options = {"topic_prefix": f"bench-{uuid.uuid4().hex[:8]}"}
        self._config.write_text("".join(f"{name}={value}\n" for name, value in self._options.items()))
        self._spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", 2)
            .config("spark.driver.memory", "3g")
            .getOrCreate()
        )
        self._spark.sparkContext.setLogLevel("ERROR")
        self._rows = self._spark.range(0, rows, numPartitions=2).selectExpr(
            "concat('key-', cast(id as string)) as key",
            "concat('{\"n\":', id, ',\"text\":\"', substr(sha1(cast(id as string)), 1, 36), '\"}') as value",
        )

    def _sink(self) -> Any:
        from tidegate.spark import VersionedSink

        return VersionedSink(
            **self._where,
            wal_options=self._options,
            allow_unsafe=True,
            table=TABLE,
            key="key",
            value="value",
        )

    def by_executors(self) -> float:
        """Seconds from decided to visible, in a query's driver."""
        sink = self._sink()
        sink.load({TABLE: self._rows}, token=uuid.uuid4().hex)
        sink.close()
        return float(sink.last_phases["decided"] + sink.last_phases["sealed"])

    def by_recover(self, program: str = INSIDE) -> tuple[float, float]:
        """Seconds from decided to visible in ``tidegate recover``, and of the whole command."""
        failpoints.arm("decide.after_append=raise")
        sink = self._sink()
        with contextlib.suppress(failpoints.FailpointError):
            sink.load({TABLE: self._rows}, token=uuid.uuid4().hex)
        failpoints.arm(None)
        sink.close()
        words = [f"--{name}={value}" for name, value in self._where.items()]
        words += [f"--wal-config={self._config}", "--force", "--allow-unsafe"]
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", program, "recover", *words],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        whole = time.perf_counter() - started
        if done.returncode or "made visible: version" not in done.stdout:
            raise RuntimeError(f"tidegate recover: {done.returncode}, {done.stdout}{done.stderr}")
        if program is PROFILED:
            print(done.stderr)
            return 0.0, whole
        told = next(line for line in done.stderr.splitlines() if line.startswith("seconds inside:"))
        return float(told.rpartition(" ")[2]), whole

    def close(self) -> None:
        """End Spark; the log and the store go."""
        from tidegate.wal.open_log import open_log

        self._spark.stop()
        log = open_log(self._where["wal"], NAMESPACE, self._options)
        log.drop()
        log.close()


def report(seconds: dict[str, list[float]]) -> None:
    """The medians without the warm-up, and their ratios to the executors'."""
    medians = {name: statistics.median(all_of[1:]) for name, all_of in seconds.items()}
    for name, all_of in seconds.items():
        shown = " ".join(f"{one:.2f}" for one in all_of)
        ratio = medians[name] / medians["executors"]
        print(f"{name:16} median {medians[name]:6.2f} s   ratio {ratio:5.2f}   (all: {shown})")


def measure(bench: Bench, rounds: int) -> None:
    """``rounds`` and a warm-up; who comes first changes from round to round."""
    seconds: dict[str, list[float]] = {"executors": [], "recover, inside": [], "recover, whole": []}

    def normal() -> None:
        seconds["executors"].append(bench.by_executors())

    def recovered() -> None:
        inside, whole = bench.by_recover()
        seconds["recover, inside"].append(inside)
        seconds["recover, whole"].append(whole)

    for number in range(rounds + 1):
        steps: tuple[Callable[[], None], ...] = (normal, recovered)
        for step in steps if number % 2 else reversed(steps):
            step()
    report(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wal", help="default: files beside the store")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    logging.getLogger("tidegate").setLevel(logging.ERROR)  # one broker holds one copy: known
    folder = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    bench = Bench(arguments.wal or f"file://{folder}/wal", folder, arguments.rows)
    try:
        print(f"{arguments.rows:,} changes in each version; the first round is a warm-up", flush=True)
        if arguments.profile:
            bench.by_executors()
            bench.by_recover(PROFILED)
        else:
            measure(bench, arguments.rounds)
    finally:
        bench.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
