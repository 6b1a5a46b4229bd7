r"""What the driver itself does for a version: over tasks, key groups and changes.

    tools/run python benchmarks/bench_scale.py [--most-tasks 1000] [--rounds 5]

No Spark: so many simulated tasks stage real frames into a log in a folder, in this process, and apply
them to the in-memory reference store; neither is counted. Counted is what stays with the driver: checking
acks, manifest, decision, the plan of the apply, publish. In processor time, so that other work on the
machine hardly shows; medians. Beside it the bytes of the manifest, which has an entry for each frame, and
in it for each run of a key group; the decision itself is one record of some hundred bytes, whatever the
version. Then the work per frame and per key group touched is fitted to all of it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.committers.apply import apply
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.keys.groups import key_group
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.manifest import encode_manifest
from tidegate.wal.open_log import open_log
from tidegate.wal.staging.spec import CHANGES

GRID = [
    # tasks, key groups, key groups touched, changes
    (2, 128, 128, 20_000),
    (100, 128, 128, 20_000),
    (2, 1_024, 1_024, 20_000),
    (100, 1_024, 1_024, 20_000),
    (1_000, 1_024, 1_024, 20_000),
    (2, 32_768, 32_768, 100_000),
    (100, 32_768, 32_768, 100_000),
    (1_000, 32_768, 32_768, 100_000),
    (2, 32_768, 16, 16),
    (100, 32_768, 1_000, 1_000),
    (100, 32_768, 1_000, 100_000),
]


class Watched:
    """Processor seconds in this process, what runs for tasks left out."""

    def __init__(self) -> None:
        self._aside = 0.0
        self._started = 0.0

    def start(self) -> None:
        self._aside, self._started = 0.0, time.process_time()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        started = time.process_time()
        yield
        self._aside += time.process_time() - started

    @property
    def ms(self) -> float:
        return 1000 * (time.process_time() - self._started - self._aside)


class Simulated(ArrowBarrier):
    """Its staging is the tasks' work, not the driver's."""

    watched: Watched

    def stage(self, spec: Any, base_version: int) -> Any:
        with self.watched.aside():
            return super().stage(spec, base_version)

    def batches(self, task: int) -> list[Any]:
        if not hasattr(self, "_by_task"):
            self._by_task: dict[int, list[Any]] = {}
            for change in self._sorted_changes:
                self._by_task.setdefault(change[0] * self.parallelism // self.key_groups, []).append(change)
        mine = self._by_task.get(task, [])
        if not mine:
            return []
        columns = [pa.array(c, field.type) for c, field in zip(zip(*mine, strict=True), CHANGES, strict=True)]
        return list(pa.Table.from_arrays(columns, schema=CHANGES).to_batches())


def keys_in(groups: int, touched: int, changes: int) -> dict[bytes, bytes | None]:
    """So many keys, in just so many key groups."""
    wanted = {at * groups // touched for at in range(touched)}
    found: dict[bytes, bytes | None] = {}
    seen: set[int] = set()
    number = 0
    while len(found) < changes or len(seen) < touched:
        key = b"key-%d" % number
        number += 1
        group = key_group(key, groups)
        if group in wanted and (len(found) < changes or group not in seen):
            seen.add(group)
            found[key] = b"x" * 20
    return found


def measure(folder: str, number: int, cell: Sequence[int], rounds: int) -> tuple[float, int, int]:
    """Median milliseconds of the driver, frames, bytes of the manifest."""
    tasks, groups, touched, changes = cell
    where = Endpoints(f"scale-{number}", f"file://{folder}/wal-{number}", f"memory://scale-{number}")
    log, store = open_log(where.wal, where.namespace), open_store(where.store, where.namespace)
    options = Options(key_groups=groups, parallelism=tasks, driver_apply_max_changes=0)
    coordinator, watched = Coordinator(where, log, store, options), Watched()

    def on_executors(works: Sequence[Any]) -> None:
        with watched.aside():
            for work in works:
                apply.do(work, log, store)

    coordinator.apply_on_executors = on_executors
    open_namespace(coordinator, "bench")
    rows, took = keys_in(groups, touched, changes), []
    Simulated.watched = watched
    for batch_id in range(rounds + 1):
        barrier = Simulated(log, {"t": rows}, batch("bench", batch_id), groups, tasks)
        _ = barrier._sorted_changes  # noqa: SLF001 - hashing plain keys is no part of a version
        gc.collect()
        gc.freeze()  # the simulated tasks' and the store's rows are not the driver's to look through
        watched.start()
        commit(coordinator, barrier)
        took.append(watched.ms)
    manifest = coordinator.last_manifest
    assert manifest is not None
    store.close()
    log.close()
    return statistics.median(took[1:]), len(manifest.frames()), len(encode_manifest(manifest))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--most-tasks", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(" tasks key groups  touched  changes  driver ms  frames manifest KB")
    points = []
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        for number, cell in enumerate(GRID):
            if cell[0] <= arguments.most_tasks:
                ms, frames, content = measure(folder, number, cell, arguments.rounds)
                points.append((frames, cell[2], ms))
                shown = " ".join(f"{one:{width},}" for one, width in zip(cell, (6, 10, 8, 8), strict=True))
                print(f"{shown} {ms:10.1f} {frames:7,} {content / 1e3:11.1f}", flush=True)
    frames, touched, ms = (np.array(column, float) for column in zip(*points, strict=True))
    (fixed, by_frame, by_group), *_ = np.linalg.lstsq(
        np.stack([np.ones_like(frames), frames, touched], axis=1), ms, rcond=None
    )
    each = f"{1000 * by_frame:.1f} us a frame + {1000 * by_group:.1f} us a key group touched"
    print(f"fitted: {fixed:.1f} ms + {each}")


if __name__ == "__main__":
    main()
