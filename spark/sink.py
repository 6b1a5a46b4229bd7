"""``VersionedSink``: every micro-batch becomes one version of the namespace, or none."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidegate.base.deadline import check_ends
from tidegate.base.text import brief
from tidegate.committers.background.finish import finish_decided
from tidegate.committers.background.follower import Standing
from tidegate.committers.background.process_end import catch_sigterm
from tidegate.committers.barrier import NONE_BROUGHT, Barrier, stride_here, value_bytes_max
from tidegate.committers.opening.lost_store import refuse_if_dropped, shows_nothing
from tidegate.committers.rename_column import rename_barrier
from tidegate.committers.repair.derive import build_barrier, drop_barrier
from tidegate.committers.states import Watch
from tidegate.committers.steps.phases import Phases
from tidegate.errors import ConfigError, FencedError, StoreLostError, TidegateError
from tidegate.observe.events import Commit
from tidegate.options import PIPELINED, Options, SinkOptions
from tidegate.options.endpoints import Endpoints, StoreRef
from tidegate.sinks.open_store import open_store
from tidegate.spark.batch import (
    BatchContext,
    batch_context,
    is_connect,
    is_running,
    refuse_after_swallowed_error,
    refuse_without_past,
    warn_of_missing_batches,
)
from tidegate.spark.calls.checks import Names, check_table, columns_named, key_columns
from tidegate.spark.calls.newer import check_alone
from tidegate.spark.calls.update import Ddl, check_ttls
from tidegate.spark.errors import as_query_stop
from tidegate.spark.loads import Base, Here, Migration, Once, import_of, load_of, migration_of
from tidegate.spark.lock import SinkLock
from tidegate.spark.placement.locality import Locality
from tidegate.spark.reporting import SinkReporter
from tidegate.spark.session.failures import Failures
from tidegate.spark.session.marked_runs import MarkedRuns
from tidegate.spark.session.runs import Runs
from tidegate.spark.session.single_runs import SingleRuns
from tidegate.spark.session.workers_python import check_workers_python
from tidegate.spark.staging.declared import Derived, Made, check_declared, declared, planned
from tidegate.spark.staging.job import SparkBarrier
from tidegate.spark.staging.on_driver import DriverStage
from tidegate.spark.staging.parallelism import tasks_for, warn_of_imbalance
from tidegate.spark.staging.small_batches import SmallBatchPredictor
from tidegate.spark.state.cache import total_reads
from tidegate.spark.state.udf_runner import Migrate
from tidegate.spark.transaction import Transaction
from tidegate.spark.writer import Alive, Connections, OpenWriter, WriterSettings
from tidegate.wal.fold import decided_for, once_key, replay_of, undone_by
from tidegate.wal.manifest import Manifest
from tidegate.wal.open_log import open_log
from tidegate.wal.record import DecidedVersion, Folded, ImportOrigin, Origin, StateReads
from tidegate.wal.staging import quarantine
from tidegate.wal.staging.derived_guard import brought_whole

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger("tidegate")

Write = Callable[[Transaction, DataFrame], None]


def _made(arguments: dict[str, Any], checkpoint: str | None) -> VersionedSink:
    sink = VersionedSink(**arguments)
    sink._checkpoint = checkpoint  # noqa: SLF001 - its own module
    return sink


NO_DERIVED = (
    "derived= does not go with Spark Connect yet: derived tables are kept in classic sessions alone. Nothing"
    " was written. Use a classic session for this query"
)


def _runs_of(session: Any) -> Runs:
    """Begin the proof of single runs for one version. Raises: ConfigError: there is none on this Spark."""
    return MarkedRuns(session) if is_connect(session) else SingleRuns(session.sparkContext)


class VersionedSink:
    """A sink for ``foreachBatch``: one atomic, numbered version per micro-batch.

    >>> sink = VersionedSink(                                          # doctest: +SKIP
    ...     namespace="flights", wal="file:///data/wal", store="sqlite:///data/store",
    ...     table="aircraft", key="tailnum", order_by="time_hour",
    ... )
    >>> df.writeStream.foreachBatch(sink).option("checkpointLocation", path).start()

    With ``table`` and ``key`` the sink upserts every batch into that table; without them give
    ``sink.each(write)`` a function that writes several tables. ``order_by`` orders the rows of one batch,
    ``newer_by`` also against the stored rows (``Transaction.upsert``). Making a sink writes nothing;
    the namespace is opened, and created if missing, at the first batch. One sink serves one
    query at a time. Further keywords are ``tidegate.SinkOptions`` (docs/configuration.md).

    ``ttl``, by table or for the one, is the time that rows live after they were last written. ``locality``
    configures the placement of tasks, and the place where it is remembered (docs/state.md).

    ``store`` may be a list, each item a URL or ``name=URL``. The first is the primary, from which
    state is read and which alone a batch waits for; the others follow in the background. Then
    ``store_options`` are by the store's name.

    ``derived`` are tables that are the aggregation of another one at every version (docs/totals.md). Give all
    of the namespace, at each start: a version that would leave one behind is refused.

    Raises: ConfigError: an option, a URL or a name is wrong; nothing was written.
    """

    def __init__(  # noqa: PLR0913 - the documented keywords of the public API
        self,
        *,
        namespace: str,
        wal: str,
        store: str | Sequence[str | StoreRef],
        table: str | None = None,
        key: Names | None = None,
        order_by: Names | None = None,
        newer_by: str | None = None,
        delete_when: str | None = None,
        value: str | None = None,
        wal_options: dict[str, Any] | None = None,
        store_options: dict[str, Any] | None = None,
        locality: Locality | None = None,
        derived: Sequence[Derived] = (),
        **options: Unpack[SinkOptions],
    ) -> None:
        self._made_of = {name: value for name, value in locals().items() if name not in ("self", "options")}
        self._made_of |= options
        self._checkpoint: str | None = None
        """The checkpoint of the query of Spark Connect that this sink is for, in the process of that."""
        if not isinstance(locality, Locality | None):
            raise ConfigError(f"locality is {brief(locality)}; it must be a tidegate.spark.Locality")
        self._endpoints = Endpoints.of(namespace, wal, store, wal_options, store_options)
        ttl = options.get("ttl")
        if table is not None and ttl is not None and not isinstance(ttl, Mapping):
            options["ttl"] = {table: ttl}
        self._options = Options.of(options)
        if (table is None) != (key is None):
            msg = "table and key go together: give both, or neither and use sink.each(write)"
            raise ConfigError(msg)
        of_table: dict[str, Any] = {"order_by": order_by, "delete_when": delete_when, "value": value}
        if table is not None:
            check_table(table)
            key_columns(table, key)
            columns_named(table, "order_by", () if order_by is None else order_by)
            check_alone(table, newer_by, of_table)
        of_table["newer_by"] = newer_by
        if table is None and any(argument is not None for argument in of_table.values()):
            msg = f"{', '.join(of_table)} belong to the one-table form: give table and key too"
            raise ConfigError(msg)
        self._table, self._key, self._arguments = table, key, of_table
        session = SparkSession.getActiveSession()
        if session is not None and not is_connect(session):
            check_workers_python(session.sparkContext)
        catch_sigterm()
        open_log(wal, namespace, self._endpoints.wal_options).close()
        for at in self._endpoints.stores:
            open_store(at.url, namespace, at.options).close()
        self._locality, self._derived = locality or Locality(), declared(derived)
        self._reporter = SinkReporter(self._endpoints, self._options)
        self._small = SmallBatchPredictor(self._options.stage_max_rows, self._options.driver_stage_max_bytes)
        self._lock = SinkLock()
        self._writer: OpenWriter | None = None
        self._writer_id = ""
        self._done: tuple[str, int] | None = None
        self._failures = Failures(namespace)
        self.last_decided: DecidedVersion | None = None
        """The version of the last batch that ended; with ``commit="pipelined"`` it may not be visible yet."""
        self.last_commit: Commit | None = None
        """The last version that this sink made visible, and its times; None before the first."""
        self.last_phases: dict[str, float] = {}
        """The times of ``last_commit``: seconds per state, by the state's name, in order."""
        self.last_state = StateReads()
        """The state reads of the tasks of ``last_decided``: from the hosts' caches, or from the store."""
        self.recovered: list[int] = []
        """The versions that an earlier driver had decided and this sink made visible when it opened."""

    def __repr__(self) -> str:
        return f"VersionedSink({self._endpoints!r}, table={self._table!r})"

    def __reduce__(self) -> tuple[Callable[..., VersionedSink], tuple[object, ...]]:
        """Pickle the arguments alone: the process of a Spark Connect query makes a sink of its own."""
        return _made, (self._made_of, self._checkpoint)

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """Commit one batch into the sink's table. Spark calls this from ``foreachBatch``.

        Durable: on return the batch is decided, in the log, and never taken back; with ``commit="sync"``
        its version is visible, too. Repeatable: a batch that was decided is skipped.

        An error ends the query; restarting it is safe after any of them. Raises: ConfigError, BadRecordError,
        FunctionError, LineageError, ConflictError: this batch is not decided. OutcomeUnknownError: it may
        be. Any other: a decided version stays decided, and the restart finishes it.
        """
        if self._table is None or self._key is None:
            msg = "this sink has no table: pass table= and key=, or give foreachBatch sink.each(write)"
            raise ConfigError(msg)
        table, key, arguments = self._table, self._key, self._arguments

        def write(txn: Transaction, rows: DataFrame) -> None:
            txn.upsert(table, rows, key, **arguments)

        self._run(batch_df, batch_id, write)

    def each(self, write: Write) -> Callable[[DataFrame, int], None]:
        """Build a function for ``foreachBatch`` that calls ``write(txn, batch_df)`` for each new batch.

        All changes that ``write`` makes through ``txn`` become one version. It is not called for a
        batch that was decided before. If it raises, nothing is decided. The built function has the guarantees
        and errors of a call of the sink. Raises: ConfigError: ``write`` is no function.
        """
        if not callable(write):
            raise ConfigError(f"each({brief(write)}): give a function, write(txn, batch_df)")

        def run(batch_df: DataFrame, batch_id: int) -> None:
            self._run(batch_df, batch_id, write)

        return run

    def start(
        self, writer: DataStreamWriter, checkpoint: str | os.PathLike[str], write: Write | None = None
    ) -> StreamingQuery:
        """Start a query that writes its batches to this sink; ``checkpoint`` is its checkpointLocation.

        Options of ``writer`` stay, such as its trigger and its output mode. ``write`` is the function of
        ``each``. With Spark Connect the batches are committed beside the server, by a sink with the
        arguments of this one: so ``last_commit`` and the like stay empty here, and servers are named as that
        process reaches them. Raises: ConfigError: no query was started, since ``commit="pipelined"`` does not
        go with Spark Connect, or the arguments do not fit.
        """
        path: object = os.fspath(checkpoint) if isinstance(checkpoint, os.PathLike) else checkpoint
        if not isinstance(path, str) or not path:
            raise ConfigError(
                f"checkpoint is {brief(checkpoint)}; it must be the path or URL of a folder, as text"
            )
        sink = self
        if not hasattr(writer, "foreachBatch"):
            raise ConfigError(f"start({type(writer).__name__}): give df.writeStream of a streaming DataFrame")
        if not isinstance(writer, DataStreamWriter):  # of Spark Connect
            if self._options.commit == PIPELINED:
                raise ConfigError(
                    'commit="pipelined" does not go with Spark Connect: the process that commits ends with'
                    " the query, without waiting for versions in flight, and drain() cannot reach it. Leave"
                    " commit out; no query was started"
                )
            if self._derived:
                raise ConfigError(NO_DERIVED)
            sink = _made(self._made_of, path)
        if write is None and self._table is None:
            raise ConfigError("this sink has no table: pass table= and key=, or give start a function, write")
        batches = sink if write is None else sink.each(write)
        return writer.foreachBatch(batches).option("checkpointLocation", path).start()

    @property
    def last_error(self) -> BaseException | None:
        """The exception of the last batch, if that failed; None after a batch that succeeded, and before any.

        A batch that ``query.stop()`` interrupted changes nothing here. ``tidegate.spark.cause`` gives a
        TidegateError from Spark's own exception, also in a process that has no such sink.
        """
        return self._failures.last_error

    @property
    def affinity(self) -> tuple[int, int]:
        """The tasks of the last batch that ran on their preferred executor, and the tasks that had one.

        (0, 0) if there is nothing to choose: on one executor, or without the option ``affinity``.
        """
        writer = self._writer
        return (0, 0) if writer is None or writer.placement is None else writer.placement.met

    @property
    def standings(self) -> list[Standing]:
        """The secondary stores' standings: visible version, lag, last error. Empty before the first batch."""
        writer = self._writer
        return [] if writer is None else writer.background.standings

    def drain(self, timeout_s: float) -> None:
        """Wait until every version that this sink decided is visible. For ``commit="pipelined"``.

        Call it before ``spark.stop()``: executors apply large versions. Repeatable: from any thread, also
        during a batch. Raises: StoreUnavailableError: not within ``timeout_s``; the versions stay decided,
        and the background work continues. An earlier version's error in the background, with its cause.
        ConfigError: ``timeout_s`` is no number of seconds.
        """
        check_ends("timeout_s", timeout_s)
        writer = self._writer
        if writer is not None:
            writer.commits.drain(timeout_s)

    def recover(self, *, force: bool = False) -> list[int]:
        """Finish an earlier driver's decided versions now, without waiting for a batch; return them.

        Call it before a query is started, which opens the namespace only at its first batch. Once this sink
        is open, ``recover`` only drains. It writes nothing when all is visible. Repeatable. Raises:
        ConfigError: another writer's heartbeat is younger than 30 s; ``force`` fences that writer.
        """
        with self._lock:
            if self._writer is not None and self._writer.commits.failed is None:
                self.drain(self._options.apply_deadline_s)
                return []
            self._release()
            connections = Connections(self._settings(), SparkSession.getActiveSession())
            coordinator = connections.coordinator
            try:
                known = coordinator.store.identity() is not None
                mine = known and coordinator.store.pointer().writer == self._writer_id
                done = finish_decided(
                    coordinator, connections.followers, "sink.recover()", force=force or mine
                )
                self.recovered, self._writer_id = done.recovered, coordinator.writer
            finally:
                connections.close()
        return self.recovered

    def load(
        self,
        tables: Mapping[str, DataFrame],
        *,
        token: str,
        key: Names | Mapping[str, Names] | None = None,
        replace: bool = False,
    ) -> int | None:
        """Write static DataFrames as one version, once per token; return that version.

        ``key`` is one for all tables, or one per table; without it the sink's own. With
        ``replace`` the tables contain exactly these rows afterwards, otherwise the rows are upserted.
        Do not run it while a query of another process writes the same namespace: the later of the two
        fences the earlier.

        Durable: on return the version is visible, also with ``commit="pipelined"``. Repeatable: a token that
        was decided before writes nothing and returns its version, or None when the log no longer has that.
        Raises: the errors of a batch, which prove the same; after each of them the same call may be made
        again, with the same token. ConfigError: the token is not a text of 1 to 200 printable characters, or
        rows do not fit.
        """
        keys = key if key is not None else self._key
        return self._write_once(load_of(tables, token, keys, replace=replace))

    def import_folder(
        self, spark: SparkSession, folder: str, *, token: str | None = None, bytes_max: int | None = None
    ) -> int | None:
        """Make one version of a folder written by `tidegate export`, by a Spark job; return that version.

        The exported tables contain exactly the exported rows then; other tables stay. ``folder`` is a path,
        or a URL such as s3a://bucket/export; tasks read it, so every executor must reach it. A missing
        namespace is created, with the exported number of key groups unless ``key_groups`` is set. Every file
        is compared with its checksum first. A folder is imported once into a namespace, under its digest,
        also by `tidegate import`; ``token`` gives it another name. A query of another process: as for
        ``load``. ``bytes_max``: the most bytes of all rows, decompressed; None: 500 times those of the files,
        or 4 MiB.

        Durable: on return the version is visible. Repeatable: a second call writes nothing and returns the
        version, or None when the log no longer has that. Raises, with nothing staged: ConfigError: there is
        no export, a table has another key than the namespace's, or the namespace has a local state that the
        export lacks. CorruptError: a file is missing, or is not the exported one, or the rows take too many
        bytes.
        """
        once, key_groups = import_of(spark, folder, token, bytes_max)
        with self._lock:
            if self._writer is None and self._options.key_groups is None and not self._is_made():
                self._options = dataclasses.replace(self._options, key_groups=key_groups)
        return self._write_once(once)

    def rename_column(self, table: str, old: str, new: str) -> int | None:
        """Give a value column another name, by one version without rows; return that version.

        Readers find the new name from that version on, older versions keep the old one. No stored row
        changes. The old name stays reserved until the table is replaced, so a batch that still writes it is
        refused. Call it between two batches. A query of another process: as for ``load``.

        Durable: on return the version is visible. Repeatable: None, and nothing is written, if the column
        has the new name already. Raises: the errors of a batch, which prove the same. ConfigError: there is
        no such column, it is of the key or orders captured changes, or the new name is in use.
        """
        with self._once():
            session = self._writer.connections.session if self._writer else SparkSession.getActiveSession()
            writer = self._writer_for(session, None, lambda _: None, lambda: True)
            barrier = rename_barrier(writer.coordinator, writer.schemas(), table, old, new)
            if barrier is None:
                return None
            return self._commit_own(writer, barrier).version

    def migrate_state(
        self, table: str, *, migrate: Migrate, state_version: int, schema: Ddl | None = None
    ) -> int | None:
        """Write all rows of a state again in the form of this version, as one version; return that.

        ``migrate(state, version)`` gets each row of another state version, as ``Transaction.update`` has
        it; None removes the row. ``schema`` are the columns of a version that the table does not have yet.
        Spark's tasks read and write the whole table. A row that expires keeps its expiry. Call it between two
        batches. A query of another process: as for ``load``.

        Durable: on return the version is visible. Repeatable: None, and nothing is written, if all rows have
        the version already. Raises: the errors of a batch, which prove the same. ConfigError: no session of
        Spark is active, there is no such table, or the version goes back.
        """
        with self._once():
            session = self._writer.connections.session if self._writer else SparkSession.getActiveSession()
            if session is None:
                raise ConfigError("migrate_state runs a Spark job: start a SparkSession in this thread first")
            writer = self._writer_for(session, None, lambda _: None, lambda: True)
            writer.commits.drain(self._options.apply_deadline_s)
            coordinator, here = writer.coordinator, self._endpoints.only()
            base = Base(coordinator.folded, writer.schemas(), here, value_bytes_max(coordinator))
            once = migration_of(
                session, Migration(table, migrate, state_version, schema), base, self._options
            )
            return None if once is None else self._write(once)

    def close(self) -> None:
        """Stop the background work and release handles. The next batch opens again. Repeatable.

        Versions in flight are drained first, at most ``apply_deadline_s``. Raises: as ``drain``, once all is
        released, if versions stay in flight.
        """
        with self._lock:
            problem = self._release()
            self._reporter.closed()
        if problem is not None:
            raise problem

    # -- one batch ------------------------------------------------------------------------------

    def _run(self, batch_df: DataFrame, batch_id: int, write: Write) -> None:
        with contextlib.ExitStack() as turn:
            run_id, is_extra = None, self._lock.is_mine()
            try:
                turn.enter_context(self._lock)
                batch = batch_context(batch_df, batch_id, self._checkpoint)
                run_id = batch.run_id
                if is_extra := self._done == (run_id, batch_id):
                    msg = (
                        f"batch {batch_id} has its version already: one transaction per batch; write all"
                        " tables in one sink.each(write), or use a second namespace"
                    )
                    raise ConfigError(msg)
            except BaseException as error:
                if (stop := as_query_stop(error, batch_id)) is not None:
                    self._failures.interrupted(batch_df, batch_id, run_id, error)
                    raise stop from None
                self._failures.add(batch_df, batch_id, run_id, error, is_extra=is_extra)
                raise
            try:
                fact = self._commit_or_rebuild(batch_df, batch, write)
            except BaseException as error:
                stop = as_query_stop(error, batch_id)
                if stop is None:
                    turn.callback(self._failures.add, batch_df, batch_id, run_id, error)  # after the release
                    self._reporter.failed(batch_id, error)
                else:
                    self._failures.interrupted(batch_df, batch_id, run_id, error)
                self._release()  # open again, and recover, before anything else is written
                self._reporter.closed()
                if stop is not None:
                    raise stop from None
                raise
            self._done, self.last_decided = (batch.run_id, batch_id), fact
            self._failures.succeeded(batch_id)
            skipped = self.last_commit is None or self.last_commit.version != fact.version
            if self._options.commit != PIPELINED and skipped:
                self.last_commit = self._reporter.skipped(fact, batch_id)

    def _commit_or_rebuild(self, batch_df: DataFrame, batch: BatchContext, write: Write) -> DecidedVersion:
        """Commit the batch. If the store lost the namespace, open again, which rebuilds it, and repeat."""
        try:
            return self._commit(batch_df, batch, write)
        except TidegateError as lost:  # of many kinds while the background rebuilds the store
            if self._writer is None or isinstance(lost, FencedError):
                raise
            if not isinstance(lost, StoreLostError) and not shows_nothing(self._writer.coordinator):
                raise
            refuse_if_dropped(self._writer.coordinator)
            logger.warning("batch %s waits until the store is rebuilt from the log: %s", batch.batch_id, lost)
            self._release()
            return self._commit(batch_df, batch, write)

    def _commit(self, batch_df: DataFrame, batch: BatchContext, write: Write) -> DecidedVersion:
        writer = self._opened(batch_df, batch)
        coordinator = writer.coordinator
        writer.check()
        refuse_after_swallowed_error(self._failures.first, batch, coordinator.folded)
        origin = batch.origin(coordinator.folded)
        fact = replay_of(coordinator.folded, origin)
        if fact is not None:
            logger.info("batch %s is version %s already; it is skipped", batch.batch_id, fact.version)
            return fact
        txn = self._transaction(writer, batch.batch_id)
        writer.runs = _runs_of(batch_df.sparkSession)
        write(txn, batch_df)
        return self._committed(
            writer,
            txn,
            origin,
            batch_df,
            batch.source_offsets,
            driver_stage=DriverStage(coordinator, self._small),
        )

    def _transaction(self, writer: OpenWriter, batch_id: int) -> Transaction:
        """Begin the next version. Derived tables that the log lacks are built first, each in a version."""
        coordinator, schemas = writer.coordinator, writer.schemas()
        build = check_declared(self._derived, coordinator.folded.tables, schemas)
        if build:
            writer.commits.drain(self._options.apply_deadline_s)
        for name, definition in build.items():
            if name in coordinator.folded.tables:
                self._commit_own(writer, drop_barrier(coordinator, name))
            if definition.of in schemas:
                self._commit_own(writer, build_barrier(coordinator, schemas, name, definition))
        known = writer.schemas() if build else schemas
        return Transaction(batch_id, coordinator.folded.last_version, known)

    def _commit_own(self, writer: OpenWriter, barrier: Barrier) -> DecidedVersion:
        with self._reporter.watching(writer.coordinator, barrier.origin):
            fact = writer.commits.commit(barrier)
        writer.commits.drain(self._options.apply_deadline_s)
        return fact

    def _committed(
        self,
        writer: OpenWriter,
        txn: Transaction,
        origin: Origin,
        rows: DataFrame,
        source_offsets: str = "",
        expiring: frozenset[str] = frozenset(),
        driver_stage: DriverStage | None = None,
        strides: Mapping[str, int] = NONE_BROUGHT,
    ) -> DecidedVersion:
        coordinator = writer.coordinator
        state = coordinator.folded
        calls, schemas = txn.close(), txn.schemas
        check_ttls(calls, self._options.ttl_us)
        brought = brought_whole(schemas) if isinstance(origin, ImportOrigin) else frozenset()
        derived = planned(self._derived, Made(calls, txn.starts, txn.drops, txn.known), brought)
        schemas |= derived.schemas
        if self._options.on_bad_record == "quarantine":
            schemas[quarantine.TABLE] = quarantine.SCHEMA
        parallelism = tasks_for(self._options, rows.sparkSession, state.key_groups)
        if parallelism != writer.parallelism:
            warn_of_imbalance(self._endpoints.namespace, parallelism, state.key_groups)
            writer.parallelism = parallelism
        barrier = SparkBarrier(
            calls=calls,
            schemas=schemas,
            origin=origin,
            source_offsets=source_offsets,
            endpoints=self._endpoints.only(),
            key_groups=state.key_groups,
            parallelism=parallelism,
            table_ats=state.tables,
            runs=writer.runs,
            starts=txn.starts | derived.starts,
            drops=txn.drops,
            planned=derived,
            brought=brought,
            first_start=state.first_start,
            expiring=expiring,
            in_flight=writer.in_flight(parallelism),
            strides=strides,
            placement=writer.placement,
            function_deadline_s=self._options.function_deadline_s,
            cache=writer.cache(),
            driver_stage=driver_stage,
        )
        with self._reporter.watching(coordinator, origin):
            fact = writer.commits.commit(barrier)
        coordinator.held = {}
        self.last_state = total_reads(barrier.reads)
        self._reporter.decided(coordinator, fact, self.last_state, barrier.spilled_bytes)
        return fact

    def _published(self, fact: DecidedVersion, manifest: Manifest | None, watch: Watch) -> None:
        phases = cast("Phases", watch)  # ``_committed`` watches each commit so
        self.last_commit, self.last_phases = self._reporter.published(fact, manifest, phases), phases.seconds

    def _opened(self, batch_df: DataFrame, batch: BatchContext) -> OpenWriter:
        session = batch_df.sparkSession
        if self._writer is not None and self._writer.coordinator.folded.lineage != batch.lineage:
            self._release()  # another query: its checkpoint has to be accepted first

        def refuse_other_batch(state: Folded) -> None:
            refuse_without_past(self._endpoints.namespace, batch, state)
            replay_of(state, batch.origin(state))

        alive, opens = (
            partial(is_running, session, batch.lineage, self._reporter.query_failed),
            not self._writer,
        )
        writer = self._writer_for(session, batch.lineage, refuse_other_batch, alive)
        if opens:
            warn_of_missing_batches(self._endpoints.namespace, batch, writer.coordinator.folded)
        return writer

    def _writer_for(
        self, session: SparkSession | None, lineage: str | None, check: Callable[[Folded], None], alive: Alive
    ) -> OpenWriter:
        writer = self._writer
        if writer is None:
            if session is not None and not is_connect(session):
                check_workers_python(session.sparkContext)
            connections = Connections(self._settings(), session)
            if session is not None:
                connections.coordinator.expected_tasks = tasks_for(self._options, session)
            writer = self._writer = OpenWriter.open(connections, lineage, check, alive)
            self.recovered, self._writer_id = writer.recovered, writer.coordinator.writer
        writer.connections.session = session
        writer.keep_alive(alive)
        return writer

    def _settings(self) -> WriterSettings:
        return WriterSettings(self._endpoints, self._options, self._locality, self._reporter, self._published)

    def _release(self) -> TidegateError | None:
        """Close the writer, if there is one; return why versions stay in flight, or None."""
        writer, self._writer = self._writer, None
        return None if writer is None else writer.close()

    # -- a version that is not a batch --------------------------------------------------------------

    def _write_once(self, once: Once) -> int | None:
        with self._once():
            return self._write(once)

    @contextlib.contextmanager
    def _once(self) -> Iterator[None]:
        """Hold the sink for one version that is not a batch. After an error it opens again."""
        with self._lock:
            streaming = self._writer is not None and not self._writer.background.ended
            try:
                yield
            except BaseException:
                self._release()
                raise
            finally:
                if self._writer is not None and not streaming:
                    self._writer.background.drain(self._options.apply_deadline_s)

    def _write(self, once: Once) -> int | None:
        writer = self._writer_for(once.rows.sparkSession, None, lambda _: None, lambda: True)
        coordinator = writer.coordinator
        if once_key(once.origin) in coordinator.folded.once:
            fact = decided_for(coordinator.folded, once.origin)
            if fact is not None and (undone := undone_by(coordinator.folded, fact.version)) is not None:
                logger.warning(
                    "namespace %s: %s was version %s, which version %s has undone, a restore: nothing is"
                    " written; give another token to write it again",
                    coordinator.folded.name, once_key(once.origin), fact.version, undone,
                )  # fmt: skip
            return None if fact is None else fact.version
        if self._derived and not hasattr(once.rows.sparkSession, "_jsparkSession"):
            raise ConfigError(NO_DERIVED)
        txn = self._transaction(writer, -1)
        strides = once.strides(coordinator.folded, self._options)
        stride = partial(stride_here, coordinator, brought=strides)
        writer.runs = _runs_of(once.rows.sparkSession)
        once.write(txn, Here(coordinator.folded.key_groups, stride, value_bytes_max(coordinator)))
        fact = self._committed(writer, txn, once.origin, once.rows, expiring=once.expiring, strides=strides)
        writer.commits.drain(self._options.apply_deadline_s)
        return fact.version

    def _is_made(self) -> bool:
        where = self._endpoints
        with (
            contextlib.closing(open_store(where.store, where.namespace, where.store_options)) as store,
            contextlib.closing(open_log(where.wal, where.namespace, where.wal_options)) as log,
        ):
            return store.identity() is not None or not log.is_empty()
