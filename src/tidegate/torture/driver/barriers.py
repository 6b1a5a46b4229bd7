"""Barriers of a workload. Their rows are computed when they are staged, from the state one version before."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pyarrow as pa

from tidegate.committers.coordinator import Coordinator
from tidegate.keys.groups import key_group
from tidegate.sinks.cache.in_flight import InFlightVersions
from tidegate.sinks.cache.state_at import StateAt
from tidegate.sinks.rules.layout import payloads
from tidegate.testing.arrow_barrier import ArrowBarrier, Rows
from tidegate.torture.driver.workloads import decoded, keys_read, rows_after
from tidegate.torture.history.events import Change
from tidegate.wal.staging.acks import Ack
from tidegate.wal.staging.changelog import stage_task
from tidegate.wal.staging.spec import StageSpec

ReadRows = Callable[[int], Rows]
"""Computes the rows of a batch, given the version at which its state is read."""


@dataclasses.dataclass
class WorkloadBarrier(ArrowBarrier):
    """A barrier of a workload's rows.

    ``read_rows`` is called once, when staging begins. ``attempt`` is this barrier's, once it was staged.
    ``twice``: every task is tried once before, with these rows, as when Spark counts a later try of a task.
    """

    read_rows: ReadRows = lambda _: {}
    twice: ReadRows | None = None
    attempt: str = ""

    def stage(self, spec: StageSpec, base_version: int) -> Sequence[Ack]:
        self.attempt = spec.attempt
        if self.twice is not None:
            self._stage_for_nothing(self.twice(base_version), spec)
        self.rows = self.read_rows(base_version)
        return super().stage(spec, base_version)

    def _stage_for_nothing(self, rows: Rows, spec: StageSpec) -> None:
        """Run task attempts whose acks do not count: what they write are orphans."""
        other = ArrowBarrier(self.log, rows, self.origin, self.key_groups, self.parallelism)
        for task in range(self.parallelism):
            own_id = f"a{self.clock.new_id()}"
            stage_task(other.batches(task), spec, self.log, task=task, task_attempt=own_id, host="local")


def reader_of(driver: Coordinator, changes: Sequence[Change], in_flight: InFlightVersions) -> ReadRows:
    """Return a function that turns the changes into rows, with their state.

    The state is read from the frames of the versions in flight, then from the driver's own store.
    """

    def read_rows(version: int) -> Rows:
        tables, key_groups = driver.folded.tables, driver.folded.key_groups
        state_at = StateAt(driver.store, version, in_flight, lambda: driver.log, range(key_groups))
        rows: dict[str, dict[bytes, bytes | None]] = {}
        for change in changes:
            keys = [key.encode() for key in keys_read(change)]
            state = {}
            if keys and version and change.table in tables:
                start = tables[change.table].start
                groups = pa.array([key_group(key, key_groups) for key in keys], pa.int32())
                batch = pa.record_batch([groups, pa.array(keys, pa.binary())], ["g", "k"])
                values = payloads(state_at.get_stored(change.table, start, batch)).to_pylist()
                pairs = zip(keys, values, strict=True)
                state = {key.decode(): decoded(value) for key, value in pairs if value is not None}
            rows[change.table] = rows_after(change, state)
        return rows

    return read_rows
