"""The work of one staging task: changes are merged with state and written to the log, as frames.

Spark's tasks run it, and the driver runs it for a small batch. Only the source of the rows differs.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from tidegate.options import Endpoints
from tidegate.sinks.store import Store
from tidegate.spark.state.cache import CachedState, CachePlace, state_reader, total_reads
from tidegate.spark.state.merge import MergedTable, merge_with
from tidegate.spark.state.output_rows import strip_marks
from tidegate.spark.state.read import from_store
from tidegate.wal.record import Ack, StateReads
from tidegate.wal.staging.changelog import Staging, stage_task
from tidegate.wal.staging.spec import StageSpec


@dataclasses.dataclass(frozen=True)
class StageWork:
    """The work of a staging task, also of the driver as one. Plain data that travels to tasks."""

    endpoints: Endpoints
    spec: StageSpec
    merged: Sequence[MergedTable]
    base_version: int
    tasks: int
    cached_at: CachePlace | None
    stateful: Sequence[str]

    def as_single_task(self) -> StageWork:
        """Return the same work for a single task."""
        return dataclasses.replace(self, tasks=1)

    def run(
        self,
        batches: Iterable[Any],
        log: Staging,
        store: Callable[[], Store],
        task: int,
        tries: int,
        host: str,
    ) -> Ack:
        """Write the changes to the log; return the ack once they are durable. Raises: as ``stage_task``."""
        spec, task_attempt, cache, merge = self.spec, f"{tries}-{secrets.token_hex(4)}", None, None
        if self.cached_at is not None and CachedState.is_needed(
            self.cached_at, spec, stateful=bool(self.stateful)
        ):
            cache = CachedState(self.cached_at, spec, task, self.tasks, task_attempt, self.stateful)
        if self.merged:
            read = state_reader(store(), spec, self.base_version, cache)
            uncached = from_store(store(), self.base_version, spec.at_us)
            merge = merge_with(read, self.merged, self.base_version, spec, uncached)
        runs: dict[str, str] = {}
        reads: dict[str, StateReads] = {}  # of functions' first stages; every staging task receives all
        rows_in = InputCounter()
        ack = stage_task(
            rows_in.counted(strip_marks(batches, runs, reads)),
            spec,
            log,
            task=task,
            task_attempt=task_attempt,
            host=host,
            merge=merge,
            watch=None if cache is None else cache.watch,
        )
        ack = msgspec.structs.replace(ack, runs=runs, given=(rows_in.rows, rows_in.bytes))
        ack = ack if cache is None else cache.keep(ack)
        if task == 0 and ack.state is not None:
            ack = msgspec.structs.replace(ack, state=total_reads([ack.state, *reads.values()]))
        return ack


class InputCounter:
    """A counter of the rows and bytes of a stream of batches."""

    rows = bytes = 0

    def counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            self.rows += batch.num_rows
            self.bytes += batch.nbytes
            yield batch
