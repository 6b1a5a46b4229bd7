"""Parts of a driver without Spark: its checkpoint, its pipeline and its trimmer, all on one thread."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from tidegate.base.clock import Clock
from tidegate.committers.apply import apply
from tidegate.committers.background.pipeline import Changes, Pipeline
from tidegate.committers.commit import InFlight
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.steps.trim import Trimmer
from tidegate.options import WAL_RETAIN_APPLIES, Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.store import Store
from tidegate.wal.log import Log


class Checkpoint:
    """The part of Spark's checkpoint that replays need: offsets and commits, one file each."""

    def __init__(self, folder: Path) -> None:
        self._offsets, self._commits = folder / "offsets", folder / "commits"
        self._offsets.mkdir(parents=True, exist_ok=True)
        self._commits.mkdir(parents=True, exist_ok=True)

    def next_batch(self) -> int:
        """Return the first batch without a commit."""
        done = [int(path.name) for path in self._commits.iterdir() if path.name.isdigit()]
        return max(done, default=-1) + 1

    def plan(self, batch_id: int) -> str:
        """Return the batch's offsets, and note them before it runs, unless some are noted already."""
        path = self._offsets / str(batch_id)
        if not path.exists():
            _write(path, f"offsets-{batch_id}")
        return path.read_text()

    def done(self, batch_id: int) -> None:
        """Note that the batch is committed."""
        _write(self._commits / str(batch_id), "")


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.rename(path)


def make_driver_of(
    endpoints: Endpoints, log: Log, store: Store, options: Options, clock: Clock | None = None
) -> Coordinator:
    """Make a driver that is not open yet; works for executors are done here, one by one."""

    def on_executors(works: Sequence[apply.ApplyWork]) -> None:
        for work in works:
            apply.do(work, log, store)

    return Coordinator(endpoints, log, store, options, clock or Clock(), apply_on_executors=on_executors)


def make_trimmer(driver: Coordinator, wal_retain_s: float) -> Trimmer:
    """Make a trimmer with this retention, which may be shorter than a driver's deadlines allow."""
    deadline_s = wal_retain_s / WAL_RETAIN_APPLIES
    options = dataclasses.replace(driver.options, wal_retain_s=wal_retain_s, apply_deadline_s=deadline_s)
    return Trimmer(driver.log, driver.store, options, driver.clock)


class Turns(Changes):
    """Waits of a pipeline whose two sides are one thread: a wait completes versions until it is over.

    So a kill always strikes at the same place, with the largest allowed number of versions in flight.
    """

    pipeline: Pipeline

    def tell(self) -> None:
        pass

    def wait_for(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        del timeout_s  # the condition has deadlines of its own
        while not holds():
            self.pipeline.complete_next()
        return True


def pipeline_of(driver: Coordinator, published: Callable[[InFlight], None] = lambda _: None) -> Pipeline:
    """Make a pipeline that completes a version when the next one does not fit into ``commit_in_flight``."""
    turns = Turns()
    turns.pipeline = Pipeline(driver, published, turns)
    return turns.pipeline
