"""The plan of a batch: everything that its tasks need, made beside the driver before they run.

The commit makes the same barrier from the same options, and compares its own spec with the one by which the
tasks staged. So a batch is decided only if nothing that a task relies on has changed in between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from tidegate.committers.barrier import check_tables, stage_spec
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import ConfigError, ConflictError, FencedError, LineageError, StoreLostError, WalGapError
from tidegate.options import Options
from tidegate.sinks.rules.visible import schemas_by_table
from tidegate.spark.batch import BatchContext, refuse_without_past
from tidegate.spark.calls.collected import CollectedCalls
from tidegate.spark.calls.records import Replace, Upsert, UpsertNewer
from tidegate.spark.calls.update import check_ttls
from tidegate.spark.placement.locality import Locality
from tidegate.spark.reporting import SinkReporter
from tidegate.spark.source.writing.checkpoint import planned_batch
from tidegate.spark.source.writing.options import WriteOptions
from tidegate.spark.source.writing.prepare import Prepared, newer_column
from tidegate.spark.staging.declared import table_changes
from tidegate.spark.staging.job import SparkBarrier
from tidegate.spark.staging.work import StageWork
from tidegate.spark.state.apply_changes import sequence_column
from tidegate.spark.writer import Connections, Published, WriterSettings
from tidegate.values.evolve import as_stored, stored_names
from tidegate.wal.fold import replay_of
from tidegate.wal.record import Folded, TableSchema
from tidegate.wal.staging.acks import Ack
from tidegate.wal.staging.spec import StageSpec


@dataclasses.dataclass(frozen=True)
class Write:
    """One query's write: its options, the rows that come, and whether a batch is the whole table."""

    to: WriteOptions
    rows: Prepared
    replaces: bool

    def __post_init__(self) -> None:
        for name in ("newer_by", "delete_when") * self.replaces:
            if self.rows.newer_by if name == "newer_by" else self.rows.deletes:
                raise ConfigError(
                    f"table {self.to.table}: {name} of prepare and the output mode complete do not go"
                    " together: each batch replaces the whole table. Leave it out. Nothing was written"
                )

    @property
    def options(self) -> Options:
        """The options of the driver that plans or commits."""
        return Options.of({**self.to.options, "key_groups": self.rows.key_groups})

    def connections(self, reporter: SinkReporter, published: Published = lambda *_: None) -> Connections:
        """Return a coordinator that is not open."""
        settings = WriterSettings(self.to.endpoints, self.options, Locality(), reporter, published)
        return Connections(settings, None)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The input of a batch's tasks. ``work`` None: the batch was decided before, and is not staged again.

    ``epoch`` is the newest of the log.
    """

    batch: BatchContext
    work: StageWork | None
    epoch: int


@dataclasses.dataclass
class StagedBarrier(SparkBarrier):
    """A batch whose tasks stage, or have staged: ``acks`` are theirs, in an attempt at ``base_version``."""

    acks: Sequence[Ack] = ()
    base_version: int = 0

    def stage(self, spec: StageSpec, base_version: int) -> Sequence[Ack]:
        """Return the acks. Raises: ConflictError: another version was decided since the plan."""
        if base_version != self.base_version:
            raise changed(f"version {base_version} was decided")
        if len(self.acks) != self.parallelism and not any(ack.given[0] for ack in self.acks):
            return self._empty(spec)  # Spark makes a batch that it proves empty one task
        return self.acks


def changed(what: str) -> ConflictError:
    """Build the error for a batch whose plan holds no longer."""
    return ConflictError(
        f"{what} after this batch was planned: nothing was decided. Start the query again, which stages the"
        " batch once more; a namespace serves one writer at a time"
    )


# -- beside the driver, before the tasks run ---------------------------------------------------------------


class Planner:
    """Plans the batches of one write in this process."""

    def __init__(self, write: Write) -> None:
        self.key = os.getpid(), write
        self._write = write
        self._connections = write.connections(SinkReporter(write.to.endpoints, write.options))
        self._coordinator = self._connections.coordinator

    def plan(self) -> Plan:
        """Plan the batch that runs. A namespace that is missing is made, and one that is not whole recovered.

        Raises: ConfigError, LineageError: the batch cannot be written; nothing was staged.
        """
        write, coordinator = self._write, self._coordinator
        batch = planned_batch(write.to.checkpoint)
        state = coordinator.decisions.catch_up()
        if state is not None and state.key_groups != write.rows.key_groups:
            raise ConfigError(
                f"prepare placed the rows for {write.rows.key_groups} key groups, and namespace"
                f" {state.name} has {state.key_groups}: give prepare key_groups={state.key_groups}."
                " Nothing was written"
            )
        if not self._is_whole(state, batch):
            open_namespace(coordinator, batch.lineage, accepts(write, batch))
        state = coordinator.folded
        origin = batch.origin(state)
        if replay_of(state, origin) is not None:
            return Plan(batch, None, state.epoch)
        barrier = barrier_of(write, coordinator, schemas_at(coordinator), batch)
        check_tables(coordinator, barrier)
        spec = stage_spec(coordinator, barrier, coordinator.clock.new_id())
        return Plan(batch, barrier.work(spec, barrier.base_version), state.epoch)

    def close(self) -> None:
        """Close the connections. Repeatable."""
        self._connections.close()

    def _is_whole(self, state: Folded | None, batch: BatchContext) -> bool:
        """Return whether the namespace follows this query, and shows all that it has."""
        store = self._coordinator.store
        return (
            state is not None
            and state.lineage == batch.lineage
            and store.identity() is not None
            and store.pointer().visible == state.last_version
        )


_planners: list[Planner] = []
"""The one planner of this process."""
OF_THE_PAST = (FencedError, LineageError, StoreLostError, WalGapError)
"""Errors of a planner that knows a namespace which was lost since, or was dropped and made again."""


def plan_of(write: Write) -> Plan:
    """Plan the batch that runs now, by connections that this process keeps from batch to batch."""
    if _planners and _planners[0].key == (os.getpid(), write):
        with contextlib.suppress(*OF_THE_PAST):
            return _planners[0].plan()
    forget_planner()
    _planners.append(Planner(write))
    try:
        return _planners[0].plan()
    except BaseException:
        forget_planner()
        raise


def forget_planner() -> None:
    """Close the planner of this process, if there is one."""
    while _planners:
        _planners.pop().close()


# -- the same on both sides ----------------------------------------------------------------------------------


def accepts(write: Write, batch: BatchContext) -> Callable[[Folded], None]:
    """Return the check of a namespace that is opened: it has this query's earlier batches."""

    def check(state: Folded) -> None:
        refuse_without_past(write.to.endpoints.namespace, batch, state)
        replay_of(state, batch.origin(state))

    return check


def schemas_at(coordinator: Coordinator) -> dict[str, TableSchema]:
    """Return the schemas of all tables at the last version, which is visible. Raises: CorruptError."""
    state = coordinator.folded
    schemas = coordinator.store.schemas_of(sorted({table_at.schema_id for table_at in state.tables.values()}))
    return schemas_by_table(coordinator.store.where, state.last_version, state.tables, schemas)


def barrier_of(
    write: Write,
    coordinator: Coordinator,
    known: Mapping[str, TableSchema],
    batch: BatchContext,
    acks: Sequence[Ack] = (),
) -> StagedBarrier:
    """Return the batch as a barrier after the last version, whose schemas are ``known``.

    Raises: ConfigError: the rows do not fit the table.
    """
    state, table = coordinator.folded, write.to.table
    if table in state.tables and state.tables[table].apart != 1:
        raise ConfigError(
            f"table {table} has fewer key groups than its namespace, and prepare does not place rows by them:"
            " write this table by foreachBatch. Nothing was written"
        )
    collected = CollectedCalls(batch.batch_id, known)
    collected.add_staged(_call(write, known.get(table)))
    made = collected.close()
    check_ttls(made.calls, coordinator.options.ttl_us)
    return StagedBarrier(
        calls=made.calls,
        tables=table_changes(made, quarantines=coordinator.options.on_bad_record == "quarantine"),
        origin=batch.origin(state),
        source_offsets=batch.source_offsets,
        endpoints=write.to.endpoints.only(),
        key_groups=state.key_groups,
        parallelism=write.rows.parallelism,
        table_ats=state.tables,
        runs=cast("Any", None),  # no job of ours reads its shuffles
        drops=made.drops,
        first_start=state.first_start,
        acks=acks,
        base_version=state.last_version,
    )


def _call(write: Write, known: TableSchema | None) -> Upsert | UpsertNewer | Replace:
    table, schema = write.to.table, write.rows.schema
    kind: Any = Replace if write.replaces else Upsert
    renamed = stored_names(known)
    if renamed and not write.replaces:
        raise ConfigError(
            f"table {table} has the renamed column {next(iter(renamed))}, whose stored name prepare does"
            " not know: write this table by foreachBatch. Nothing was written"
        )
    newer = newer_column(write.rows)
    nothing = cast("Any", None)  # the rows and columns of this call are with its tasks
    if newer is not None:
        sequence = sequence_column(table, as_stored(newer, known), "newer_by")
        kind = partial(UpsertNewer, newer_by=sequence)
    return kind(table, nothing, schema.key, schema, nothing, nothing, ())  # type: ignore[no-any-return]
