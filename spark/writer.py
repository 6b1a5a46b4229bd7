"""The open writer of a sink: the parts that exist only while its namespace is open."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tidegate.base.clock import Clock
from tidegate.committers.background.follower import Follower, followers_of
from tidegate.committers.background.pipeline import PipelineThread
from tidegate.committers.background.worker import Background
from tidegate.committers.barrier import Barrier
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator, process_writer
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.repair.repair import repair
from tidegate.committers.states import Watch
from tidegate.errors import TidegateError
from tidegate.options import PIPELINED, Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.cache.in_flight import ALL_VISIBLE, InFlightVersions
from tidegate.sinks.open_store import open_store
from tidegate.sinks.rules.visible import no_schema
from tidegate.spark.batch import is_connect
from tidegate.spark.placement.locality import Locality
from tidegate.spark.placement.preferred import Placement, Places, ran_before
from tidegate.spark.reporting import SinkReporter
from tidegate.spark.session.runs import Runs
from tidegate.spark.staging.apply_job import apply_on_executors
from tidegate.spark.staging.links import StateLinks
from tidegate.spark.state.cache import NO_LINKS, CachePlace, cache_place
from tidegate.wal.manifest import Manifest
from tidegate.wal.open_log import open_log
from tidegate.wal.record import DecidedVersion, Folded, TableSchema
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
            at.name: apply_on_executors(lambda: self.session, where.only(at), self._places)
            for at in (where.stores if session is not None else ())
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
        ids = sorted({at.schema_id for at in tables.values()})
        schemas = {**coordinator.store.schemas_of(ids), **self.commits.schemas()}
        if not all(at.schema_id in schemas for at in tables.values()) and coordinator.store.unverified():
            repair(coordinator)  # a server lost them with its last writes
            schemas |= coordinator.store.schemas_of(ids)
        for name, at in tables.items():
            if at.schema_id not in schemas:
                raise no_schema(coordinator.store.where, coordinator.folded.last_version, name, at.schema_id)
        return {name: schemas[at.schema_id] for name, at in tables.items()}

    def close(self) -> TidegateError | None:
        """End the background work, then close log and stores; return why versions stay in flight, or None."""
        problem = self.commits.close()
        if problem is not None:
            logger.warning("versions stay decided, and are recovered at the next open: %s", problem)
        self.background.stop()
        self.connections.close()
        return problem
