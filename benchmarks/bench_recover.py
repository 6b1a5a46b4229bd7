"""``tidegate recover`` beside the normal apply of the same rows by the executors, in turns in one run.

    tools/run python tests/services/run.py kafka -- python benchmarks/bench_recover.py --wal {kafka}

The log is on Kafka (or where ``--wal`` says), the store SQLite (or ``--store`` {redis} or {cassandra}). In
each round every kind has its turn, each on a namespace of its own that is new and goes after it, with what
was written before on disk: the executors of local[2], as ever; and ``tidegate recover`` with each of
``--jobs``, after a driver that stops right after the decision. So neither a store that grows nor another's
writes favour one. What is compared
is the time from a decided version to a visible one: the driver's (apply, seal, publish), the command's
own (the same steps, and reading the manifest), and that of the whole command, from the start of its
process to its end. Ratios are of one round; their medians are printed. ``--profile`` shows where the time of
one process goes instead, in one round.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import statistics
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from harness import VALUE, Samples, alternate, new_folder, parser_of, shown, spark_on

from tidegate.base import failpoints
from tidegate.sinks.open_store import open_store
from tidegate.wal.open_log import open_log

TABLE, EXECUTORS = "t", "executors"
DEADLINE_S = 600.0
INSIDE = """
import sys, time
from tidegate.cli import main
from tidegate.committers.opening import recover

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
from tidegate.committers.opening import recover

complete, profile = recover.complete, cProfile.Profile()

def profiled(*arguments):
    profile.runcall(complete, *arguments)
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(25)

recover.complete = profiled
main()
"""


class Bench:
    """The rows that every version is made of, and the two ways to make them visible."""

    def __init__(self, spark: Any, wal: str, folder: Path, rows: int, store: str) -> None:
        self._wal, self._folder, self._store = wal, folder, store
        self._options: dict[str, Any] = {}
        if wal.startswith("kafka:"):
            self._options = {"topic_prefix": f"bench-{uuid.uuid4().hex[:8]}"}
        if store:
            with contextlib.closing(open_store(store, "bench")) as elsewhere:
                elsewhere.prepare()
        self._config = folder / "wal.conf"
        self._config.write_text("".join(f"{name}={value}\n" for name, value in self._options.items()))
        self._rows = spark.range(0, rows, numPartitions=2).selectExpr(
            "concat('key-', cast(id as string)) as key", VALUE
        )

    @contextlib.contextmanager
    def _namespace(self) -> Iterator[dict[str, str]]:
        """Where a new one is. Log and store go with it, and what they still had to write to disk."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        store = self._folder / name
        try:
            yield {"namespace": name, "wal": self._wal, "store": self._store or f"sqlite://{store}"}
        finally:
            with contextlib.closing(open_log(self._wal, name, self._options)) as log:
                log.drop()
            if self._store:
                with contextlib.closing(open_store(self._store, name)) as elsewhere:
                    elsewhere.drop()
            shutil.rmtree(store, ignore_errors=True)
            os.sync()

    def _load(self, where: dict[str, str]) -> Any:
        from tidegate.spark import VersionedSink

        sink = VersionedSink(
            **where, wal_options=self._options, allow_unsafe=True, table=TABLE, key="key", value="value"
        )
        with contextlib.closing(sink), contextlib.suppress(failpoints.FailpointError):
            sink.load({TABLE: self._rows}, token=uuid.uuid4().hex)
        return sink

    def by_executors(self) -> float:
        """Seconds from decided to visible, in a query's driver."""
        with self._namespace() as where:
            sink = self._load(where)
        return float(sink.last_phases["decided"] + sink.last_phases["sealed"])

    def by_recover(self, jobs: int, program: str = INSIDE) -> tuple[float, float]:
        """Seconds from decided to visible in ``tidegate recover``, and of the whole command."""
        with self._namespace() as where:
            failpoints.arm("decide.after_append=raise")
            self._load(where)
            failpoints.arm(None)
            os.sync()  # what was staged is no part of the command's time
            return self._recover(where, jobs, program)

    def _recover(self, where: dict[str, str], jobs: int, program: str) -> tuple[float, float]:
        words = [f"--{name}={value}" for name, value in where.items()]
        words += [f"--wal-config={self._config}", "--force", "--allow-unsafe", f"--jobs={jobs}"]
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


def report(seconds: Samples) -> None:
    """Medians, without the warm-up, of the seconds and of each round's ratio to the executors'."""
    base = seconds[EXECUTORS][1:]
    for name, (_, *each) in seconds.items():
        ratios = [took / other for took, other in zip(each, base, strict=True)]
        print(
            f"{name:24} {statistics.median(each):6.2f} s   ratio {statistics.median(ratios):5.2f}"
            f"   (rounds: {shown(ratios)})"
        )


def measure(bench: Bench, jobs: Sequence[int], rounds: int) -> None:
    """Run ``rounds`` and a warm-up, another side first in each."""
    seconds: Samples = defaultdict(list)

    def normal() -> None:
        seconds[EXECUTORS].append(bench.by_executors())

    def recovered(count: int) -> None:
        inside, whole = bench.by_recover(count)
        seconds[f"recover --jobs {count}, inside"].append(inside)
        seconds[f"recover --jobs {count}, whole"].append(whole)

    sides: dict[str, Callable[[], object]] = {EXECUTORS: normal}
    sides |= {f"--jobs {count}": functools.partial(recovered, count) for count in jobs}
    alternate(sides, rounds + 1)
    report(seconds)


def main() -> None:
    parser = parser_of(__doc__, rows=1_000_000, rounds=5)
    parser.add_argument("--wal", help="default: files beside the store")
    parser.add_argument("--store", default="", help="default: SQLite files")
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    logging.getLogger("tidegate").setLevel(logging.ERROR)  # one broker holds one copy: known
    with new_folder() as folder, spark_on() as spark:
        wal = arguments.wal or f"file://{folder}/wal"
        bench = Bench(spark, wal, folder, arguments.rows, arguments.store)
        print(f"{arguments.rows:,} changes in each version; the first round is a warm-up", flush=True)
        if arguments.profile:
            bench.by_executors()
            bench.by_recover(1, PROFILED)
        else:
            measure(bench, arguments.jobs, arguments.rounds)


if __name__ == "__main__":
    main()
