"""The driver as the single task of a small batch: it collects the rows and stages them as a task would.

The rows are processed by the task's own code (``StageWork``): only their source differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import tenacity

from tidegate.committers.coordinator import Coordinator
from tidegate.errors import StoreUnavailableError, WalUnavailableError
from tidegate.spark.calls.records import Call
from tidegate.spark.errors import typed
from tidegate.spark.placement.locality import EnvironmentLocation, location_by
from tidegate.spark.placement.preferred import Placement
from tidegate.spark.session.runs import Runs
from tidegate.spark.staging.collect import changes_of, collect
from tidegate.spark.staging.derive import Deltas, derive
from tidegate.spark.staging.small_batches import SmallBatchPredictor
from tidegate.spark.staging.work import StageWork
from tidegate.wal.staging.acks import Ack

TRIES = 4
"""The number of tries that Spark gives a task."""


class DriverStage:
    """A stager of batches predicted to be small, with the open driver's own log and store."""

    def __init__(self, coordinator: Coordinator, small: SmallBatchPredictor) -> None:
        self._coordinator, self._small = coordinator, small

    def stage(
        self, calls: Sequence[Call], work: StageWork, placement: Placement | None, runs: Runs
    ) -> list[Ack] | None:
        """Collect the rows once and stage them; None: there are too many, or the driver cannot stage them.

        Raises: as a task: the user's plan's own errors, the log's after ``TRIES`` tries of the same
        rows.
        """
        if not self._small.predicts_small:
            return None
        tables = [work.spec.tables.index(call.table) for call in calls]
        try:
            with typed():
                rows = collect(calls, self._small, runs)
            changes = None if rows is None else changes_of(rows, tables, work.spec)
        except BaseException:
            self._small.overflowed()  # it may have been too much for the driver: the next try uses the job
            raise
        if rows is None:
            return None
        if placement is not None:
            placement.met = (0, 0)  # no preferred locations are used
        provider = EnvironmentLocation() if placement is None else placement.provider
        single_task = work.as_single_task()
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((WalUnavailableError, StoreUnavailableError)),
            wait=tenacity.wait_exponential(multiplier=0.05, max=1),
            stop=tenacity.stop_after_attempt(TRIES),
            sleep=self._coordinator.clock.sleep,
            reraise=True,
        )
        for attempt in retrying:
            with attempt:
                log, blobs, deltas = KeptLog(self._coordinator), (lambda: self._coordinator.log), None
                if works := single_task.derived:
                    read = single_task.state_at(self._coordinator.store, blobs, 0)
                    deltas = Deltas(works, work.spec)
                ack = single_task.run(
                    [] if changes is None else [changes],
                    log,
                    lambda: self._coordinator.store,
                    blobs,
                    task=0,
                    tries=attempt.retry_state.attempt_number - 1,
                    host=location_by(provider),
                    deltas=deltas,
                )
                return [ack if deltas is None else derive(ack, deltas.parts(), works, read, work.spec, log)]
        return None

    def staged(self, acks: Sequence[Ack]) -> None:
        """Record the batch's size, whichever way it was staged: a small input may change large states."""
        rows, given = (sum(ack.given[index] for ack in acks) for index in (0, 1))
        self._small.staged(rows, max(given, sum(ref.bytes for ack in acks for ref in ack.frames)))


class KeptLog:
    """The driver's log with a copy of what is staged, so that the apply need not read it back.

    It keeps no more than the driver applies itself (I11).
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._room = coordinator.options.driver_apply_max_bytes
        coordinator.held = {}

    def stage(self, segment: str, blobs: Iterable[bytes]) -> list[str]:
        """As ``Log.stage``."""
        contents: list[bytes] = []
        addresses = self._coordinator.log.stage(segment, self._keeping(blobs, contents))
        if self._room < 0:
            self._coordinator.held = {}
        else:
            self._coordinator.held = {**self._coordinator.held, **dict(zip(addresses, contents, strict=True))}
        return addresses

    def _keeping(self, blobs: Iterable[bytes], contents: list[bytes]) -> Iterator[bytes]:
        """Yield the blobs unchanged, keeping a reference to each while they fit."""
        for blob in blobs:
            self._room -= len(blob)
            if self._room >= 0:
                contents.append(blob)
            else:
                contents.clear()
            yield blob
