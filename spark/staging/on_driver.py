"""The driver as the single task of a small batch: it collects the rows and stages them as a task would.

The rows are processed by the task's own code (``job.StageWork``): only their source differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import tenacity

from tidegate.committers.coordinator import Coordinator
from tidegate.errors import StoreUnavailableError, WalUnavailableError
from tidegate.spark.errors import typed
from tidegate.spark.placement.locality import EnvironmentLocation
from tidegate.spark.staging.collect import changes_of, collect
from tidegate.spark.staging.job import SparkBarrier, StageWork
from tidegate.spark.staging.small_batches import SmallBatchPredictor
from tidegate.wal.record import Ack

TRIES = 4
"""The number of tries that Spark gives a task."""


class DriverStage:
    """A stager of batches predicted to be small, with the open driver's own log and store."""

    def __init__(self, coordinator: Coordinator, small: SmallBatchPredictor) -> None:
        self._coordinator, self._small = coordinator, small

    def stage(self, barrier: SparkBarrier, work: StageWork) -> list[Ack] | None:
        """Collect the rows once and stage them; None: there are too many, or the driver cannot stage them.

        Raises: as a task: the user's plan's own errors, the log's after ``TRIES`` tries of the same
        rows.
        """
        if not self._small.expected:
            return None
        tables = [barrier.tables.index(call.table) for call in barrier.calls]
        try:
            with typed():
                rows = collect(barrier.calls, self._small)
            changes = None if rows is None else changes_of(rows, tables, barrier.key_groups)
        except BaseException:
            self._small.cut()  # it may have been too much for the driver: the next try uses the job
            raise
        if rows is None:
            return None
        if barrier.placement is not None:
            barrier.placement.met = (0, 0)  # no preferred locations are used
        batches = [] if changes is None else [changes]
        location = EnvironmentLocation() if barrier.placement is None else barrier.placement.provider
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((WalUnavailableError, StoreUnavailableError)),
            wait=tenacity.wait_exponential(multiplier=0.05, max=1),
            stop=tenacity.stop_after_attempt(TRIES),
            sleep=self._coordinator.clock.sleep,
            reraise=True,
        )
        for attempt in again:
            with attempt:
                at = 0, attempt.retry_state.attempt_number - 1, location.location_id()
                holding = Holding(self._coordinator)
                return [work.alone().run(batches, holding, lambda: self._coordinator.store, *at)]
        return None

    def staged(self, acks: Sequence[Ack]) -> None:
        """Record the batch's size, whichever way it was staged."""
        self._small.staged(sum(ack.given[0] for ack in acks), sum(ack.given[1] for ack in acks))


class Holding:
    """The driver's log with a copy of what is staged, so that the apply need not read it back."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        coordinator.held = {}

    def stage(self, segment: str, blobs: Iterable[bytes]) -> list[str]:
        """As ``Log.stage``."""
        kept: list[bytes] = []
        addresses = self._coordinator.log.stage(segment, noted(blobs, kept))
        self._coordinator.held = dict(zip(addresses, kept, strict=True))
        return addresses


def noted(blobs: Iterable[bytes], kept: list[bytes]) -> Iterator[bytes]:
    """Yield the blobs unchanged, keeping a reference to each."""
    for blob in blobs:
        kept.append(blob)
        yield blob
