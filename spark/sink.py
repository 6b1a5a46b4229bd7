"""``VersionedSink``: every micro-batch becomes one version of the namespace, or none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from pyspark.sql import DataFrame, SparkSession

from tidegate.committers.background import Background
from tidegate.committers.commit import commit
from tidegate.committers.driver import Driver
from tidegate.committers.finish import finish_decided
from tidegate.committers.follower import Follower, Standing, followers_of
from tidegate.committers.open import open_namespace
from tidegate.committers.phases import Phases
from tidegate.committers.pipeline_thread import PipelineThread
from tidegate.committers.repair import repair
from tidegate.committers.state_links import StateLinks
from tidegate.deadline import check_ends
from tidegate.errors import ConfigError, TidegateError
from tidegate.observing import Commit
from tidegate.options import PIPELINED, Endpoints, Options, StoreAt
from tidegate.reading import no_schema
from tidegate.sinks.open_store import open_store
from tidegate.spark.apply_job import apply_on_executors
from tidegate.spark.batch import BatchContext, batch_context, is_running
from tidegate.spark.cached_state import CachePlace, cache_place, together
from tidegate.spark.call_checks import Names, check_table, columns_named, key_columns
from tidegate.spark.driver_stage import DriverStage
from tidegate.spark.loads import Loads
from tidegate.spark.locality import Locality
from tidegate.spark.parallelism import tasks_for
from tidegate.spark.passed_over import Failed, failed, refuse_passed_over
from tidegate.spark.placement import Placement, Places, placement_for
from tidegate.spark.small_batches import SmallBatches
from tidegate.spark.stage import SparkBarrier
from tidegate.spark.stopped import stopped
from tidegate.spark.telling import Teller
from tidegate.spark.transaction import Transaction
from tidegate.spark.turns import Turns
from tidegate.wal import quarantine
from tidegate.wal.fold import replay_of
from tidegate.wal.manifest import Manifest
from tidegate.wal.open_log import open_log
from tidegate.wal.record import BatchOrigin, Folded, Origin, StateReads, TableSchema, VersionFact

logger = logging.getLogger("tidegate")

Write = Callable[[Transaction, DataFrame], None]
Alive = Callable[[], bool]


class VersionedSink(Loads):
    """A sink for ``foreachBatch``: one atomic, numbered version per micro-batch.

    >>> sink = VersionedSink(                                          # doctest: +SKIP
    ...     namespace="flights", wal="file:///data/wal", store="sqlite:///data/store",
    ...     table="aircraft", key="tailnum", order_by="time_hour",
    ... )
    >>> df.writeStream.foreachBatch(sink).option("checkpointLocation", path).start()

    With ``table`` and ``key`` the sink upserts every batch into that table; without them give
    ``sink.each(write)`` a function that writes several tables. Making a sink writes nothing;
    the namespace is opened, and made if missing, at the first batch. One sink serves one
    query at a time. Further keywords are ``tidegate.options.Options``.

    ``ttl``, by table or for the one, is how long rows live after they were last written. ``locality``
    says where tasks run, and where that is remembered (docs/state.md).

    ``store`` may be a list, each item a URL or ``name=URL``: the first is the primary, from which
    state is read and which alone a batch waits for; the others follow by themselves. Then
    ``store_options`` are by the store's name.

    ConfigError: an option, a URL or a name is wrong; nothing was written.
    """

    def __init__(  # noqa: PLR0913 - the documented keywords of the public API
        self,
        *,
        namespace: str,
        wal: str,
        store: str | Sequence[str | StoreAt],
        table: str | None = None,
        key: Names | None = None,
        order_by: Names | None = None,
        delete_when: str | None = None,
        value: str | None = None,
        wal_options: dict[str, Any] | None = None,
        store_options: dict[str, Any] | None = None,
        locality: Locality | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(locality, Locality | None):
            raise ConfigError(f"locality is {locality!r}; it must be a tidegate.spark.Locality")
        self._endpoints = Endpoints.of(namespace, wal, store, wal_options, store_options)
        if table is not None and not isinstance(options.get("ttl"), Mapping | None):
            options["ttl"] = {table: options["ttl"]}
        self._options = Options.of(options)
        if (table is None) != (key is None):
            msg = "table and key go together: give both, or neither and use sink.each(write)"
            raise ConfigError(msg)
        if table is not None:
            check_table(table)
            key_columns(table, key)
            columns_named(table, "order_by", () if order_by is None else order_by)
        elif order_by is not None or delete_when is not None or value is not None:
            msg = "order_by, delete_when and value belong to the one-table form: give table and key too"
            raise ConfigError(msg)
        self._table, self._key = table, key
        self._order_by, self._delete_when, self._value = order_by, delete_when, value
        open_log(wal, namespace, self._endpoints.wal_options).close()
        for at in self._endpoints.stores:
            open_store(at.url, namespace, at.options).close()
        self._teller = Teller(self._endpoints, self._options)
        self._lock = Turns()
        self._driver: Driver | None = None
        self._links: StateLinks | None = None
        self._followers: list[Follower] = []
        self._background: Background | None = None
        self._session: Any = None
        self._locality = locality or Locality()
        self._placement: Placement | None = None
        self._done: tuple[str, int] | None = None
        self._failed: Failed | None = None
        self._small = SmallBatches(self._options.driver_stage_max_rows, self._options.driver_stage_max_bytes)
        self._pipeline: PipelineThread | None = None
        self._writer = ""
        self.last_decided: VersionFact | None = None
        """The version of the last batch that ended; with ``commit="pipelined"`` not visible yet, maybe."""
        self.last_commit: Commit | None = None
        """The last version this sink made visible, what it took, None before the first."""
        self.last_phases: dict[str, float] = {}
        """Where ``last_commit``'s time went: seconds per state, by the state's name, in order."""
        self.last_state = StateReads()
        """How the tasks of ``last_decided`` read their state: from the hosts' caches, or from the store."""
        self.recovered: list[int] = []
        """Versions an earlier driver had decided and this sink made visible when it opened."""

    def __repr__(self) -> str:
        return f"VersionedSink({self._endpoints!r}, table={self._table!r})"

    def __reduce__(self) -> NoReturn:
        msg = "a VersionedSink stays in the driver's process: it cannot be pickled, nor used by Spark Connect"
        raise ConfigError(msg)

    def __call__(self, batch_df: DataFrame, batch_id: int) -> None:
        """Commit one batch into the sink's table. Spark calls this from ``foreachBatch``.

        On return the batch is decided: in the log, durable, and never taken back; with ``commit="sync"``
        its version is visible, too. May be repeated: a batch that was decided is skipped.

        An error ends the query; restarting it is safe after any of them. ConfigError, BadRecordError,
        FunctionError, LineageError, ConflictError: this batch is not decided. OutcomeUnknownError: it may
        be. Any other: what was decided stays decided, and the restart finishes it.
        """
        if self._table is None or self._key is None:
            msg = "this sink has no table: pass table= and key=, or give foreachBatch sink.each(write)"
            raise ConfigError(msg)
        table, key = self._table, self._key

        def write(txn: Transaction, rows: DataFrame) -> None:
            txn.upsert(
                table, rows, key, order_by=self._order_by, delete_when=self._delete_when, value=self._value
            )

        self._run(batch_df, batch_id, write)

    def each(self, write: Write) -> Callable[[DataFrame, int], None]:
        """A function for ``foreachBatch`` that calls ``write(txn, batch_df)`` for each new batch.

        All that ``write`` does through ``txn`` becomes one version. It is not called for a
        batch that was decided before. If it raises, nothing is decided. What is durable on return, and
        what each error proves: as for a call of the sink. ConfigError: ``write`` is no function.
        """
        if not callable(write):
            raise ConfigError(f"each({write!r}): give a function, write(txn, batch_df)")

        def run(batch_df: DataFrame, batch_id: int) -> None:
            self._run(batch_df, batch_id, write)

        return run

    @property
    def affinity(self) -> tuple[int, int]:
        """(tasks of the last batch that ran on the executor they were asked to, tasks that were asked).

        (0, 0) where there is nothing to choose: on one executor, or without the option ``affinity``.
        """
        return (0, 0) if self._placement is None else self._placement.met

    @property
    def standings(self) -> list[Standing]:
        """How the stores besides the primary stand: what is visible there, how long they have been
        behind, the error they met last. Empty before the first batch.
        """
        background = self._background
        return [] if background is None else background.standings

    def drain(self, timeout_s: float) -> None:
        """Wait until every version that this sink decided is visible. For ``commit="pipelined"``.

        Call it before ``spark.stop()``: large versions are applied by executors. StoreUnavailableError:
        not within this time; it stays decided, and is still worked on. What ended an earlier version in
        the background is raised with its cause. May be repeated, from any thread, during a batch too.
        ConfigError: ``timeout_s`` is no number of seconds.
        """
        check_ends("timeout_s", timeout_s)
        pipeline = self._pipeline
        if pipeline is not None:
            pipeline.drain(timeout_s)

    def recover(self, *, force: bool = False) -> list[int]:
        """Finish what an earlier driver decided, now, without waiting for a batch; the versions made visible.

        For before a query is started: it opens the namespace at its first batch, and there may be none for
        long. Once this sink is open it only drains. Writes nothing when all is visible. May be repeated.

        ConfigError: another writer gave a sign of life within the last 30 s; ``force`` fences it.
        """
        with self._lock:
            pipeline = self._pipeline
            if self._driver is not None and (pipeline is None or pipeline.failed is None):
                self.drain(self._options.apply_deadline_s)
                return []
            self._release()
            self._session = SparkSession.getActiveSession()
            self._driver = driver = self._new_driver()
            try:
                known = driver.store.identity() is not None
                mine = known and driver.store.pointer().writer == self._writer
                done = finish_decided(driver, self._followers, "sink.recover()", force=force or mine)
                self.recovered, self._writer = done.recovered, driver.writer
            finally:
                self._release()
        return self.recovered

    def close(self) -> None:
        """Stop the background work and release handles. The next batch opens again. May be repeated.

        What is in flight is drained first, at most ``apply_deadline_s``; what stays so is raised, as by
        ``drain``, once all is released.
        """
        with self._lock:
            problem = self._release()
            self._teller.closed()
        if problem is not None:
            raise problem

    # -- one batch ------------------------------------------------------------------------------

    def _run(self, batch_df: DataFrame, batch_id: int, write: Write) -> None:
        with self._lock:
            batch = batch_context(batch_df, batch_id)
            if self._done == (batch.run_id, batch_id):
                msg = (
                    f"batch {batch_id} has made its version already: one transaction per batch; write all"
                    " tables in one sink.each(write), or use a second namespace"
                )
                raise ConfigError(msg)
            try:
                fact = self._commit(batch_df, batch, write)
            except BaseException as error:
                self._failed = failed(self._failed, batch, error)
                self._teller.failed(batch_id, error)
                self._release()  # open again, and recover, before anything else is written
                if (stop := stopped(error, batch_id)) is not None:
                    raise stop from None
                raise
            self._done, self._failed, self.last_decided = (batch.run_id, batch_id), None, fact
            skipped = self.last_commit is None or self.last_commit.version != fact.version
            if self._pipeline is None and skipped:
                self.last_commit = self._teller.skipped(fact, batch_id)

    def _commit(self, batch_df: DataFrame, batch: BatchContext, write: Write) -> VersionFact:
        driver = self._opened(batch_df, batch)
        if self._background is not None:
            self._background.check()
        if self._pipeline is not None:
            self._pipeline.check()
        refuse_passed_over(self._failed, batch, driver.folded)
        origin = _origin(driver.folded, batch)
        fact = replay_of(driver.folded, origin)
        if fact is not None:
            logger.info("batch %s is version %s already; it is skipped", batch.batch_id, fact.version)
            return fact
        txn = self._transaction(driver, batch.batch_id)
        write(txn, batch_df)
        return self._committed(driver, txn, origin, batch.source_offsets, batch_df)

    def _transaction(self, driver: Driver, batch_id: int) -> Transaction:
        return Transaction(batch_id, driver.folded.last_version, self._known(driver))

    def _committed(
        self,
        driver: Driver,
        txn: Transaction,
        origin: Origin,
        source_offsets: str,
        rows: DataFrame,
        expiring: frozenset[str] = frozenset(),
    ) -> VersionFact:
        state = driver.folded
        calls, schemas = txn.close(), txn.schemas
        if self._options.on_bad_record == "quarantine":
            schemas[quarantine.TABLE] = quarantine.SCHEMA
        barrier = SparkBarrier(
            calls,
            schemas,
            origin,
            source_offsets,
            self._endpoints.only(),
            state.key_groups,
            tasks_for(self._options, rows.sparkSession.sparkContext, state.key_groups),
            state.tables,
            txn.starts,
            expiring,
            self._placement,
            self._options.function_deadline_s,
            cache=self._cache(driver),
            alone=DriverStage(driver, self._small) if isinstance(origin, BatchOrigin) else None,
        )
        with self._teller.watching(driver, origin) as phases:
            if self._pipeline is None:
                fact = commit(driver, barrier)
                self._published(fact, _manifest_of(driver, fact), phases)
            else:
                fact = self._pipeline.commit(barrier)
        driver.held = {}
        self.last_state = together(barrier.reads)
        self._teller.decided(driver, fact, self.last_state, barrier.spilled_bytes)
        return fact

    def _published(self, fact: VersionFact, manifest: Manifest | None, phases: object) -> None:
        if isinstance(phases, Phases):
            self.last_commit = self._teller.published(fact, manifest, phases)
            self.last_phases = phases.seconds
        if self._background is not None:
            self._background.published()

    def _cache(self, driver: Driver) -> CachePlace | None:
        if self._links is None:
            return None
        links = self._links.at_last() if self._options.state_cache_bytes else ()
        return cache_place(driver.folded, links, self._options)

    def _opened(self, batch_df: DataFrame, batch: BatchContext) -> Driver:
        self._session = session = batch_df.sparkSession
        if self._driver is not None and self._driver.folded.lineage != batch.lineage:
            self._release()  # another query: its checkpoint has to be accepted first
        alive = partial(is_running, session, batch.lineage)
        driver = self._driver or self._open(
            batch_df, batch.lineage, lambda state: _refuse(state, batch), alive
        )
        self._keep_alive(alive)
        return driver

    def _open(
        self, rows: DataFrame, lineage: str | None, check: Callable[[Folded], None], alive: Alive
    ) -> Driver:
        self._session = rows.sparkSession
        self._driver = driver = self._new_driver()
        self._keep_alive(alive)  # a long recovery gives signs of life too
        with self._teller.watching(driver, None):
            self.recovered = open_namespace(driver, lineage, check)
        self._writer, self._links = driver.writer, StateLinks(driver)
        if self._options.commit == PIPELINED:
            self._pipeline = PipelineThread(
                driver, lambda on: self._published(on.fact, on.manifest, on.machine.watch), self._ended
            )
        driver.store.heartbeat(driver.epoch)
        if self._options.affinity:
            named = self._endpoints.namespace, driver.folded.namespace
            self._placement = placement_for(self._options, *named, self._locality)
        if self.recovered:
            logger.info("recovered versions %s of %s", self.recovered, self._endpoints.namespace)
        return driver

    def _keep_alive(self, alive: Alive) -> None:
        """Heartbeat and retirement beside the batches, while ``alive``."""
        driver, before = self._driver, self._background
        if driver is None or not (before is None or before.ended):
            return
        if before is not None:
            before.stop(followers=False)  # one may be at a store that does not answer
        self._background = Background(
            driver.log,
            driver.store,
            self._options,
            lambda: driver.epoch,
            lambda: alive() or self._in_flight,
            followers=self._followers,
            at=self._teller.at,
        )
        self._background.way = driver.way
        self._background.decided = lambda: driver.last_decided

    def _new_driver(self) -> Driver:
        where = self._endpoints
        apply = {
            at.name: apply_on_executors(lambda: self._session.sparkContext, where.only(at), self._places)
            for at in (where.stores if self._session is not None else ())
        }
        driver = Driver(
            where,
            open_log(where.wal, where.namespace, where.wal_options),
            open_store(where.store, where.namespace, where.store_options),
            self._options,
            apply_on_executors=apply.get(where.stores[0].name),
        )
        self._followers = followers_of(driver, apply)
        return driver

    def _places(self) -> Places | None:
        return None if self._placement is None else self._placement.current

    def _ended(self) -> bool:
        return self._background is None or self._background.ended

    @property
    def _in_flight(self) -> bool:
        pipeline = self._pipeline
        return pipeline is not None and not pipeline.stopped and pipeline.in_flight > 0

    def _release(self) -> TidegateError | None:
        """End what runs, then close what it used; why versions stay in flight, if any do."""
        problem = None if self._pipeline is None else self._pipeline.close()
        if problem is not None:
            logger.warning("versions stay decided, and are recovered at the next open: %s", problem)
        if self._background is not None:
            self._background.stop()
        if self._driver is not None:
            self._driver.log.close()
            self._driver.store.close()
        for follower in self._followers:
            follower.store.close()
        self._driver, self._background, self._followers = None, None, []
        self._placement, self._links, self._pipeline = None, None, None
        return problem

    def _known(self, driver: Driver) -> dict[str, TableSchema]:
        """The schemas of the tables as they stand: the store's, and of what is decided and not there yet."""
        tables = driver.folded.tables
        if not tables:
            return {}
        in_flight = {} if self._pipeline is None else self._pipeline.schemas()
        schemas = {**driver.store.schemas(), **in_flight}
        if not all(at.schema_id in schemas for at in tables.values()) and driver.store.unverified():
            repair(driver)  # a server lost them with its last writes
            schemas |= driver.store.schemas()
        for name, at in tables.items():
            if at.schema_id not in schemas:
                raise no_schema(driver.store.where, driver.folded.last_version, name, at.schema_id)
        return {name: schemas[at.schema_id] for name, at in tables.items()}


def _origin(state: Folded, batch: BatchContext) -> BatchOrigin:
    return BatchOrigin(batch.lineage, state.generation, batch.batch_id, batch.fingerprint)


def _manifest_of(driver: Driver, fact: VersionFact) -> Manifest | None:
    """Of this version, if the driver made no other one visible behind it."""
    last = driver.last_manifest
    return last if last is not None and last.version == fact.version else None


def _refuse(state: Folded, batch: BatchContext) -> None:
    """LineageError when the batch went back in time, before anything is appended."""
    replay_of(state, _origin(state, batch))
