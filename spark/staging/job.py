"""Stage: one Spark job turns a transaction's rows into frames in the log, and acks.

Rows become (key group, table, key, call, order, value) and are sent to the task that owns their key
group. There Spark sorts them (and spills by itself), a table's keys by their hash, and they are
streamed through Arrow batches into frames. The driver stages a small batch by the same ``StageWork``.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial, reduce
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, functions

from tidegate.base.names import LOCAL
from tidegate.committers.barrier import NamedCall
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.cache.in_flight import ALL_VISIBLE, FRAMES_BYTES_MAX, InFlightVersions
from tidegate.sinks.open_store import shared_store
from tidegate.spark.calls.columns import group_at, key_group, place, schema_column, task_of
from tidegate.spark.calls.local_state import local_stage
from tidegate.spark.calls.records import (
    CACHED_STATE_CALLS,
    CONTINUED_CALLS,
    STATE_CALLS,
    ApplyChanges,
    Call,
    LocalState,
    Patch,
    Reduce,
    Update,
    UpsertNewer,
)
from tidegate.spark.errors import told, typed
from tidegate.spark.placement.locality import (
    EnvironmentLocation,
    LocationIdProvider,
    executor_here,
    location_by,
)
from tidegate.spark.placement.preferred import Placement, Places, collect_at
from tidegate.spark.session.jvm import executed
from tidegate.spark.session.marked_runs import marked
from tidegate.spark.session.releases import repartition_by_id
from tidegate.spark.session.runs import Runs
from tidegate.spark.session.whole_retries import whole_retries
from tidegate.spark.staging.collect import is_ordered
from tidegate.spark.staging.declared import NOTHING_DERIVED, Planned
from tidegate.spark.staging.derive import STAGED_DDL, Deltas, DerivedWork, derive, received
from tidegate.spark.staging.first_stage import first_stage
from tidegate.spark.staging.on_driver import DriverStage
from tidegate.spark.staging.reads_by_task import accumulator_of, take
from tidegate.spark.staging.work import StageWork
from tidegate.spark.state.apply_changes import ChangedTable, NewerTable
from tidegate.spark.state.cache import CachePlace
from tidegate.spark.state.local_state import LocalWork
from tidegate.spark.state.merge import MergedTable, PatchedTable
from tidegate.spark.state.output_rows import MARK, first_groups
from tidegate.spark.state.reduce import ReduceStep
from tidegate.spark.state.timeouts import TimeoutWork
from tidegate.spark.state.update import UpdateWork
from tidegate.wal.manifest import TableChange
from tidegate.wal.open_log import shared_log
from tidegate.wal.record import BatchOrigin, Origin, TableAt, TableSchema
from tidegate.wal.staging.acks import Ack, StateReads, decode_ack, encode_ack
from tidegate.wal.staging.derived import DerivedTable
from tidegate.wal.staging.last_per_key import PLACE, groups_and_tables
from tidegate.wal.staging.own_tables import deleted_table, due_table, queue_table
from tidegate.wal.staging.spec import StageSpec

logger = logging.getLogger("tidegate")

IN_ORDER = "in order"
"""The column of places of rows that Spark has sorted completely."""


@dataclasses.dataclass
class SparkBarrier:
    """One micro-batch's transaction, ready to be staged. See ``committers.barrier.Barrier``.

    ``table_ats`` are the tables at the base version, for reading state. ``placement`` None: tasks
    have no preferred locations. ``driver_stage`` may stage the batch in the driver, as one task:
    ``parallelism`` is 1 then. None: the job stages every batch.
    """

    calls: Sequence[Call]
    tables: Mapping[str, TableChange]
    origin: Origin
    source_offsets: str
    endpoints: Endpoints
    key_groups: int
    parallelism: int
    table_ats: dict[str, TableAt]
    runs: Runs
    """The shuffles that the batch reads."""
    drops: frozenset[str] = frozenset()
    planned: Planned = NOTHING_DERIVED
    first_start: int = 0
    """The start of a table that this batch makes: no older row of its name is state."""
    in_flight: InFlightVersions | None = ALL_VISIBLE
    """The versions in flight up to the base version; None: the tasks' parts of them cannot be read."""
    placement: Placement | None = None
    function_deadline_s: float = 60.0
    cache: CachePlace | None = None
    driver_stage: DriverStage | None = None
    reads: list[StateReads] = dataclasses.field(default_factory=list)
    """How each task read its state, once it is staged."""
    by_driver: bool = False
    """Whether the driver staged the batch by itself, once it is staged."""
    spilled_bytes: int = 0
    """The cache of state's bytes on disks then, on all hosts that had a task."""

    @property
    def needs_visible_base(self) -> bool:
        """Whether a call reads its state at the base version, and not by way of the versions in flight."""
        if self.in_flight is None:
            reads = any(isinstance(call, STATE_CALLS) for call in self.calls)
            return reads or bool(self.planned.tables)
        # The rows of a timeout's queue are in any key group, so each task reads all frames.
        all_read = self.parallelism * self.in_flight.bytes_of(range(self.key_groups))
        too_much = all_read > FRAMES_BYTES_MAX
        return any(isinstance(call, LocalState) or (too_much and _times_out(call)) for call in self.calls)

    @property
    def state_calls(self) -> dict[str, str]:
        """The call that continues each table's state, by table."""
        return {call.table: call.kind for call in self.calls if isinstance(call, CONTINUED_CALLS)}

    @property
    def named_calls(self) -> tuple[NamedCall, ...]:
        """The calls as steps of the version, and the derived tables after them."""
        tasks = 0 if self.by_driver else None
        calls = [
            NamedCall(
                call.step,
                call.kind,
                tuple(call.touches),
                call.parallelism if isinstance(call, LocalState) else tasks,
            )
            for call in self.calls
        ]
        derived = [
            NamedCall(f"derive.{each.name}", "derive", (each.name,), tasks) for each in self.planned.tables
        ]
        return (*calls, *derived)

    def stage(self, spec: StageSpec, base_version: int) -> Sequence[Ack]:
        """Stage by the job, or in the driver; return one ack per task (of the job's those that
        Spark returns).

        A batch that Spark proves empty runs no task: its acks are empty too.
        """
        if not self.calls:
            return self._empty(spec)
        work = self.work(spec, base_version)
        try:
            with whole_retries(call.rows.sparkSession for call in self.calls):
                acks, self.parallelism = self.runs.staged(lambda: self._staged(work))
        finally:  # those of an attempt that failed are not kept either
            first_reads = take(self.calls[0].rows.sparkSession, spec.attempt)
        if self.driver_stage is not None:
            self.driver_stage.staged(acks)
        for number, call in enumerate(self.calls):
            if any(share.ties for ack in acks for share in ack.calls if share.call == number):
                warn_of_ties(call.table)
        self.reads[:] = [*(ack.state for ack in acks if ack.state is not None), *first_reads]
        on_disks = {ack.host: ack.state.disk_bytes for ack in acks if ack.state is not None}
        self.spilled_bytes = sum(on_disks.values())
        return acks or self._empty(spec)

    def _staged(self, work: StageWork) -> tuple[list[Ack], int]:
        """Stage once; return the acks, and by how many tasks."""
        if self.driver_stage is not None and work.in_flight.fit(1, self.key_groups):
            acks = self.driver_stage.stage(self.calls, work, self.placement, self.runs)
            if acks is not None:
                self.by_driver = True
                return acks, 1
        self.by_driver = False
        return self._by_job(work), self.parallelism

    def work(self, spec: StageSpec, base_version: int) -> StageWork:
        """Return the work of each task."""
        return StageWork(
            endpoints=self.endpoints,
            spec=spec,
            merged=self._merged(),
            base_version=base_version,
            in_flight=self.in_flight or ALL_VISIBLE,
            tasks=self.parallelism,
            cached_at=self.cache,
            stateful=(
                *(
                    table
                    for call in self.calls
                    if isinstance(call, CACHED_STATE_CALLS)
                    for table in (call.table, due_table(call.table))
                    if table in self.tables
                ),
                *sorted({table.definition.of for table in self.planned.tables}),
            ),
            derived=tuple(
                self._derived(table, number)
                for number, table in enumerate(self.planned.tables, len(self.calls))
            ),
        )

    def _derived(self, table: DerivedTable, step: int) -> DerivedWork:
        base = table.definition.of
        schema = self.tables[base].schema
        return DerivedWork(
            table,
            self._index(table.name),
            self._start(table.name),
            self._index(base),
            self._start(base),
            tuple(schema.key_types),
            tuple(column.name for column in schema.key),
            table.name in self.planned.starts,
            step,
        )

    def _by_job(self, work: StageWork) -> list[Ack]:
        provider = EnvironmentLocation() if self.placement is None else self.placement.provider
        places = self._places()
        with typed():
            rows = self._rows(work.spec, work.base_version, places)
            if work.derived:  # the second tasks run where Spark likes
                staged = rows.mapInArrow(told(_task(work, provider)), STAGED_DDL)
                acks, places = derived_acks(staged, work), None
            else:
                acks = rows.mapInArrow(told(_task(work, provider)), "ack binary")
            if places is not None:
                encoded = collect_at(acks, places, self.runs)
            else:
                encoded = [bytes(row[0]) for row in acks.collect()]
                if not self.runs.marked:
                    self.runs.read(executed(acks))
        decoded = [decode_ack(content) for content in encoded]
        if self.placement is not None and isinstance(self.origin, BatchOrigin):  # a load has no next one
            self.placement.ran(decoded)
        return decoded

    def _places(self) -> Places | None:
        if self.placement is None or not isinstance(self.origin, BatchOrigin):
            return None
        context = self.calls[0].rows.sparkSession.sparkContext
        return self.placement.places(context, self.origin.lineage, self.parallelism, self.key_groups)

    def _merged(self) -> dict[int, MergedTable]:
        """Return the tables whose rows are combined with their state while they are staged, by call."""
        merged: dict[int, MergedTable] = {}
        for number, call in enumerate(self.calls):
            schema = self.tables[call.table].schema
            target = self._index(call.table), call.table, self._start(call.table)
            match call:
                case Reduce():
                    merged[number] = ReduceStep(*target, call.reduced, tuple(schema.key_types))
                case UpsertNewer():
                    merged[number] = NewerTable(*target, call.newer_by, tuple(schema.key_types))
                case Patch():
                    columns = tuple(column.field for column in schema.value)
                    merged[number] = PatchedTable(*target, columns, frozenset(call.partial))
                case ApplyChanges():
                    deletes = deleted_table(call.table)
                    deletes_at = self._index(deletes), self._start(deletes)
                    types = tuple(schema.key_types)
                    merged[number] = ChangedTable(*target, *deletes_at, call.sequence, types, call.partial)
                case _:
                    pass
        return merged

    def _index(self, table: str) -> int:
        return [*self.tables].index(table)

    def _start(self, table: str) -> int:
        return self.table_ats[table].start if table in self.table_ats else self.first_start

    def _empty(self, spec: StageSpec) -> list[Ack]:
        return [Ack(spec.attempt, task, "", "", (), 0) for task in range(self.parallelism)]

    def _rows(self, spec: StageSpec, base_version: int, places: Places | None) -> DataFrame:
        """Return all changes as (place, k, order columns, v), in the task that owns them, sorted by place.

        Where only Spark can sort a key's changes it does, and the order columns are left out, except for the
        call's number (``wal/staging/last_per_key.py``).
        """
        parts = [
            self._part(number, call, spec, base_version, places) for number, call in enumerate(self.calls)
        ]
        rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
        number = ["c"] * (len(parts) > 1)
        by = number + [name for name in rows.columns if name.startswith("o")]
        placed = rows.select(place().alias(PLACE), "k", *by, "v")
        owner = task_of(group_at(PLACE), self.parallelism, self.key_groups)
        dealt = repartition_by_id(placed, self.parallelism, owner)
        if all(map(is_ordered, placed.select(*by).schema.fields)):
            return dealt.sortWithinPartitions(PLACE)
        return dealt.sortWithinPartitions(PLACE, "k", *by, "v").select(
            functions.col(PLACE).alias(IN_ORDER), "k", *number, "v"
        )

    def _part(
        self, number: int, call: Call, spec: StageSpec, base_version: int, places: Places | None
    ) -> DataFrame:
        """Return one call's rows. Each call has its own order columns, since types may differ."""
        if isinstance(call, Update):
            work = self._update_work(number, call, spec)
            reads = accumulator_of(call.rows.sparkSession)
            base = base_version, self.in_flight or ALL_VISIBLE
            marks = self.runs.marked
            return first_stage(call, work, self.endpoints, base, self.cache, places, reads, marked=marks)
        if isinstance(call, LocalState):
            local = self._local_work(number, call, spec, base_version)
            return local_stage(call, local, self.endpoints, marked=self.runs.marked)
        keyed = call.rows.select(
            call.key.alias("k"),
            functions.lit(self._index(call.table)).alias("t"),
            functions.lit(number).alias("c"),
            *(column.alias(f"o{number}_{place}") for place, column in enumerate(call.order)),
            call.value.alias("v"),
        )
        stride = spec.stride(call.table)
        keyed = keyed.withColumn("g", key_group(functions.col("k"), self.key_groups, stride))
        if not self.runs.marked:
            return keyed
        groups = first_groups(self.parallelism, self.key_groups)
        return marked(keyed, f"rows of {number}", {"g": groups, "t": [MARK] * len(groups)})

    def _local_work(self, number: int, call: LocalState, spec: StageSpec, base_version: int) -> LocalWork:
        instances, items = (
            self.table_ats[name].start if name in self.table_ats else -1 for name in (LOCAL, call.table)
        )
        return LocalWork(
            spec=spec,
            call=number,
            name=call.name,
            redistribute=call.redistribute,
            schema=self.tables[call.table].schema,
            migrated=call.migrated,
            rows=TableSchema((), tuple(map(schema_column, call.rows.schema.fields))),
            outputs={name: self.tables[name].schema for name in call.outputs},
            base_version=base_version,
            starts=(instances, items),
            batch=spec.batch,
            deadline_s=self.function_deadline_s,
            parallelism=call.parallelism or self.parallelism,
            tasks=self.parallelism,
        )

    def _update_work(self, number: int, call: Update, spec: StageSpec) -> UpdateWork:
        return UpdateWork(
            spec=spec,
            call=number,
            table=call.table,
            start=self._start(call.table),
            rows=TableSchema((), call.row_columns),
            schemas={name: self.tables[name].schema for name in (call.table, *call.outputs)},
            batch=spec.batch,
            deadline_s=self.function_deadline_s,
            parallelism=self.parallelism,
            timeout=None
            if call.timeout_us is None
            else TimeoutWork(
                call.timeout_us, *map(self._start, (due_table(call.table), queue_table(call.table)))
            ),
        )


@lru_cache(maxsize=1_000)
def warn_of_ties(table: str) -> None:
    """Log, once per process and table, that a delete and a row had the same sequence."""
    logger.warning(
        "table %s: a row and a delete of one key have the same sequence, and the delete won; order changes by"
        " a second column without ties, such as the record's offset (docs/cdc.md); tidegate_step_ties_total"
        " counts them",
        table,
    )


def _times_out(call: Call) -> bool:
    return isinstance(call, Update) and call.timeout_us is not None


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
        endpoints, names = work.endpoints, (work.endpoints.namespace, work.spec.namespace)
        log = shared_log(endpoints.wal, *names, endpoints.wal_options)
        store = partial(shared_store, endpoints.store, *names, endpoints.store_options)
        changes, attempt = map(with_groups, batches), context.attemptNumber()
        deltas = Deltas(work.derived, work.spec) if work.derived else None
        ack = work.run(changes, log, store, lambda: log, task, attempt, location_by(provider), deltas)
        ack = msgspec.structs.replace(ack, executor=executor_here()[0])
        if deltas is None:
            yield pa.record_batch({"ack": pa.array([encode_ack(ack)], pa.binary())})
        else:
            yield from deltas.rows(ack, work.tasks)

    return run


def derived_acks(staged: DataFrame, work: StageWork) -> DataFrame:
    """Return one ack per task, with the frames of derived tables, from the output of staging tasks."""
    owner = task_of(functions.col("g"), work.tasks, work.spec.key_groups)
    return repartition_by_id(staged, work.tasks, owner).mapInArrow(told(_derive(work)), "ack binary")


def _derive(work: StageWork) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        got = received(batches, work.tasks)
        if got is None:
            return
        endpoints, names = work.endpoints, (work.endpoints.namespace, work.spec.namespace)
        log = shared_log(endpoints.wal, *names, endpoints.wal_options)
        store = shared_store(endpoints.store, *names, endpoints.store_options)
        read = work.state_at(store, lambda: log, got.ack.task)
        ack = derive(got.ack, got.parts, work.derived, read, work.spec, log)
        yield pa.record_batch({"ack": pa.array([encode_ack(ack)], pa.binary())})

    return run
