"""Metrics for Prometheus: all their names, and their HTTP server. Needs ``tidegate[metrics]``.

``VersionedSink(metrics_port=9464)`` serves the driver's metrics; ``register()`` adds them to a
registry of your own, in a reader's process too. Without one of them nothing listens, and nothing is
counted.

>>> from prometheus_client import CollectorRegistry
>>> registry = CollectorRegistry()
>>> register(registry)
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import socket
import socketserver
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from tidegate.base.extras import missing
from tidegate.errors import BY_NAME, BadRecordError, ConfigError, FencedError
from tidegate.observe import events
from tidegate.observe.events import Commit, Count, Gauge, Labels, Observer
from tidegate.options import address_of

HISTOGRAM, COUNTER, GAUGE = "histogram", "counter", "gauge"


class Metric(NamedTuple):
    """One metric: its name as Prometheus shows it, without the suffixes of a histogram."""

    kind: str
    name: str
    labels: tuple[str, ...]
    meaning: str


_STORE = ("namespace", "store")
PHASE = Metric(HISTOGRAM, "tidegate_phase_seconds", (*_STORE, "phase"), "seconds that a phase took")
COMMIT = Metric(HISTOGRAM, "tidegate_commit_seconds", _STORE, "seconds from a batch's start to visible")
COMMITS = Metric(COUNTER, "tidegate_commits_total", _STORE, "versions made visible")
BY_DRIVER = Metric(
    COUNTER,
    "tidegate_by_driver_total",
    (*_STORE, "phase"),
    "phases of visible versions that the driver did without tasks: stage, apply",
)
ROWS = Metric(COUNTER, "tidegate_rows_total", ("namespace", "table"), "rows written or deleted")
STEP = ("namespace", "step")
STEP_ROWS = Metric(COUNTER, "tidegate_step_rows_total", STEP, "changes that a call gave to be staged")
STEP_S = Metric(
    COUNTER, "tidegate_step_seconds_total", STEP, "seconds of tasks in the merge with a call's state"
)
STEP_TIES = Metric(
    COUNTER,
    "tidegate_step_ties_total",
    STEP,
    "rows that lost to a delete of their key with the same sequence",
)
BYTES = Metric(COUNTER, "tidegate_bytes_total", ("namespace",), "bytes of change-logs of visible versions")
FAILED = Metric(COUNTER, "tidegate_failed_batches_total", ("namespace", "error"), "batches that raised")
FENCED = Metric(COUNTER, "tidegate_fenced_total", ("namespace",), "batches that raised FencedError")
BAD_RECORDS = Metric(
    COUNTER, "tidegate_bad_records_total", ("namespace",), "rows quarantined, and batches refused for one"
)
READ = Metric(HISTOGRAM, "tidegate_read_seconds", ("namespace", "table"), "seconds of a reader's call")
READ_FAILED = Metric(COUNTER, "tidegate_read_errors_total", ("namespace", "error"), "calls that raised")
SEEN = Metric(GAUGE, "tidegate_seen_version", ("namespace",), "newest version that a reader here has seen")

COUNTS = {
    Count.RETRIES: Metric(COUNTER, "tidegate_retries_total", (*_STORE, "phase"), Count.RETRIES.value),
    Count.ALARMS: Metric(COUNTER, "tidegate_alarms_total", (*_STORE, "alarm"), Count.ALARMS.value),
    Count.CACHE_HITS: Metric(COUNTER, "tidegate_cache_hits_total", ("namespace",), Count.CACHE_HITS.value),
    Count.CACHE_MISSES: Metric(
        COUNTER, "tidegate_cache_misses_total", ("namespace",), Count.CACHE_MISSES.value
    ),
    Count.CACHE_MOVED: Metric(
        COUNTER, "tidegate_cache_moved_bytes_total", ("namespace", "reason"), Count.CACHE_MOVED.value
    ),
}
LEVELS = {
    Gauge.DECIDED: Metric(GAUGE, "tidegate_decided_version", ("namespace",), Gauge.DECIDED.value),
    Gauge.VISIBLE: Metric(GAUGE, "tidegate_visible_version", _STORE, Gauge.VISIBLE.value),
    Gauge.HORIZON: Metric(GAUGE, "tidegate_horizon_version", _STORE, Gauge.HORIZON.value),
    Gauge.LAG: Metric(GAUGE, "tidegate_lag_versions", _STORE, Gauge.LAG.value),
    Gauge.BEHIND_S: Metric(GAUGE, "tidegate_behind_seconds", _STORE, Gauge.BEHIND_S.value),
    Gauge.LEASES: Metric(GAUGE, "tidegate_leases", _STORE, Gauge.LEASES.value),
    Gauge.LAYERS: Metric(GAUGE, "tidegate_layers", _STORE, Gauge.LAYERS.value),
    Gauge.VOID: Metric(GAUGE, "tidegate_void_records", ("namespace",), Gauge.VOID.value),
    Gauge.CACHE_BYTES: Metric(GAUGE, "tidegate_cache_bytes", ("namespace",), Gauge.CACHE_BYTES.value),
    Gauge.SPILL_BYTES: Metric(GAUGE, "tidegate_spill_bytes", ("namespace",), Gauge.SPILL_BYTES.value),
    Gauge.STUCK_S: Metric(GAUGE, "tidegate_stuck_seconds", ("namespace",), Gauge.STUCK_S.value),
    Gauge.UP: Metric(GAUGE, "tidegate_up", ("namespace",), Gauge.UP.value),
    Gauge.VERSION_AT: Metric(GAUGE, "tidegate_version_timestamp_seconds", _STORE, Gauge.VERSION_AT.value),
    Gauge.STORE_UP: Metric(GAUGE, "tidegate_store_up", _STORE, Gauge.STORE_UP.value),
    Gauge.LOG_UP: Metric(GAUGE, "tidegate_log_up", ("namespace",), Gauge.LOG_UP.value),
    Gauge.APPLY_BEFORE: Metric(
        GAUGE, "tidegate_apply_before_timestamp_seconds", _STORE, Gauge.APPLY_BEFORE.value
    ),
    Gauge.LEASES_MAX: Metric(GAUGE, "tidegate_leases_limit", _STORE, Gauge.LEASES_MAX.value),
    Gauge.UNVERIFIED: Metric(GAUGE, "tidegate_store_unverified", _STORE, Gauge.UNVERIFIED.value),
    Gauge.STORE_USED: Metric(GAUGE, "tidegate_store_used_ratio", _STORE, Gauge.STORE_USED.value),
    Gauge.IMBALANCE: Metric(GAUGE, "tidegate_store_imbalance_ratio", _STORE, Gauge.IMBALANCE.value),
    Gauge.MAY_EVICT: Metric(GAUGE, "tidegate_store_may_evict", _STORE, Gauge.MAY_EVICT.value),
    Gauge.LOG_USED: Metric(GAUGE, "tidegate_log_used_ratio", ("namespace",), Gauge.LOG_USED.value),
}
ALL = (
    *(
        PHASE,
        COMMIT,
        COMMITS,
        BY_DRIVER,
        ROWS,
        STEP_ROWS,
        STEP_S,
        STEP_TIES,
        BYTES,
        FAILED,
        FENCED,
        BAD_RECORDS,
    ),
    *COUNTS.values(),
    *LEVELS.values(),
    *(READ, READ_FAILED, SEEN),
)
"""Every metric there is. A test compares the table in docs/monitoring.md with this."""

BUCKETS = {
    PHASE: (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
    COMMIT: (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
    READ: (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
}
COMMITS_KEPT = 1_000
"""The number of versions whose phase times are kept for ``tidegate ui``, which shows them by version."""
QUARANTINE = "_quarantine"
PHASES = ("stage", "manifest", "decide", "apply", "publish")
ALARMS = ("stuck", "behind")
MOVE_REASONS = ("budget", "container", "wait", "room")
LASTING = (LEVELS[Gauge.UP], LEVELS[Gauge.VERSION_AT])
"""The gauges that a failed query keeps: alerts fire until a query writes the namespace again."""


class Metrics(Observer):
    """An observer that counts in one registry."""

    def __init__(self, registry: Any) -> None:
        client = _client()
        kinds = {HISTOGRAM: client.Histogram, COUNTER: client.Counter, GAUGE: client.Gauge}
        self._made: dict[Metric, Any] = {}
        for metric in ALL:
            further = {"buckets": BUCKETS[metric]} if metric in BUCKETS else {}
            named = metric.name, metric.meaning, metric.labels
            self._made[metric] = kinds[metric.kind](*named, registry=registry, **further)
        self._levels: set[tuple[Metric, Labels]] = set()
        self._failed: set[str] = set()
        self.commits: deque[Commit] = deque(maxlen=COMMITS_KEPT)

    def _of(self, metric: Metric, at: Labels, kind: str = "") -> Any:
        values = {"namespace": at.namespace, "store": at.store, "table": at.table}
        return self._made[metric].labels(*(values.get(label, kind) for label in metric.labels))

    def opened(self, namespace: str, stores: Sequence[str]) -> None:
        labels = Labels(namespace, stores[0])
        for metric in (COMMITS, BYTES, FENCED, BAD_RECORDS):
            self._of(metric, labels)
        for error in BY_NAME:
            self._of(FAILED, labels, error)
        for phase in PHASES:
            self._of(COUNTS[Count.RETRIES], labels, phase)
        for phase in ("stage", "apply"):
            self._of(BY_DRIVER, labels, phase)
        for reason in MOVE_REASONS:
            self._of(COUNTS[Count.CACHE_MOVED], labels, reason)
        for store in stores:
            for alarm in ALARMS:
                self._of(COUNTS[Count.ALARMS], Labels(namespace, store), alarm)

    def committed(self, commit: Commit) -> None:
        labels = Labels(commit.namespace, commit.store)
        self._of(COMMITS, labels).inc()
        self._of(COMMIT, labels).observe(commit.seconds)
        for phase, who in (("stage", commit.staged_by), ("apply", commit.applied_by)):
            self._of(BY_DRIVER, labels, phase).inc(who == "driver")
        self._of(BYTES, labels).inc(commit.bytes)
        for table, rows in commit.rows.items():
            self._of(ROWS, labels._replace(table=table)).inc(rows)
        for step, (rows, seconds) in commit.steps.items():
            self._of(STEP_ROWS, labels, step).inc(rows)
            self._of(STEP_S, labels, step).inc(seconds)
            self._of(STEP_TIES, labels, step).inc(commit.ties.get(step, 0))
        self._of(BAD_RECORDS, labels).inc(commit.rows.get(QUARANTINE, 0))
        self.commits.append(commit)

    def failed(self, commit: Commit, error: BaseException) -> None:
        labels = Labels(commit.namespace)
        self._of(FAILED, labels, type(error).__name__).inc()
        if isinstance(error, FencedError):
            self._of(FENCED, labels).inc()
        if isinstance(error, BadRecordError):
            self._of(BAD_RECORDS, labels).inc()

    def phase(self, at: Labels, name: str, seconds: float) -> None:
        self._of(PHASE, at, name).observe(seconds)

    def count(self, what: Count, at: Labels, amount: int, kind: str) -> None:
        self._of(COUNTS[what], at, kind).inc(amount)

    def level(self, what: Gauge, at: Labels, value: float) -> None:
        if math.isnan(value):
            self._forget(LEVELS[what], at)
            return
        self._of(LEVELS[what], at).set(value)
        self._levels.add((LEVELS[what], at))
        if what is Gauge.UP:
            (self._failed.discard if value else self._failed.add)(at.namespace)

    def read(self, at: Labels, seconds: float, error: str) -> None:
        self._of(READ, at).observe(seconds)
        if error:
            self._of(READ_FAILED, at, error).inc()

    def seen(self, at: Labels, version: int) -> None:
        self._of(SEEN, at).set(version)

    def closed(self, namespace: str) -> None:
        lasting = LASTING if namespace in self._failed else ()
        for metric, labels in self._levels.copy():
            if labels.namespace == namespace and metric not in lasting:
                self._forget(metric, labels)

    def _forget(self, metric: Metric, at: Labels) -> None:
        if (metric, at) in self._levels:
            self._levels.discard((metric, at))
            self._made[metric].remove(*(getattr(at, label) for label in metric.labels))


_registered: dict[int, tuple[Any, Metrics]] = {}
_served: dict[tuple[str, int], tuple[str, Any]] = {}
_lock = threading.Lock()


def register(registry: Any = None) -> None:
    """Count in this registry from now on; None: the library's own, ``prometheus_client.REGISTRY``.

    For a driver whose metrics you serve yourself, and for readers. Repeatable. Raises: ConfigError:
    ``prometheus_client`` is not installed.
    """
    _metrics_in(_client().REGISTRY if registry is None else registry)


def _metrics_in(registry: Any) -> Metrics:
    with _lock:
        if id(registry) not in _registered:
            _registered[id(registry)] = registry, Metrics(registry)
            events.add(_registered[id(registry)][1])
        return _registered[id(registry)][1]


def serve(metrics_port: int | str) -> str:
    """Serve the library's own registry until the process ends; return the URL.

    Sinks of a process share a port. ``/metrics`` is for Prometheus; ``/commits`` has the last
    versions with their phases, as JSON, for ``tidegate ui``. Raises: ConfigError: the port is
    taken, or ``prometheus_client`` is not installed.
    """
    client = _client()
    metrics = _metrics_in(client.REGISTRY)
    address = address_of(metrics_port)
    with _lock:
        if address not in _served:
            app = functools.partial(_answer, client.make_wsgi_app(client.REGISTRY), metrics)
            try:
                server = make_server(*address, app, _Server6 if ":" in address[0] else _Server, _Quiet)
            except OSError as error:
                msg = f"metrics_port {metrics_port}: {error.strerror or error}; choose another port, or 0"
                raise ConfigError(msg) from error
            threading.Thread(target=server.serve_forever, name="tidegate-metrics", daemon=True).start()
            host = f"[{address[0]}]" if ":" in address[0] else address[0]
            _served[address] = f"http://{host}:{server.server_port}/metrics", server
        return _served[address][0]


def end_serving(metrics_port: int | str) -> None:
    """Close the port again, for a process that commits in place of this one. Repeatable."""
    with _lock:
        _, server = _served.pop(address_of(metrics_port), ("", None))
    if server is not None:
        server.shutdown()
        server.server_close()


def _answer(metrics_app: Any, metrics: Metrics, environ: Any, start: Callable[..., Any]) -> Iterable[bytes]:
    if environ["PATH_INFO"] != "/commits":
        content: Iterable[bytes] = metrics_app(environ, start)
        return content
    start("200 OK", [("Content-Type", "application/json")])
    return [json.dumps([_shown(commit) for commit in metrics.commits.copy()]).encode()]


def _shown(commit: Commit) -> dict[str, Any]:
    names = ("namespace", "version", "batch", "store", "seconds", "phases", "rows", "bytes", "retries")
    return {name: value for name, value in dataclasses.asdict(commit).items() if name in names}


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    address_family = WSGIServer.address_family

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # without HTTPServer's reverse look-up of the name
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    timeout = 30

    def log_message(self, *_: Any) -> None:
        pass


def _client() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise missing("the page of metrics", error) from None
    return prometheus_client
