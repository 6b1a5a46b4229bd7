"""The reports of a sink about its versions: a log line each, ``sink.last_commit``, observers, alarms."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from tidegate.base.names import listed
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.states import State
from tidegate.committers.steps.phase_times import Phases
from tidegate.observe import events, metrics, spans
from tidegate.observe.events import Commit, Count, Gauge, Labels, LogPlace
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.wal.manifest import Manifest
from tidegate.wal.record import BatchOrigin, DecidedVersion, Folded, Origin
from tidegate.wal.staging.acks import StateReads

logger = logging.getLogger("tidegate")


class SinkReporter:
    """The reporter of one sink's versions. ``metrics_url`` is the URL of its metrics, None: not served.

    Raises: ConfigError: the metrics cannot be served there, or their library is missing.
    """

    def __init__(self, where: Endpoints, options: Options) -> None:
        self.at, self._options = Labels(where.namespace, where.stores[0].name), options
        self._warned_of_ttl = False
        self._phases: Phases | None = None
        self.metrics_url = None if options.metrics_port is None else metrics.serve(options.metrics_port)
        spans.use_if_there()
        names = [each.name for each in where.stores]
        events.tell(lambda observer: observer.opened(where.namespace, names))

    def end_metrics(self) -> None:
        """Close the port of the metrics, which the process that commits opens for itself."""
        if self._options.metrics_port is not None:
            metrics.end_serving(self._options.metrics_port)
            self.metrics_url = None

    @contextlib.contextmanager
    def watching(self, coordinator: Coordinator, origin: Origin | None) -> Iterator[Phases]:
        """Watch the driver's next commit, or with ``origin`` None a recovery, within the context."""
        version = None if origin is None else coordinator.folded.last_version + 1
        names = {"log": coordinator.log.where, "store": coordinator.store.where}
        requests = {"log": coordinator.log.is_empty, "store": coordinator.store.identity}
        coordinator.watch = phases = Phases(self.at, version, origin, names, self._options.stuck_s, requests)
        self._phases = phases
        phases.begin(None if origin is None else State.READY)
        try:
            with events.log_context(phases):
                yield phases
        except BaseException:
            phases.end()
            raise
        if origin is None:
            phases.end()

    def published(self, fact: DecidedVersion, manifest: Manifest | None, phases: Phases) -> Commit:
        """Report that a version became visible, with one line at INFO."""
        phases.of_version(fact.version)
        phases.end()
        commit = phases.commit(manifest)
        rows, took = sum(commit.rows.values()), ", ".join(f"{k} {v:.3f}" for k, v in commit.phases.items())
        what = "version %s of %s is visible: batch %s, %s rows, %s bytes, %.3f s (%s)"
        values = (fact.version, self.at.namespace, commit.batch, rows, commit.bytes, commit.seconds, took)
        logger.info(what, *values, extra={"phases": commit.phases, "rows": rows, "bytes": commit.bytes})
        events.tell(lambda observer: observer.committed(commit))
        self._gauge(Gauge.VISIBLE, fact.version)
        return commit

    def skipped(self, fact: DecidedVersion, batch_id: int) -> Commit:
        """Build the commit of a batch that was visible already."""
        return Commit(self.at.namespace, fact.version, batch_id, self.at.store)

    def decided(
        self, coordinator: Coordinator, fact: DecidedVersion, state: StateReads, spilled_bytes: int
    ) -> None:
        """Report the end of a batch: its tasks' reads of state, and the version's gauges."""
        self._warn_of_ttl(coordinator.folded)
        logger.debug("version %s read its state: %s", fact.version, state)
        of = Labels(self.at.namespace)
        events.level(Gauge.DECIDED, of, fact.version)
        events.level(Gauge.CACHE_BYTES, of, state.cache_bytes)
        events.level(Gauge.SPILL_BYTES, of, spilled_bytes)
        events.count(Count.CACHE_HITS, of, state.hits + state.absent)
        events.count(Count.CACHE_MISSES, of, state.misses)
        for reason, moved in state.moved.items():
            events.count(Count.CACHE_MOVED, of, moved, reason)

    def failed(self, batch_id: int, error: BaseException) -> None:
        """Report that a batch raised; the namespace is opened again before anything else is written."""
        phases, self._phases = self._phases, None
        if phases is None or phases.batch != batch_id:
            origin = BatchOrigin("", 0, batch_id, "")
            phases = Phases(self.at, origin=origin)
        commit = phases.commit()
        events.tell(lambda observer: observer.failed(commit, error))
        events.level(Gauge.UP, Labels(self.at.namespace), 0)

    def running(self) -> None:
        """Report that a driver here opens or writes the namespace."""
        events.level(Gauge.UP, Labels(self.at.namespace), 1)

    def query_failed(self) -> None:
        """Report that the query has ended by an error, between two batches or outside of this sink."""
        events.level(Gauge.UP, Labels(self.at.namespace), 0)

    def closed(self) -> None:
        """Report that nothing here writes the namespace: the sink was closed, or a batch has failed."""
        events.tell(lambda observer: observer.closed(self.at.namespace))

    def place(self, phase: str) -> LogPlace:
        """Build the context for log records of the sink's other threads."""
        return LogPlace(self.at.namespace, phase=phase)

    def _gauge(self, what: Gauge, version: int) -> None:
        events.level(what, self.at, version)

    def _warn_of_ttl(self, state: Folded) -> None:
        """Warn, once, of unknown tables in ``ttl``: a misspelt table would keep its rows permanently."""
        missing = sorted(set(self._options.ttl or {}) - set(state.tables))
        if missing and not self._warned_of_ttl:
            logger.warning(
                "ttl names %s, not a table at version %s; the tables are %s",
                ", ".join(missing),
                state.last_version,
                ", ".join(listed(state.tables)),
            )
        self._warned_of_ttl = True
