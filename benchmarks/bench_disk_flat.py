"""What disk log and store take up over many versions of the same keys: flat, or growing?

    tools/run python benchmarks/bench_disk_flat.py --versions 10000

A driver without Spark commits batches into a file log and a SQLite store, and retires and trims as
its background thread would. Prints the most that was taken up in the second half of the run over
the most in the first half, once it had warmed up: about 1.0 means that nothing grows with history.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.steps.trim import Trimmer
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.open_log import open_log

WARM_UP = 0.2
"""This share of the run is not counted: until then there is less to retire and trim than later."""


class Sample(NamedTuple):
    """Bytes on disk at a version."""

    version: int
    decisions: int
    changelog: int
    store: int
    store_wal: int
    """SQLite's own logs, which level off by themselves, at 16 MB a file: apart, lest they hide the rest."""

    @property
    def total(self) -> int:
        return sum(self[1:])


def run(
    folder: Path, versions: int, options: Options, keys: int, sampled: Callable[[Sample], None]
) -> list[Sample]:
    """Commit so many versions, each with a tenth of the keys; a sample after every version."""
    where = Endpoints("flat", f"file://{folder}/wal", f"sqlite://{folder}/store")
    coordinator = Coordinator(where, open_log(where.wal, "flat"), open_store(where.store, "flat"), options)
    open_namespace(coordinator, "flat")
    trimmer, chance, samples, dropped = (
        Trimmer(coordinator.log, coordinator.store, options),
        random.Random(1),
        [],
        0,
    )
    for version in range(1, versions + 1):
        rows = {b"k%06d" % key: chance.randbytes(50) for key in chance.sample(range(keys), keys // 10)}
        origin = batch("flat", version - 1)
        commit(
            coordinator, ArrowBarrier(coordinator.log, {"t": rows}, origin, coordinator.folded.key_groups, 1)
        )
        folded_at_us = coordinator.clock.now_us()
        coordinator.decisions.catch_up()
        dropped = retire_up_to(
            coordinator.log, coordinator.store, coordinator.folded, options, lambda: False, dropped
        )
        trimmer.trim(coordinator.decisions.view, folded_at_us)
        size = coordinator.log.size()
        store, store_wal = bytes_below(folder / "store")
        samples.append(Sample(version, size.decisions_bytes, size.changelog_bytes, store, store_wal))
        sampled(samples[-1])
    coordinator.store.close()
    coordinator.log.close()
    return samples


def bytes_below(folder: Path) -> tuple[int, int]:
    """The bytes of the store's files, and of SQLite's logs beside them."""
    sizes = {path.name: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    logs = sum(size for name, size in sizes.items() if name.endswith(("-wal", "-shm")))
    return sum(sizes.values()) - logs, logs


def growth(samples: list[Sample], part: str = "total") -> float:
    """The most in the second half over the most in the first half after the warm-up."""
    sizes: list[int] = [getattr(sample, part) for sample in samples]
    half = len(sizes) // 2
    return max(sizes[half:]) / max(sizes[int(WARM_UP * len(sizes)) : half])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--keep-versions", type=int, default=10)
    parser.add_argument("--summary-every", type=int, default=50)
    parser.add_argument("--wal-retain", type=float, default=5.0, help="seconds that the log is kept")
    args = parser.parse_args()
    options = Options(
        key_groups=16,
        keep_versions=args.keep_versions,
        summary_every=args.summary_every,
        wal_retain_s=args.wal_retain,
        apply_deadline_s=args.wal_retain / 10,
    )
    started, every = time.monotonic(), max(args.versions // 20, 1)

    def show(sample: Sample) -> None:
        if sample.version % every == 0:
            parts = " ".join(f"{name} {getattr(sample, name) / 1e6:7.2f}" for name in Sample._fields[1:])
            seconds = time.monotonic() - started
            print(f"version {sample.version:6}  MB: {parts}  {seconds:6.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        samples = run(Path(folder), args.versions, options, args.keys, show)
    for part in (*Sample._fields[1:], "total"):
        print(f"{part:10} max of the second half / max of the first: {growth(samples, part):.3f}")


if __name__ == "__main__":
    sys.exit(main())
