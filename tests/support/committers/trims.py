"""A namespace with a clock driven by hand, for tests of trims."""

from __future__ import annotations

import uuid
from typing import Any

from support.clocks import HandClock
from tidegate.committers.apply.apply import chunks_of, plan, read_manifest
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.steps.retire import retire_up_to
from tidegate.committers.steps.trim import Trimmer
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.catch_up import catch_up
from tidegate.wal.fold import View, fold_all
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.record import decode_record

HOUR_S, DAY_S = 3_600, 86_400
SECOND_US = 1_000_000


class Namespace:
    def __init__(self, **options: Any) -> None:
        self.name = uuid.uuid4().hex
        self.clock = HandClock(1_800_000_000_000_000, tick_us=1)
        self.options = Options(**{"key_groups": 4, "summary_every": 3, "keep_versions": 2} | options)

    def log(self) -> MemoryLog:
        return MemoryLog(self.name, "n", clock=self.clock)

    def driver(self) -> Coordinator:
        endpoints = Endpoints("n", f"memory://{self.name}", f"memory://{self.name}")
        store = open_store(endpoints.store, "n", None, self.clock)
        return Coordinator(endpoints, self.log(), store, self.options, self.clock)

    def opened(self) -> Coordinator:
        driver = self.driver()
        open_namespace(driver, "q")
        return driver

    def barrier(self, driver: Coordinator) -> ArrowBarrier:
        last = driver.folded.last_batch
        number = last[1] + 1 if last else 0
        rows = {"t": {b"k%d" % (number % 3): b"%d" % number, b"same": b"%d" % number}}
        return ArrowBarrier(driver.log, rows, batch("q", number), 4, clock=self.clock)

    def write(self, driver: Coordinator, versions: int, every_s: float = HOUR_S) -> None:
        for _ in range(versions):
            self.clock.advance(every_s)
            commit(driver, self.barrier(driver))

    def retire_and_trim(self, driver: Coordinator, trimmer: Trimmer | None = None) -> None:
        """What the background does after a publish."""
        now_us = self.clock.now_us()
        view = catch_up(View(), driver.log)
        retire_up_to(driver.log, driver.store, view.state, self.options, lambda: False)
        (trimmer or self.trimmer(driver)).trim(view, now_us)

    def trimmer(self, driver: Coordinator) -> Trimmer:
        return Trimmer(driver.log, driver.store, self.options, self.clock)

    def summaries(self) -> Any:
        return fold_all(View(), self.log().decisions()).summaries

    def records(self) -> list[Any]:
        return [decode_record(entry.content, "test") for entry in self.log().decisions()]


def assert_readable(driver: Coordinator, first: int, last: int | None = None) -> None:
    """Manifests and frames of these versions are in the log."""
    for decided in driver.folded.recent:
        if first <= decided.version <= (last or decided.version):
            manifest = read_manifest(driver.log, decided)
            assert sum(len(list(chunks_of(work, driver.log))) for work in plan(manifest, decided, 2))
