"""Stage: one Spark job turns a transaction's rows into frames in the log, and acks.

Rows become (key group, table, key, call, order, value) and are sent to the task that owns their key
group. There Spark sorts them (and spills by itself), a table's keys by their hash, and they are
streamed through Arrow batches into frames. A driver without Spark runs the same ``stage_task``.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, functions

from tidegate.base.names import LOCAL
from tidegate.options import Endpoints
from tidegate.sinks.open_store import shared_store
from tidegate.sinks.store import Store
from tidegate.spark.calls.columns import group_at, key_group, place, schema_column, task_of
from tidegate.spark.calls.local_state import Local, local_stage
from tidegate.spark.calls.update import Update
from tidegate.spark.errors import typed
from tidegate.spark.placement.locality import (
    EnvironmentLocation,
    LocationIdProvider,
    executor_here,
    location_by,
)
from tidegate.spark.placement.preferred import Placement, Places, collect_at
from tidegate.spark.staging.collect import is_ordered
from tidegate.spark.staging.first_stage import first_stage
from tidegate.spark.state.apply_changes import ChangedTable, deleted_table
from tidegate.spark.state.cache import CachedState, CachePlace, state_reader, together
from tidegate.spark.state.local_state import LocalWork
from tidegate.spark.state.merge import MergedTable, PatchedTable, merge_with
from tidegate.spark.state.output_rows import unmarked
from tidegate.spark.state.read import from_store
from tidegate.spark.state.reduce import ReduceStep
from tidegate.spark.state.update import UpdateWork
from tidegate.spark.transaction import Call
from tidegate.wal.open_log import shared_log
from tidegate.wal.record import (
    Ack,
    BatchOrigin,
    Origin,
    StateReads,
    TableAt,
    TableSchema,
    decode_ack,
    encode_ack,
)
from tidegate.wal.staging import quarantine
from tidegate.wal.staging.bad_rows import StageSpec
from tidegate.wal.staging.changelog import Staging, stage_task
from tidegate.wal.staging.last_per_key import PLACE, groups_and_tables


class LocalStager(Protocol):
    """The driver as the single task of small batches."""

    def stage(self, barrier: SparkBarrier, work: StageWork) -> list[Ack] | None:
        """Return the driver's ack if it staged the batch itself; None: the job must."""
        ...

    def staged(self, acks: Sequence[Ack]) -> None:
        """Receive the acks of a staged batch, whichever way it was staged."""
        ...


IN_ORDER = "in order"
"""The column of places of rows that Spark has sorted completely."""
STATEFUL = ("reduce", "patch", "update")
"""Calls that read their table's state at the base version."""


@dataclasses.dataclass
class SparkBarrier:
    """One micro-batch's transaction, ready to be staged. See ``committers.barrier.Barrier``.

    ``table_ats`` are the tables at the base version, for reading state. ``placement`` None: tasks
    have no preferred locations. ``alone`` is first given the chance to stage the batch in the
    driver, as one task: ``parallelism`` is 1 then. None: it never does.
    """

    calls: Sequence[Call]
    schemas: dict[str, TableSchema]
    origin: Origin
    source_offsets: str
    endpoints: Endpoints
    key_groups: int
    parallelism: int
    table_ats: dict[str, TableAt]
    starts: frozenset[str] = frozenset()
    expiring: frozenset[str] = frozenset()
    """Tables whose rows may have an expiry already."""
    placement: Placement | None = None
    function_deadline_s: float = 60.0
    cache: CachePlace | None = None
    alone: LocalStager | None = None
    reads: list[StateReads] = dataclasses.field(default_factory=list)
    """How each task read its state, once it is staged."""
    spilled_bytes: int = 0
    """The cache of state's bytes on disks then, on all hosts that had a task."""

    @property
    def reads_state(self) -> bool:
        """Whether a call reads its table's state at the base version."""
        return any(call.kind in STATEFUL or call.local or call.changed for call in self.calls)

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables in index order; the quarantine, if any, is last: its rows end their key group."""
        return tuple(sorted(self.schemas, key=lambda name: (name == quarantine.TABLE, name)))

    def stage(self, spec: StageSpec, base_version: int) -> Sequence[Ack]:
        """Stage by the job, or in the driver; return one ack per task (of the job's those that
        Spark returns).

        A batch that Spark proves empty runs no task: its acks are empty too.
        """
        if not self.calls:
            return self._empty(spec)
        work = self.work(spec, base_version)
        acks = None if self.alone is None else self.alone.stage(self, work)
        if acks is not None:
            self.parallelism = 1
        else:
            acks = self._by_job(work)
        if self.alone is not None:
            self.alone.staged(acks)
        self.reads[:] = [ack.state for ack in acks if ack.state is not None]
        on_disks = {ack.host: ack.state.disk_bytes for ack in acks if ack.state is not None}
        self.spilled_bytes = sum(on_disks.values())
        return acks or self._empty(spec)

    def work(self, spec: StageSpec, base_version: int) -> StageWork:
        """Return the work of each task."""
        stateful = tuple(call.table for call in self.calls if call.kind in STATEFUL)
        return StageWork(
            self.endpoints, spec, self._merged(), base_version, self.parallelism, self.cache, stateful
        )

    def _by_job(self, work: StageWork) -> list[Ack]:
        provider = EnvironmentLocation() if self.placement is None else self.placement.provider
        places = self._places()
        with typed():
            rows = self._rows(work.spec, work.base_version, places)
            acks = rows.mapInArrow(_task(work, provider), "ack binary")
            if places is not None:
                found = collect_at(acks, places)
            else:
                found = [bytes(row[0]) for row in acks.collect()]
        decoded = [decode_ack(content) for content in found]
        if self.placement is not None:
            self.placement.ran(decoded)
        return decoded

    def _places(self) -> Places | None:
        if self.placement is None or not isinstance(self.origin, BatchOrigin):
            return None
        context = self.calls[0].rows.sparkSession.sparkContext
        return self.placement.places(context, self.origin.lineage, self.parallelism, self.key_groups)

    def _merged(self) -> list[MergedTable]:
        """Return the tables whose rows are combined with their state while they are staged."""
        found: list[MergedTable] = []
        for call in self.calls:
            at = self.tables.index(call.table), call.table, self._start(call.table)
            key_types = tuple(column.type for column in self.schemas[call.table].key)
            if call.kind == "reduce":
                found.append(ReduceStep(*at, call.reduced, key_types))
            elif call.kind == "patch":
                columns = tuple(column.name for column in self.schemas[call.table].value)
                found.append(PatchedTable(*at, columns))
            elif call.changed:
                beside = deleted_table(call.table)
                deletes = self.tables.index(beside), self._start(beside)
                found.append(ChangedTable(*at, *deletes, call.changed, key_types))
        return found

    def _start(self, table: str) -> int:
        return self.table_ats[table].start if table in self.table_ats else 0

    def _empty(self, spec: StageSpec) -> list[Ack]:
        return [Ack(spec.attempt, task, "", "", (), 0) for task in range(self.parallelism)]

    def _rows(self, spec: StageSpec, base_version: int, places: Places | None) -> DataFrame:
        """Return all changes as (place, k, order columns, v), in the task that owns them, sorted by place.

        Where only Spark can sort a key's changes it does, and the order columns are left out
        (``wal/staging/last_per_key.py``).
        """
        parts = [
            self._part(number, call, spec, base_version, places) for number, call in enumerate(self.calls)
        ]
        rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
        by = ["c"] * (len(parts) > 1) + [name for name in rows.columns if name.startswith("o")]
        placed = rows.select(place().alias(PLACE), "k", *by, "v")
        owner = task_of(group_at(PLACE), self.parallelism, self.key_groups)
        dealt = placed.repartitionById(self.parallelism, owner)
        if all(map(is_ordered, placed.select(*by).schema.fields)):
            return dealt.sortWithinPartitions(PLACE)
        return dealt.sortWithinPartitions(PLACE, "k", *by, "v").select(
            functions.col(PLACE).alias(IN_ORDER), "k", "v"
        )

    def _part(
        self, number: int, call: Call, spec: StageSpec, base_version: int, places: Places | None
    ) -> DataFrame:
        """Return one call's rows. Each call has its own order columns, since types may differ."""
        if call.update is not None:
            work = self._work(number, call, call.update, spec)
            return first_stage(call, work, self.endpoints, base_version, self.cache, places)
        if call.local is not None:
            local = self._local_work(number, call, call.local, spec, base_version)
            return local_stage(call.local, call.rows, local, self.endpoints)
        keyed = call.rows.select(
            call.key.alias("k"),
            functions.lit(self.tables.index(call.table)).alias("t"),
            functions.lit(number).alias("c"),
            *(column.alias(f"o{number}_{place}") for place, column in enumerate(call.order)),
            call.value.alias("v"),
        )
        return keyed.withColumn("g", key_group(functions.col("k"), self.key_groups))

    def _local_work(
        self, number: int, call: Call, local: Local, spec: StageSpec, base_version: int
    ) -> LocalWork:
        known = [self.table_ats[name].start if name in self.table_ats else -1 for name in (LOCAL, call.table)]
        return LocalWork(
            spec,
            number,
            local.name,
            local.redistribute,
            self.schemas[call.table],
            TableSchema((), tuple(map(schema_column, call.rows.schema.fields))),
            {name: self.schemas[name] for name in local.outputs},
            base_version,
            (known[0], known[1]),
            spec.batch,
            self.function_deadline_s,
            self.parallelism,
        )

    def _work(self, number: int, call: Call, update: Update, spec: StageSpec) -> UpdateWork:
        return UpdateWork(
            spec,
            number,
            call.table,
            self._start(call.table),
            TableSchema((), update.rows),
            {name: self.schemas[name] for name in call.touches},
            spec.batch,
            self.function_deadline_s,
            self.parallelism,
        )


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

    def alone(self) -> StageWork:
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
            beside = from_store(store(), self.base_version, spec.at_us)  # for tables outside the cache
            merge = merge_with(read, self.merged, self.base_version, beside)
        runs: dict[str, str] = {}
        reads: dict[str, StateReads] = {}  # of functions' first stages; every staging task receives all
        given = InputCounter()
        ack = stage_task(
            given.counted(unmarked(batches, runs, reads)),
            spec,
            log,
            task=task,
            task_attempt=task_attempt,
            host=host,
            merge=merge,
            watch=None if cache is None else cache.watch,
        )
        ack = msgspec.structs.replace(ack, runs=runs, given=(given.rows, given.bytes))
        ack = ack if cache is None else cache.kept(ack)
        if task == 0 and ack.state is not None:
            ack = msgspec.structs.replace(ack, state=together([ack.state, *reads.values()]))
        return ack


class InputCounter:
    """A counter of the rows and bytes of a stream of batches."""

    rows = bytes = 0

    def counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            self.rows += batch.num_rows
            self.bytes += batch.nbytes
            yield batch


def with_groups(batch: Any) -> Any:
    """Convert a batch whose first column has places to ``CHANGES`` with its order columns."""
    groups, tables = groups_and_tables(batch.column(0).to_numpy())
    columns = {"g": pa.array(groups, pa.int32()), "t": pa.array(tables, pa.int32()), "k": batch["k"]}
    rest = (name for name in batch.schema.names if name not in ("k", IN_ORDER))
    return pa.record_batch(columns | {name: batch[name] for name in rest})


def _task(work: StageWork, provider: LocationIdProvider) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        if context is None:
            msg = "a staging task runs inside a Spark task only"
            raise RuntimeError(msg)
        task = context.partitionId() % work.tasks  # of a placed job: see placement.collect_at
        at, named = work.endpoints, (work.endpoints.namespace, work.spec.namespace)
        log = shared_log(at.wal, *named, at.wal_options)
        store = partial(shared_store, at.store, *named, at.store_options)
        ack = work.run(
            map(with_groups, batches), log, store, task, context.attemptNumber(), location_by(provider)
        )
        ack = msgspec.structs.replace(ack, executor=executor_here()[0])
        yield pa.record_batch({"ack": pa.array([encode_ack(ack)], pa.binary())})

    return run
