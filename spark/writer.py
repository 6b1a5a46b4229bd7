"""The writer of a sink, and the parts of it that exist only while its namespace is open."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from tidegate.base.clock import Clock
from tidegate.committers.background.finish import finish_decided
from tidegate.committers.background.follower import Follower, followers_of
from tidegate.committers.background.pipeline import PipelineThread
from tidegate.committers.background.worker import Background
from tidegate.committers.barrier import NONE_BROUGHT, Barrier
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator, OpenRequest, process_writer
from tidegate.committers.opening.open import open_namespace, refuse_if_writer_alive
from tidegate.committers.repair.derive import build_barrier, drop_barrier
from tidegate.committers.repair.repair import repair
from tidegate.committers.states import Watch
from tidegate.errors import TidegateError
from tidegate.options import PIPELINED, Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.cache.in_flight import ALL_VISIBLE, InFlightVersions
from tidegate.sinks.open_store import open_store
from tidegate.sinks.rules.visible import schemas_by_table
from tidegate.spark.batch import is_connect
from tidegate.spark.calls.collected import CollectedCalls
from tidegate.spark.calls.update import check_ttls
from tidegate.spark.errors import give_mark
from tidegate.spark.lock import SinkLock
from tidegate.spark.placement.locality import Locality
from tidegate.spark.placement.preferred import Placement, Places, ran_before
from tidegate.spark.reporting import SinkReporter
from tidegate.spark.session.marked_runs import MarkedRuns
from tidegate.spark.session.runs import Runs
from tidegate.spark.session.single_runs import SingleRuns
from tidegate.spark.session.workers_python import check_workers_python
from tidegate.spark.staging.apply_job import apply_on_executors
from tidegate.spark.staging.declared import check_declared, planned, table_changes
from tidegate.spark.staging.job import SparkBarrier
from tidegate.spark.staging.links import StateLinks
from tidegate.spark.staging.on_driver import DriverStage
from tidegate.spark.staging.parallelism import tasks_for, warn_of_imbalance
from tidegate.spark.state.cache import NO_LINKS, CachePlace, cache_place, total_reads
from tidegate.wal.manifest import Manifest
from tidegate.wal.open_log import open_log
from tidegate.wal.record import DecidedVersion, Definition, Folded, Origin, TableSchema
from tidegate.wal.staging.acks import StateReads
from tidegate.wal.staging.spec import StageSpec

logger = logging.getLogger("tidegate")

Alive = Callable[[], bool]
Published = Callable[[DecidedVersion, Manifest | None, Watch], None]
"""Called for each version that becomes visible; with ``commit="pipelined"`` by another thread."""


class WriterSettings(NamedTuple):
    """The settings of a sink that its writer needs."""

    endpoints: Endpoints
    options: Options
    locality: Locality
    reporter: SinkReporter
    published: Published


class Connections:
    """A coordinator and the followers of the other stores, connected and not open: nothing is claimed yet.

    ``session`` is the Spark session whose executors apply large versions; None: the driver applies all.
    """

    def __init__(self, settings: WriterSettings, session: Any) -> None:
        self.settings, self.session = settings, session
        self.placement: Placement | None = None
        """The placement of tasks; None: there is nothing to choose."""
        where = settings.endpoints
        apply = {
            ref.name: apply_on_executors(lambda: self.session, where.only(ref), self._places)
            for ref in (where.stores if session is not None else ())
        }
        self.coordinator = Coordinator(
            where,
            open_log(where.wal, where.namespace, where.wal_options),
            open_store(where.store, where.namespace, where.store_options),
            settings.options,
            apply_on_executors=apply.get(where.stores[0].name),
            writer=process_writer(Clock()),
        )
        self.followers: list[Follower] = followers_of(self.coordinator, apply)

    def _places(self) -> Places | None:
        return None if self.placement is None else self.placement.current

    def close(self) -> None:
        """Close the log and the stores. Repeatable."""
        self.coordinator.log.close()
        self.coordinator.store.close()
        for follower in self.followers:
            follower.store.close()


class SyncCommits:
    """Commits that are visible on return, with the methods of ``PipelineThread``: nothing is in flight."""

    failed: BaseException | None = None
    in_flight = 0
    stopped = False

    def __init__(self, coordinator: Coordinator, published: Published) -> None:
        self._coordinator, self._published = coordinator, published

    def commit(self, barrier: Barrier, staged_by: StageSpec | None = None) -> DecidedVersion:
        """Make one barrier the next version, and visible, as ``commit.commit``."""
        fact = commit(self._coordinator, barrier, staged_by)
        last = self._coordinator.last_manifest
        manifest = last if last is not None and last.version == fact.version else None
        self._published(fact, manifest, self._coordinator.watch)
        return fact

    def in_flight_versions(self) -> InFlightVersions:
        """Return no versions: every decided one is visible."""
        return ALL_VISIBLE

    def schemas(self) -> dict[str, TableSchema]:
        """Return no schemas: every decided one is in the store."""
        return {}

    def check(self) -> None:
        """Do nothing: no commit can fail between two batches."""

    def drain(self, timeout_s: float) -> None:
        """Do nothing: no version is in flight."""

    def close(self) -> TidegateError | None:
        """Return None: no version is in flight."""
        return None


class OpenWriter:
    """A namespace that a sink has opened: its coordinator, background work, cache links, and commits.

    It serves one batch or load at a time. ``commits.drain`` may be called from any thread.
    """

    def __init__(self, connections: Connections, alive: Alive) -> None:
        """Start the background work, so that a long recovery writes heartbeats. ``open`` does the rest."""
        self.connections, self._settings = connections, connections.settings
        self.coordinator = coordinator = connections.coordinator
        self.commits: SyncCommits | PipelineThread = SyncCommits(coordinator, self._published)
        self.recovered: list[int] = []
        self.parallelism = 0  # of the batch before; 0: there was none yet
        self.runs: Runs
        """The shuffles of the present version, from before the call of the user's function on."""
        self._links = StateLinks(coordinator)
        self.background = self._start_background(alive)

    @classmethod
    def open(
        cls,
        connections: Connections,
        lineage: str | None,
        check: Callable[[Folded], None],
        alive: Alive,
    ) -> OpenWriter:
        """Claim the namespace, create it if it is missing, and finish an earlier driver's versions.

        ``check`` gets the folded log before anything is appended. ``alive``: the background work ends when it
        is False and nothing is in flight. After an error all is closed. Raises: as ``open_namespace``.
        """
        writer = cls(connections, alive)
        try:
            writer._open(lineage, check)
        except BaseException:
            writer.close()
            raise
        return writer

    def _open(self, lineage: str | None, check: Callable[[Folded], None]) -> None:
        coordinator, options = self.coordinator, self._settings.options
        with self._settings.reporter.watching(coordinator, None):
            self.recovered = open_namespace(coordinator, lineage, check)
        if options.commit == PIPELINED:
            self.commits = PipelineThread(
                coordinator,
                lambda on: self._published(on.decided, on.manifest, on.machine.watch),
                lambda: self.background.ended,
            )
        coordinator.store.heartbeat(coordinator.epoch)
        session = self.connections.session
        if options.affinity and (session is None or not is_connect(session)):
            locality = self._settings.locality
            before = partial(ran_before, coordinator)
            self.connections.placement = Placement(before, locality.provider, locality.metadata)
        if self.recovered:
            logger.info("recovered versions %s of %s", self.recovered, self._settings.endpoints.namespace)

    def keep_alive(self, alive: Alive) -> None:
        """Start the background work again if it has ended, as it does with a query."""
        if self.background.ended:
            self.background.stop(followers=False)  # one may wait for a store that does not answer
            self.background = self._start_background(alive)

    def _start_background(self, alive: Alive) -> Background:
        coordinator = self.coordinator
        self._settings.reporter.running()

        def is_needed() -> bool:
            return alive() or (not self.commits.stopped and self.commits.in_flight > 0)

        return Background(
            coordinator.log,
            coordinator.store,
            self._settings.options,
            epoch=lambda: coordinator.epoch,
            alive=is_needed,
            followers=self.connections.followers,
            at=self._settings.reporter.at,
            way=coordinator.priority,
            folded=lambda: coordinator.decisions.view.state,
        )

    def _published(self, fact: DecidedVersion, manifest: Manifest | None, watch: Watch) -> None:
        self._settings.published(fact, manifest, watch)
        self.background.published()

    def check(self) -> None:
        """Raise the error that ended an earlier version, or a follower, since the last batch."""
        self.background.check()
        self.commits.check()

    @property
    def placement(self) -> Placement | None:
        """The placement of tasks; None: there is nothing to choose."""
        return self.connections.placement

    def cache(self) -> CachePlace | None:
        """Find the valid caches of state at the last version; None: caches are switched off."""
        options = self._settings.options
        links = self._links.at_last() if options.state_cache_bytes else NO_LINKS
        return cache_place(self.coordinator.folded, links, options)

    def in_flight(self, parallelism: int) -> InFlightVersions | None:
        """Return the versions in flight, for reads of state; None: a task has no room for its part."""
        versions = self.commits.in_flight_versions()
        if versions is None or not versions.fit(parallelism, self.coordinator.folded.key_groups):
            return None
        return versions

    def schemas(self) -> dict[str, TableSchema]:
        """Return the schemas of the tables at the last decided version, by table.

        Raises: CorruptError: the store lacks one, and no server has lost it.
        """
        coordinator = self.coordinator
        tables = coordinator.folded.tables
        if not tables:
            return {}
        ids = sorted({t.schema_id for t in tables.values()})
        schemas = {**coordinator.store.schemas_of(ids), **self.commits.schemas()}
        if not all(t.schema_id in schemas for t in tables.values()) and coordinator.store.unverified():
            repair(coordinator)  # a server lost them with its last writes
            schemas |= coordinator.store.schemas_of(ids)
        return schemas_by_table(coordinator.store.where, coordinator.folded.last_version, tables, schemas)

    def close(self, timeout_s: float = 0.0) -> TidegateError | None:
        """End the background work, then close log and stores; return why versions stay in flight, or None.

        ``timeout_s``: how long it may retire, trim and follow after the last version; 0: it stops at once.
        """
        problem = self.commits.close()
        if problem is not None:
            logger.warning("versions stay decided, and are recovered at the next open: %s", problem)
        elif timeout_s:
            self.background.drain(timeout_s)
        self.background.stop()
        self.connections.close()
        return problem


class SinkWriter:
    """The writer of one sink: it opens the namespace for a version, and commits what a transaction has made.

    ``now`` is what is open; None: the next version opens, and recovers, first. One version at a time, under
    ``lock``.
    """

    def __init__(self, settings: WriterSettings, derived: Mapping[str, Definition]) -> None:
        self.settings, self.derived = settings, derived
        self.lock = SinkLock()
        self.now: OpenWriter | None = None
        self.writer_id = ""
        self.recovered: list[int] = []
        self.last_state = StateReads()

    @property
    def session(self) -> Any:
        """The session of the last version while the namespace is open, otherwise the thread's; or None."""
        return SparkSession.getActiveSession() if self.now is None else self.now.connections.session

    def open(
        self,
        session: Any,
        lineage: str | None = None,
        check: Callable[[Folded], None] = lambda _: None,
        alive: Alive = lambda: True,
    ) -> OpenWriter:
        """Return the open writer; open the namespace if there is none (``OpenWriter.open``).

        ``session`` is that of the next version; None: the driver does all.
        """
        if self.now is None:
            if session is not None and not is_connect(session):
                check_workers_python(session.sparkContext)
            connections = Connections(self.settings, session)
            if lineage is None and session is not None and is_connect(session):

                def check(_: Folded) -> None:
                    refuse_if_writer_alive(
                        connections.coordinator,
                        "a version of its own, such as a load, from a client of Spark Connect",
                        force=False,
                        way_out="wait. Nothing was written",
                    )

            if session is not None:
                tasks = tasks_for(self.settings.options, session)
                connections.coordinator.request = OpenRequest(expected_tasks=tasks)
            self.now = OpenWriter.open(connections, lineage, check, alive)
            self.recovered, self.writer_id = self.now.recovered, self.now.coordinator.writer
        self.now.connections.session = session
        self.now.keep_alive(alive)
        return self.now

    def release(self, timeout_s: float = 0.0) -> TidegateError | None:
        """Close what is open, as ``OpenWriter.close``. Repeatable."""
        writer, self.now = self.now, None
        return None if writer is None else writer.close(timeout_s)

    def drain(self, timeout_s: float | None = None) -> None:
        """Wait until no version is in flight, at most ``apply_deadline_s`` by default."""
        if self.now is not None:
            self.now.commits.drain(self.settings.options.apply_deadline_s if timeout_s is None else timeout_s)

    def recover(self, *, force: bool) -> list[int]:
        """Finish an earlier driver's versions, and return them; what is open drains alone."""
        if self.now is not None and self.now.commits.failed is None:
            self.drain()
            return []
        self.release()
        connections = Connections(self.settings, SparkSession.getActiveSession())
        coordinator = connections.coordinator
        try:
            known = coordinator.store.identity() is not None
            mine = known and coordinator.store.pointer().writer == self.writer_id
            done = finish_decided(coordinator, connections.followers, "sink.recover()", force=force or mine)
            self.recovered, self.writer_id = done.recovered, coordinator.writer
        finally:
            connections.close()
        return self.recovered

    def begin(self, batch_id: int, session: Any) -> CollectedCalls:
        """Begin the next version. Derived tables that the log lacks are built first, each in a version."""
        writer = self._opened()
        coordinator, schemas = writer.coordinator, writer.schemas()
        build = check_declared(self.derived, coordinator.folded.tables, schemas)
        if build:
            self.drain()
        for name, definition in build.items():
            if name in coordinator.folded.tables:
                self.commit_own(drop_barrier(coordinator, name))
            if definition.of in schemas:
                self.commit_own(build_barrier(coordinator, schemas, name, definition))
        if is_connect(session):
            writer.runs = MarkedRuns(session)
        else:
            writer.runs = SingleRuns(session.sparkContext)
            give_mark(session.sparkContext)
        return CollectedCalls(batch_id, writer.schemas() if build else schemas)

    def commit(
        self,
        collected: CollectedCalls,
        origin: Origin,
        rows: DataFrame,
        source_offsets: str = "",
        expiring: frozenset[str] = frozenset(),
        driver_stage: DriverStage | None = None,
        strides: Mapping[str, int] = NONE_BROUGHT,
    ) -> DecidedVersion:
        """Commit what a transaction has collected. Durable and raises: as a batch of ``VersionedSink``."""
        writer, (endpoints, options, _, reporter, _) = self._opened(), self.settings
        coordinator = writer.coordinator
        state = coordinator.folded
        made = collected.close()
        check_ttls(made.calls, options.ttl_us)
        derived = planned(self.derived, made)
        quarantines = options.on_bad_record == "quarantine"
        parallelism = tasks_for(options, rows.sparkSession, state.key_groups)
        if parallelism != writer.parallelism:
            warn_of_imbalance(endpoints.namespace, parallelism, state.key_groups)
            writer.parallelism = parallelism
        barrier = SparkBarrier(
            calls=made.calls,
            tables=table_changes(made, derived, quarantines=quarantines, expiring=expiring, strides=strides),
            origin=origin,
            source_offsets=source_offsets,
            endpoints=endpoints.only(),
            key_groups=state.key_groups,
            parallelism=parallelism,
            table_ats=state.tables,
            runs=writer.runs,
            drops=made.drops,
            planned=derived,
            first_start=state.first_start,
            in_flight=writer.in_flight(parallelism),
            placement=writer.placement,
            function_deadline_s=options.function_deadline_s,
            cache=writer.cache(),
            driver_stage=driver_stage,
        )
        with reporter.watching(coordinator, origin):
            fact = writer.commits.commit(barrier)
        coordinator.held = {}
        self.last_state = total_reads(barrier.reads)
        reporter.decided(coordinator, fact, self.last_state, barrier.spilled_bytes)
        return fact

    def commit_own(self, barrier: Barrier) -> DecidedVersion:
        """Commit a version without a job of Spark. Durable: on return it is visible."""
        writer = self._opened()
        with self.settings.reporter.watching(writer.coordinator, barrier.origin):
            fact = writer.commits.commit(barrier)
        self.drain()
        return fact

    def _opened(self) -> OpenWriter:
        if self.now is None:
            raise RuntimeError("nothing is open: open() comes first")
        return self.now
