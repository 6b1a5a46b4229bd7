"""The work of one staging task: changes are merged with state and written to the log, as frames.

Spark's tasks run it, and the driver runs it for a small batch. Only the source of the rows differs.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow.compute as pc

from tidegate.keys.groups import groups_of
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.cache.in_flight import InFlightVersions
from tidegate.sinks.cache.state_at import StateAt
from tidegate.sinks.store import Store
from tidegate.spark.staging.derive import Deltas, DerivedWork
from tidegate.spark.state.apply_changes import TieCounter
from tidegate.spark.state.cache import CachedState, CachePlace, state_reader
from tidegate.spark.state.merge import MergedTable, merge_with
from tidegate.spark.state.output_rows import RunMark, strip_marks
from tidegate.spark.state.read import ReadState, uncached
from tidegate.wal.log import Blobs
from tidegate.wal.staging.acks import Ack, CallShare
from tidegate.wal.staging.changelog import Staging, Watch, stage_task
from tidegate.wal.staging.last_per_key import PLACE
from tidegate.wal.staging.spec import CHANGES, StageSpec

CALL = "c"
"""The column of the number of a row's call, where a transaction has several calls."""


@dataclasses.dataclass(frozen=True)
class StageWork:
    """The work of a staging task, also of the driver as one. Plain data that travels to tasks."""

    endpoints: Endpoints
    spec: StageSpec
    merged: Mapping[int, MergedTable]
    base_version: int
    in_flight: InFlightVersions
    tasks: int
    cached_at: CachePlace | None
    stateful: Sequence[str]
    derived: Sequence[DerivedWork] = ()

    def as_single_task(self) -> StageWork:
        """Return the same work for a single task."""
        return dataclasses.replace(self, tasks=1)

    def run(
        self,
        batches: Iterable[Any],
        log: Staging,
        store: Callable[[], Store],
        blobs: Callable[[], Blobs],
        task: int,
        tries: int,
        host: str,
        deltas: Deltas | None = None,
    ) -> Ack:
        """Write the changes to the log; return the ack once they are durable.

        ``blobs`` opens the log for reads of frames. ``deltas`` gets the changes of derived tables. Raises: as
        ``stage_task``.
        """
        spec, task_attempt, cache, merge = self.spec, f"{tries}-{secrets.token_hex(4)}", None, None
        if self.cached_at is not None and CachedState.is_needed(
            self.cached_at, spec, stateful=bool(self.stateful)
        ):
            cache = CachedState(self.cached_at, spec, task, self.tasks, task_attempt, self.stateful, blobs)
        spent, ties = [0.0] * len(self.merged), TieCounter(self.merged.values())
        if self.merged or deltas is not None:
            groups = groups_of(task, self.tasks, spec.key_groups)
            state = StateAt(store(), self.base_version, self.in_flight, blobs, groups, spec.stride)
            reads = state_reader(state, spec, cache), uncached(state, spec.at_us)
            if deltas is not None:
                deltas.read_by(reads[0])
                reads = deltas.remembering(reads[0]), deltas.remembering(reads[1])
        if self.merged:
            tables = list(self.merged.values())
            merge = merge_with(reads[0], tables, self.base_version, spec, reads[1], spent, ties)
        marks: dict[str, RunMark] = {}  # of functions' first stages; every staging task receives all
        rows_in = InputCounter()
        ack = stage_task(
            rows_in.counted(strip_marks(batches, marks)),
            spec,
            log,
            task=task,
            task_attempt=task_attempt,
            host=host,
            merge=merge,
            watch=watch_of([each.watch for each in (cache, deltas) if each is not None]),
            superseded=ties.superseded if ties.counts else None,
        )
        for (number, table), seconds in zip(self.merged.items(), spent, strict=True):
            rows_in.add_measures(number, seconds, ties.counts.get(table.index, 0))
        for mark in marks.values():
            if mark.call >= 0:
                rows_in.add_measures(mark.call, mark.seconds, 0)
        runs = {name: mark.digest for name, mark in marks.items()}
        ack = msgspec.structs.replace(
            ack, runs=runs, given=(rows_in.rows, rows_in.bytes), calls=tuple(rows_in.calls.values())
        )
        return ack if cache is None else cache.keep(ack)

    def state_at(self, store: Store, blobs: Callable[[], Blobs], task: int) -> ReadState:
        """Return a read of a task's tables at the base version, past the caches."""
        groups = groups_of(task, self.tasks, self.spec.key_groups)
        state = StateAt(store, self.base_version, self.in_flight, blobs, groups, self.spec.stride)
        return uncached(state, self.spec.at_us)


def watch_of(watches: Sequence[Watch]) -> Watch | None:
    """Return a watch that calls all of these; None: there are none."""

    def watch(batch: Any) -> None:
        for each in watches:
            each(batch)

    return watch if watches else None


class InputCounter:
    """A counter of the rows and bytes of a stream of batches, in all and by call.

    A column ``c`` has the number of each row's call; without one all are of call 0.
    """

    def __init__(self) -> None:
        self.rows = self.bytes = 0
        self.calls: dict[int, CallShare] = {}

    def counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches. Those in order already are yielded without ``c``, by which none is sorted."""
        for batch in batches:
            self._add(batch)
            rows = batch if PLACE in batch.schema.names else batch.select(CHANGES.names)
            self.rows += rows.num_rows
            self.bytes += rows.nbytes
            yield rows

    def add_measures(self, number: int, seconds: float, ties: int) -> None:
        """Add to the time and the ties of the call of this number."""
        share = self.calls.get(number, CallShare(number))
        self.calls[number] = msgspec.structs.replace(
            share, seconds=share.seconds + seconds, ties=share.ties + ties
        )

    def _add(self, batch: Any) -> None:
        if not batch.num_rows:
            return
        lengths = [pc.binary_length(batch[name]) for name in "kv"]
        if CALL in batch.schema.names:
            numbers = batch[CALL].to_numpy()
            of_rows = pc.add(*(pc.fill_null(column, 0) for column in lengths)).to_numpy()
            rows, sizes = np.bincount(numbers).tolist(), np.bincount(numbers, of_rows).tolist()
        else:
            rows, sizes = [batch.num_rows], [sum(pc.sum(column).as_py() or 0 for column in lengths)]
        for number, (more_rows, more_bytes) in enumerate(zip(rows, sizes, strict=True)):
            if more_rows:
                share = self.calls.get(number, CallShare(number))
                self.calls[number] = msgspec.structs.replace(
                    share, rows=share.rows + more_rows, bytes=share.bytes + int(more_bytes)
                )
