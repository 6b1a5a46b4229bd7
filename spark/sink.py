"""``VersionedSink``: every micro-batch becomes one version of the namespace, or none."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tidegate.base.deadline import check_ends
from tidegate.base.names import check_folder
from tidegate.base.steps import not_run
from tidegate.base.text import brief, first_line
from tidegate.committers.background.follower import Standing
from tidegate.committers.background.process_end import catch_sigterm
from tidegate.committers.repair.lost_store import refuse_if_dropped, shows_nothing
from tidegate.committers.states import Watch
from tidegate.committers.steps.phase_times import Phases
from tidegate.errors import ConfigError, FencedError, FunctionError, StoreLostError, TidegateError
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
    refuse_colon,
    refuse_without_past,
    warn_of_missing_batches,
)
from tidegate.spark.calls.checks import Names, check_table, columns_named, key_columns
from tidegate.spark.calls.newer import check_alone
from tidegate.spark.errors import as_query_stop
from tidegate.spark.loads import SingleVersions
from tidegate.spark.placement.locality import Locality
from tidegate.spark.reporting import SinkReporter
from tidegate.spark.session.failures import Failures
from tidegate.spark.session.workers_python import check_workers_python
from tidegate.spark.staging.declared import Derived, declared
from tidegate.spark.staging.on_driver import DriverStage
from tidegate.spark.staging.small_batches import SmallBatchPredictor
from tidegate.spark.transaction import Transaction
from tidegate.spark.writer import OpenWriter, SinkWriter, WriterSettings
from tidegate.wal.fold import replay_of
from tidegate.wal.manifest import Manifest
from tidegate.wal.open_log import open_log
from tidegate.wal.record import DecidedVersion, Folded
from tidegate.wal.staging.acks import StateReads

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger("tidegate")

Write = Callable[[Transaction, DataFrame], object]


def _made(arguments: dict[str, Any], checkpoint: str | None) -> VersionedSink:
    sink = VersionedSink(**arguments)
    sink._checkpoint = checkpoint  # noqa: SLF001 - its own module
    return sink


class VersionedSink(SingleVersions):
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
        endpoints = Endpoints.of(namespace, wal, store, wal_options, store_options)
        ttl = options.get("ttl")
        if table is not None and ttl is not None and not isinstance(ttl, Mapping):
            options["ttl"] = {table: ttl}
        checked = Options.of(options)
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
        open_log(wal, namespace, endpoints.wal_options).close()
        for ref in endpoints.stores:
            open_store(ref.url, namespace, ref.options).close()
        self._reporter = SinkReporter(endpoints, checked)
        settings = WriterSettings(endpoints, checked, locality or Locality(), self._reporter, self._published)
        self._writing = SinkWriter(settings, declared(derived))
        self._small = SmallBatchPredictor(checked.stage_max_rows, checked.driver_stage_max_bytes)
        self._done: tuple[str, int] | None = None
        self._failures = Failures(namespace)
        self.last_decided: DecidedVersion | None = None
        """The version of the last batch that ended; with ``commit="pipelined"`` it may not be visible yet."""
        self.last_commit: Commit | None = None
        """The last version that this sink made visible, and its times; None before the first."""
        self.last_phases: dict[str, float] = {}
        """The times of ``last_commit``: seconds per state, by the state's name, in order."""

    def __repr__(self) -> str:
        return f"VersionedSink({self._writing.settings.endpoints!r}, table={self._table!r})"

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
        arguments of this one: so ``last_commit`` and the like stay empty here, metrics are served there, and
        servers are named as that process reaches them. Raises: ConfigError: no query was started:
        ``commit="pipelined"`` and a colon in the checkpoint's path do not go with Spark Connect, or the
        arguments do not fit.
        """
        path, sink = check_folder("checkpoint", checkpoint), self
        if not hasattr(writer, "foreachBatch"):
            raise ConfigError(f"start({type(writer).__name__}): give df.writeStream of a streaming DataFrame")
        if not isinstance(writer, DataStreamWriter):  # of Spark Connect
            if self._writing.settings.options.commit == PIPELINED:
                raise ConfigError(
                    'commit="pipelined" does not go with Spark Connect: the process that commits ends with'
                    " the query, without waiting for versions in flight, and drain() cannot reach it. Leave"
                    " commit out; no query was started"
                )
            refuse_colon(path)
            sink = _made(self._made_of, path)
            self._reporter.end_metrics()
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
    def last_state(self) -> StateReads:
        """The state reads of the tasks of ``last_decided``: from the hosts' caches, or from the store."""
        return self._writing.last_state

    @property
    def recovered(self) -> list[int]:
        """The versions that an earlier driver had decided and this sink made visible when it opened."""
        return self._writing.recovered

    @property
    def affinity(self) -> tuple[int, int]:
        """The tasks of the last batch that ran on their preferred executor, and the tasks that had one.

        (0, 0) if there is nothing to choose: on one executor, or without the option ``affinity``.
        """
        writer = self._writing.now
        return (0, 0) if writer is None or writer.placement is None else writer.placement.met

    @property
    def standings(self) -> list[Standing]:
        """The secondary stores' standings: visible version, lag, last error. Empty before the first batch."""
        writer = self._writing.now
        return [] if writer is None else writer.background.standings

    def drain(self, timeout_s: float) -> None:
        """Wait until every version that this sink decided is visible. For ``commit="pipelined"``.

        Call it before ``spark.stop()``: executors apply large versions. Repeatable: from any thread, also
        during a batch. Raises: StoreUnavailableError: not within ``timeout_s``; the versions stay decided,
        and the background work continues. An earlier version's error in the background, with its cause.
        ConfigError: ``timeout_s`` is no number of seconds.
        """
        check_ends("timeout_s", timeout_s)
        self._writing.drain(timeout_s)

    def recover(self, *, force: bool = False) -> list[int]:
        """Finish an earlier driver's decided versions now, without waiting for a batch; return them.

        Call it before a query is started, which opens the namespace only at its first batch. Once this sink
        is open, ``recover`` only drains. It writes nothing when all is visible. Repeatable. Raises:
        ConfigError: another writer's heartbeat is younger than 30 s; ``force`` fences that writer.
        """
        with self._writing.lock:
            return self._writing.recover(force=force)

    def close(self) -> None:
        """Stop the background work and release handles. The next batch opens again. Repeatable.

        Versions in flight are drained first; then older versions are retired, the log is trimmed, and the
        other stores reach its end. Each takes at most ``apply_deadline_s``; a store that stays behind is a
        warning. Raises: as ``drain``, once all is released, if versions stay in flight.
        """
        with self._writing.lock:
            problem = self._writing.release(self._writing.settings.options.apply_deadline_s)
            self._reporter.closed()
        if problem is not None:
            raise problem

    # -- one batch ------------------------------------------------------------------------------

    def _run(self, batch_df: DataFrame, batch_id: int, write: Write) -> None:
        with contextlib.ExitStack() as turn:
            run_id, is_extra = None, self._writing.lock.is_mine()
            try:
                turn.enter_context(self._writing.lock)
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
                self._writing.release()  # open again, and recover, before anything else is written
                self._reporter.closed()
                if stop is not None:
                    raise stop from None
                raise
            self._done, self.last_decided = (batch.run_id, batch_id), fact
            self._failures.succeeded(batch_id)
            skipped = self.last_commit is None or self.last_commit.version != fact.version
            if self._writing.settings.options.commit != PIPELINED and skipped:
                self.last_commit = self._reporter.skipped(fact, batch_id)

    def _commit_or_rebuild(self, batch_df: DataFrame, batch: BatchContext, write: Write) -> DecidedVersion:
        """Commit the batch. If the store lost the namespace, open again, which rebuilds it, and repeat."""
        try:
            return self._commit(batch_df, batch, write)
        except TidegateError as lost:  # of many kinds while the background rebuilds the store
            writer = self._writing.now
            if writer is None or isinstance(lost, FencedError):
                raise
            if not isinstance(lost, StoreLostError) and not shows_nothing(writer.coordinator):
                raise
            refuse_if_dropped(writer.coordinator)
            logger.warning("batch %s waits until the store is rebuilt from the log: %s", batch.batch_id, lost)
            self._writing.release()
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
        collected = self._writing.begin(batch.batch_id, batch_df.sparkSession)
        persisted = batch_df.is_cached
        try:
            txn = Transaction(batch.batch_id, coordinator.folded.last_version, collected)
            _call(write, txn, batch_df)
            staged_here = DriverStage(coordinator, self._small)
            return self._writing.commit(
                collected, origin, batch_df, batch.source_offsets, driver_stage=staged_here
            )
        finally:
            with contextlib.suppress(Exception):  # of a session that ends: it hides no error of the batch
                if batch_df.is_cached and not persisted:  # by the function
                    batch_df.unpersist()

    def _published(self, fact: DecidedVersion, manifest: Manifest | None, watch: Watch) -> None:
        phases = cast("Phases", watch)  # ``SinkWriter.commit`` watches each commit so
        self.last_commit, self.last_phases = self._reporter.published(fact, manifest, phases), phases.seconds

    def _opened(self, batch_df: DataFrame, batch: BatchContext) -> OpenWriter:
        writing, namespace = self._writing, self._writing.settings.endpoints.namespace
        if writing.now is not None and writing.now.coordinator.folded.lineage != batch.lineage:
            writing.release()  # another query: its checkpoint has to be accepted first

        def refuse_other_batch(state: Folded) -> None:
            refuse_without_past(namespace, batch, state)
            replay_of(state, batch.origin(state))

        session, opens = batch_df.sparkSession, writing.now is None
        alive = partial(is_running, session, batch.lineage, self._reporter.query_failed)
        writer = writing.open(session, batch.lineage, refuse_other_batch, alive)
        if opens:
            warn_of_missing_batches(namespace, batch, writer.coordinator.folded)
        return writer


def _call(write: Write, txn: Transaction, batch_df: DataFrame) -> None:
    """Call the function of ``each``. Raises: what it raises; ConfigError: it is no plain function.

    FunctionError: it raised a SystemExit or the like, by which Spark's thread ends, and the query never.
    """
    try:
        returned = write(txn, batch_df)
    except (Exception, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        name = f"{type(error).__name__}: {first_line(error)}"
        raise FunctionError(f"each({brief(write)}): it raised {name}; nothing was decided") from error
    if kind := not_run(returned):
        raise ConfigError(
            f"each({brief(write)}): the function is {kind}, and did not run; nothing was decided: give a"
            " plain function, without await or yield"
        )
