"""What is told of a commit: its phases, retries and failures, alarms, log lines, spans, metrics."""

from __future__ import annotations

import json
import logging
import math
import re
import threading
import urllib.request
import uuid
from pathlib import Path

import prometheus_client
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import tidegate
from support.faulty import Call, FaultyLog, FaultyStore
from support.wait import wait_until
from tidegate.committers.background.pipeline import PipelineThread
from tidegate.committers.background.worker import Background
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import BadRecordError, ConfigError, FencedError, StoreUnavailableError
from tidegate.observe import events, metrics
from tidegate.observe.events import Commit, Count, Gauge, Labels, Observer
from tidegate.observe.logs import JsonFormatter
from tidegate.observe.spans import Spans
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.memory.store import MemoryStore
from tidegate.sinks.rules.leases import Lease
from tidegate.spark.reporting import SinkReporter
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.testing.example import write_flights
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.staging.acks import StateReads

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 60.0
PHASES = ["stage", "manifest", "decide", "apply", "publish"]


class Port:
    """Calls of a name fail so often, or wait until they are let through."""

    def __init__(self):
        self.fails = {}
        self.held = {}

    def call(self, call, effect):
        if call.name in self.held:
            assert self.held[call.name].wait(DEADLINE_S)
        if self.fails.get(call.name, 0):
            self.fails[call.name] -= 1
            raise StoreUnavailableError("no answer from cache:6379")
        return effect()


class Told(Observer):
    """Notes what it is told."""

    def __init__(self):
        self.commits, self.failures, self.phases, self.counts, self.levels = [], [], [], [], {}

    def committed(self, commit):
        self.commits.append(commit)

    def failed(self, commit, error):
        self.failures.append((commit, error))

    def phase(self, at, name, seconds):
        self.phases.append((at, name, seconds))

    def count(self, what, at, amount, kind):
        self.counts.append((what, at, amount, kind))

    def level(self, what, at, value):
        self.levels[what, at] = value


@pytest.fixture
def observe():
    """Adds observers; they are gone after the test."""
    added = []

    def add(observer):
        events.add(observer)
        added.append(observer)
        return observer

    yield add
    for observer in added:
        events.remove(observer)


@pytest.fixture
def told(observe):
    return observe(Told())


@pytest.fixture
def place():
    """Makes an open driver of a namespace of its own, with the teller and the port of its log and store."""
    name, port = uuid.uuid4().hex, Port()

    def opened(**options):
        log = FaultyLog(MemoryLog(name, "flights"), port)
        store = FaultyStore(MemoryStore(name, "flights"), port)
        where = Endpoints("flights", f"memory://{name}", f"memory://{name}", store_name="cache")
        settings = Options(key_groups=4, apply_deadline_s=DEADLINE_S, wal_retain_s=DEADLINE_S * 10, **options)
        driver = Coordinator(where, log, store, settings)
        teller = SinkReporter(where, settings)
        with teller.watching(driver, None):
            open_namespace(driver, "query-1")
        return driver, teller, port

    return opened


def barrier_of(driver, batch_id=0, rows=2, table="aircraft"):
    values = {table: {b"N%d" % n: b"%d" % batch_id for n in range(rows)}}
    return ArrowBarrier(driver.log, values, batch("query-1", batch_id), 4)


def committed(driver, teller, batch_id=0, **more):
    barrier = barrier_of(driver, batch_id, **more)
    with teller.watching(driver, barrier.origin) as phases:
        fact = commit(driver, barrier)
        done = teller.published(fact, driver.last_manifest, phases)
    teller.decided(driver, fact, StateReads(5, 1, 2, 1000, 0.1, 300, {"budget": 40}), 300)
    return done


def named(name):
    return Call(name, True, StoreUnavailableError, StoreUnavailableError)


# -- phases, retries, failures ----------------------------------------------------------------------


def test_a_commit_is_told_with_its_phases_rows_and_bytes(place, told):
    driver, teller, _ = place()
    done = committed(driver, teller, rows=3)
    assert (done.namespace, done.store, done.version, done.batch) == ("flights", "cache", 1, 0)
    assert list(done.phases) == PHASES
    assert done.seconds == pytest.approx(sum(done.phases.values()))
    assert done.rows == {"aircraft": 3}
    assert done.bytes > 0
    assert done.retries == 0
    assert told.commits == [done]
    assert [name for _, name, _ in told.phases] == PHASES
    assert told.levels[Gauge.VISIBLE, Labels("flights", "cache")] == 1
    assert told.levels[Gauge.DECIDED, Labels("flights")] == 1


def test_every_try_that_is_made_again_is_counted_with_its_phase(place, told):
    driver, teller, port = place()
    port.fails |= {"apply": 2, "publish": 1}
    done = committed(driver, teller)
    counted = [(kind, amount) for what, _, amount, kind in told.counts if what is Count.RETRIES]
    assert counted == [("apply", 1), ("apply", 1), ("publish", 1)]
    assert done.retries == 3
    assert list(done.phases) == PHASES


def test_a_batch_that_raises_is_told_with_how_far_it_got(place, told):
    driver, teller, port = place()
    driver.options = Options(key_groups=4, apply_deadline_s=0.1)
    port.fails["apply"] = 1000
    with pytest.raises(StoreUnavailableError) as raised:
        committed(driver, teller)
    teller.failed(0, raised.value)
    ((commit_then, error),) = told.failures
    assert error is raised.value
    assert list(commit_then.phases) == PHASES[:4]
    assert commit_then.version == 1


def test_an_observer_that_raises_fails_nothing_and_is_told_of(place, observe, caplog):
    class Broken(Observer):
        def phase(self, at, name, seconds):
            raise ValueError("broken")

    observe(Broken())
    driver, teller, _ = place()
    committed(driver, teller)
    assert driver.store.pointer().visible == 1
    assert "Broken failed" in caplog.text


def test_a_pipelined_commit_is_told_when_it_is_visible(place, told):
    driver, teller, _ = place()
    done = []

    def published(on):
        done.append(teller.published(on.decided, on.manifest, on.machine.watch))

    pipeline = PipelineThread(driver, published)
    for batch_id in range(2):
        barrier = barrier_of(driver, batch_id)
        with teller.watching(driver, barrier.origin):
            pipeline.commit(barrier)
    assert pipeline.close() is None
    assert [one.version for one in done] == [1, 2]
    assert [list(one.phases) for one in done] == [PHASES, PHASES]
    assert told.commits == done


# -- alarms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call,phase,reason",
    [
        ("stage", "stage", "Spark, which runs the tasks"),
        ("append_decision", "decide", "to take the decision"),
        ("apply", "apply", "to take the version's rows"),
        ("publish", "publish", "to make the version visible"),
    ],
)
def test_a_stuck_commit_is_an_alarm_with_its_reason(place, told, caplog, monkeypatch, call, phase, reason):
    driver, teller, port = place(stuck_alarm_s=0.05)
    port.held[call] = threading.Event()
    plain = MemoryLog.stage
    monkeypatch.setattr(MemoryLog, "stage", lambda *args: port.call(named("stage"), lambda: plain(*args)))
    worker = threading.Thread(target=committed, args=(driver, teller))
    worker.start()
    stuck = Gauge.STUCK_S, Labels("flights")
    try:
        wait_until(lambda: "ALARM: version 1 of flights is stuck" in caplog.text, "an alarm")
        line = next(one.getMessage() for one in caplog.records if "ALARM" in one.getMessage())
        assert f"is stuck: {phase} has taken" in line
        assert reason in line
        assert "\n" not in line
        assert told.levels[stuck] > 0
        assert (Count.ALARMS, Labels("flights", "cache"), 1, "stuck") in told.counts
    finally:
        port.held.pop(call).set()
        worker.join(DEADLINE_S)
    wait_until(lambda: told.levels[stuck] == 0, "the alarm ends")
    assert "version 1 continues: " in caplog.text
    assert driver.store.pointer().visible == 1


def test_an_alarm_names_the_error_that_was_met_last(place, caplog):
    driver, teller, port = place(stuck_alarm_s=0.05)
    port.fails["apply"] = 10**6
    worker = threading.Thread(target=committed, args=(driver, teller))
    worker.start()
    try:
        wait_until(lambda: "ALARM" in caplog.text, "an alarm")
        assert "it waits for StoreUnavailableError: no answer from cache:6379" in caplog.text
    finally:
        port.fails.clear()
        worker.join(DEADLINE_S)
    assert driver.store.pointer().visible == 1


@pytest.mark.parametrize("silent", [False, True])
def test_an_alarm_in_stage_names_the_log_that_does_not_answer(place, caplog, monkeypatch, silent):
    driver, teller, port = place(stuck_alarm_s=0.05)
    port.held["stage"] = threading.Event()
    plain = MemoryLog.stage
    monkeypatch.setattr(MemoryLog, "stage", lambda *args: port.call(named("stage"), lambda: plain(*args)))
    monkeypatch.setattr(FaultyLog, "is_empty", lambda _: port.call(named("is_empty"), lambda: False))
    if silent:
        port.held["is_empty"] = threading.Event()
    else:
        port.fails["is_empty"] = 1000
    worker = threading.Thread(target=committed, args=(driver, teller))
    worker.start()
    try:
        wait_until(lambda: "ALARM" in caplog.text, "an alarm")
        line = next(one.getMessage() for one in caplog.records if "ALARM" in one.getMessage())
        cause = "it does not answer" if silent else "StoreUnavailableError: no answer from cache:6379"
        assert f"it waits for {driver.log.where}: {cause}" in line
        assert "Spark" not in line
    finally:
        for held in ("stage", "is_empty"):
            port.held.pop(held, threading.Event()).set()
        port.fails.clear()
        worker.join(DEADLINE_S)


def test_a_recovery_that_is_stuck_is_an_alarm_too(place, caplog):
    driver, teller, port = place()
    driver.options = Options(key_groups=4, apply_deadline_s=0.1)
    port.fails["apply"] = 1000
    with pytest.raises(StoreUnavailableError):
        committed(driver, teller)
    port.fails.clear()
    port.held["apply"] = threading.Event()
    worker = threading.Thread(target=place, kwargs={"stuck_alarm_s": 0.05})
    worker.start()
    try:
        wait_until(lambda: "ALARM: version 1 of flights is stuck: apply" in caplog.text, "an alarm")
    finally:
        port.held.pop("apply").set()
        worker.join(DEADLINE_S)
    assert driver.store.pointer().visible == 1


# -- log lines --------------------------------------------------------------------------------------


def test_one_line_per_version_says_what_it_took(place, caplog):
    driver, teller, _ = place()
    with caplog.at_level(logging.INFO, "tidegate"):
        committed(driver, teller, 0)
        committed(driver, teller, 1)
    lines = [one for one in caplog.records if "is visible" in one.getMessage()]
    assert [(one.namespace, one.version, one.batch) for one in lines] == [
        ("flights", 1, 0),
        ("flights", 2, 1),
    ]
    assert re.search(
        r"version 2 of flights is visible: batch 1, 2 rows, \d+ bytes, .*apply", lines[1].getMessage()
    )
    shown = json.loads(JsonFormatter().format(lines[1]))
    assert {
        "namespace": "flights",
        "version": 2,
        "batch": 1,
        "rows": 2,
        "level": "INFO",
    }.items() <= shown.items()
    assert list(shown["phases"]) == PHASES


def test_whatever_is_logged_during_a_commit_says_of_which(place, caplog):
    driver, teller, _ = place()
    barrier = barrier_of(driver)
    with teller.watching(driver, barrier.origin):
        logging.getLogger("tidegate").warning("in the middle")
    logging.getLogger("tidegate").warning("after it")
    inside, after = (json.loads(JsonFormatter().format(one)) for one in caplog.records[-2:])
    assert {"namespace": "flights", "version": 1, "batch": 0, "phase": "stage"}.items() <= inside.items()
    assert "namespace" not in after


# -- spans ------------------------------------------------------------------------------------------


def test_a_version_is_a_span_with_a_child_for_each_phase(place, observe):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    class Of:
        def __getattr__(self, name):
            return getattr(trace, name)

        def get_tracer(self, name):
            return provider.get_tracer(name)

    spans = observe(Spans(Of()))
    driver, teller, port = place()
    with provider.get_tracer("user").start_as_current_span("a batch"):
        committed(driver, teller)
    *parts, whole, outside = exporter.get_finished_spans()
    assert [part.name for part in parts] == [f"tidegate.{phase}" for phase in PHASES]
    assert whole.name == "tidegate.version"
    assert whole.parent.span_id == outside.context.span_id
    assert {"tidegate.namespace": "flights", "tidegate.version": 1, "tidegate.rows": 2}.items() <= dict(
        whole.attributes
    ).items()
    for part in parts:
        assert part.parent.span_id == whole.context.span_id
        assert whole.start_time <= part.start_time <= part.end_time <= whole.end_time
    assert spans is not None
    exporter.clear()
    driver.options = Options(key_groups=4, apply_deadline_s=0.1)
    port.fails["apply"] = 1000
    with pytest.raises(StoreUnavailableError) as raised:
        committed(driver, teller, 1)
    teller.failed(1, raised.value)
    failed = exporter.get_finished_spans()[-1]
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert failed.events[0].attributes["exception.type"].endswith("StoreUnavailableError")


# -- metrics ----------------------------------------------------------------------------------------


@pytest.fixture
def registry():
    """A registry that is counted in, until the test ends."""
    made = prometheus_client.CollectorRegistry()
    metrics.register(made)
    metrics.register(made)
    yield made
    events.remove(metrics._registered.pop(id(made))[1])


def value(registry, name, **labels):
    return registry.get_sample_value(name, labels)


def test_each_step_is_counted_by_its_name(registry):
    commit = Commit("flights", 1, steps={"reduce.airports": (7, 0.25), "mine": (1, 0.0)}, ties={"mine": 3})
    for _ in range(2):
        events.tell(lambda observer: observer.committed(commit))
    named = {"namespace": "flights", "step": "reduce.airports"}
    assert value(registry, "tidegate_step_rows_total", **named) == 14
    assert value(registry, "tidegate_step_seconds_total", **named) == 0.5
    assert value(registry, "tidegate_step_ties_total", namespace="flights", step="mine") == 6


def test_a_drivers_metrics_say_what_happened(place, registry):
    driver, teller, port = place()
    port.fails["apply"] = 1
    committed(driver, teller, 0, rows=3)
    committed(driver, teller, 1, rows=1, table="_quarantine")
    for error in (FencedError("x"), BadRecordError("x")):
        teller.failed(2, error)
    one = {"namespace": "flights"}
    at = one | {"store": "cache"}
    assert value(registry, "tidegate_commits_total", **at) == 2
    assert value(registry, "tidegate_commit_seconds_count", **at) == 2
    for phase in PHASES:
        assert value(registry, "tidegate_phase_seconds_count", **at, phase=phase) >= 2
    assert value(registry, "tidegate_rows_total", **one, table="aircraft") == 3
    assert value(registry, "tidegate_bytes_total", **one) > 0
    assert value(registry, "tidegate_decided_version", **one) == 2
    assert value(registry, "tidegate_visible_version", **at) == 2
    assert value(registry, "tidegate_retries_total", **at, phase="apply") == 1
    assert value(registry, "tidegate_by_driver_total", **at, phase="apply") == 2
    assert value(registry, "tidegate_by_driver_total", **at, phase="stage") == 0
    assert value(registry, "tidegate_fenced_total", **one) == 1
    assert value(registry, "tidegate_failed_batches_total", **one, error="FencedError") == 1
    assert value(registry, "tidegate_bad_records_total", **one) == 2
    assert value(registry, "tidegate_cache_hits_total", **one) == 12
    assert value(registry, "tidegate_cache_misses_total", **one) == 4
    assert value(registry, "tidegate_cache_bytes", **one) == 1000
    assert value(registry, "tidegate_spill_bytes", **one) == 300
    assert value(registry, "tidegate_cache_moved_bytes_total", **one, reason="budget") == 80
    assert value(registry, "tidegate_cache_moved_bytes_total", **one, reason="wait") == 0
    teller.closed()
    assert value(registry, "tidegate_decided_version", **one) is None
    assert value(registry, "tidegate_commits_total", **at) == 2


def test_counters_begin_at_0_so_that_their_first_increase_is_seen(place, registry):
    _, teller, _ = place()
    one = {"namespace": "flights"}
    for error in ("BadRecordError", "FencedError", "StoreUnavailableError"):
        assert value(registry, "tidegate_failed_batches_total", **one, error=error) == 0
    assert value(registry, "tidegate_fenced_total", **one) == 0
    assert value(registry, "tidegate_bad_records_total", **one) == 0
    assert value(registry, "tidegate_commits_total", **one, store="cache") == 0
    for phase in PHASES:
        assert value(registry, "tidegate_retries_total", **one, store="cache", phase=phase) == 0
    for alarm in ("stuck", "behind"):
        assert value(registry, "tidegate_alarms_total", **one, store="cache", alarm=alarm) == 0
    assert teller.metrics_url is None


def test_after_a_failure_no_gauge_keeps_a_value_that_looks_healthy(place, registry):
    driver, teller, _ = place()
    at = {"namespace": "flights", "store": "cache"}
    teller.running()
    committed(driver, teller)
    events.level(Gauge.LAG, Labels("flights", "cache"), 0)
    events.level(Gauge.VERSION_AT, Labels("flights", "cache"), 5.0)
    assert value(registry, "tidegate_up", namespace="flights") == 1
    teller.failed(1, StoreUnavailableError("away"))
    for _ in range(2):  # by the sink, and by its user
        teller.closed()
        assert value(registry, "tidegate_up", namespace="flights") == 0
        assert value(registry, "tidegate_version_timestamp_seconds", **at) == 5
        assert value(registry, "tidegate_lag_versions", **at) is None
        assert value(registry, "tidegate_visible_version", **at) is None
    teller.running()
    assert value(registry, "tidegate_up", namespace="flights") == 1
    teller.closed()
    assert value(registry, "tidegate_up", namespace="flights") is None
    assert value(registry, "tidegate_version_timestamp_seconds", **at) is None


def test_a_value_that_is_not_known_any_more_is_removed(registry):
    at = Labels("flights", "cache")
    for level in (1.0, math.nan, math.nan):
        events.level(Gauge.LEASES, at, level)
    assert value(registry, "tidegate_leases", namespace="flights", store="cache") is None


def test_lag_leases_layers_and_void_records_are_asked_for_beside_the_batches(place, registry):
    driver, teller, _ = place(heartbeat_s=0.05)
    for batch_id in range(3):
        committed(driver, teller, batch_id)
    driver.store.lease(Lease("reader", 2), 600.0)
    background = Background(
        driver.log,
        driver.store,
        driver.options,
        lambda: driver.epoch,
        at=Labels("flights", "cache"),
        folded=lambda: driver.folded,
    )
    background.published()
    at = {"namespace": "flights", "store": "cache"}
    try:
        wait_until(lambda: value(registry, "tidegate_leases", **at) == 1, "the leases")
        wait_until(lambda: value(registry, "tidegate_layers", **at) == 3, "the layers")
        wait_until(lambda: value(registry, "tidegate_lag_versions", **at) == 0, "the lag")
        wait_until(
            lambda: value(registry, "tidegate_void_records", namespace="flights") == 0, "the void records"
        )
        wait_until(
            lambda: value(registry, "tidegate_phase_seconds_count", **at, phase="retire"), "a retirement"
        )
    finally:
        background.stop()


def test_readers_are_counted_where_somebody_registered(registry):
    name = f"memory://{uuid.uuid4().hex}"
    write_flights(wal=name, store=name)
    gate = tidegate.connect(name, namespace="flights")
    gate.table("aircraft").get("N14228")
    with gate.snapshot() as snapshot:
        snapshot.table("aircraft").get_many(["N14228", "N1"])
    with pytest.raises(BadRecordError):
        gate.table("aircraft").get(17)
    gate.close()
    assert value(registry, "tidegate_read_seconds_count", namespace="flights", table="aircraft") == 3
    assert value(registry, "tidegate_read_errors_total", namespace="flights", error="BadRecordError") == 1
    assert value(registry, "tidegate_seen_version", namespace="flights") == 3


def test_metrics_are_served_on_a_port_of_this_host_and_share_it(place):
    _, first, _ = place(metrics_port=0)
    driver, teller, _ = place(metrics_port=0)
    assert first.metrics_url == teller.metrics_url
    assert teller.metrics_url.startswith("http://127.0.0.1:")
    committed(driver, teller)
    with urllib.request.urlopen(teller.metrics_url, timeout=30) as answer:
        assert 'tidegate_commits_total{namespace="flights",store="cache"}' in answer.read().decode()
    with urllib.request.urlopen(teller.metrics_url.replace("/metrics", "/commits"), timeout=30) as answer:
        newest = json.load(answer)[-1]
    assert (newest["namespace"], newest["version"], list(newest["phases"])) == ("flights", 1, PHASES)
    taken = teller.metrics_url.split(":")[-1].split("/")[0]
    with pytest.raises(ConfigError, match=rf"metrics_port {taken}: .*choose another port"):
        metrics.serve(int(taken))


@pytest.mark.parametrize("port", [-1, 65_536, True, "localhost", "0.0.0.0:", 1.5])
def test_a_port_that_is_none_is_refused(port):
    with pytest.raises(ConfigError, match="metrics_port is"):
        Options(metrics_port=port)


def test_without_its_library_the_option_says_what_to_install(place, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"pip install 'tidegate\[metrics\]'"):
        place(metrics_port=0)


def test_everything_that_is_told_has_a_metric_and_somebody_who_tells_it():
    assert set(metrics.COUNTS) == set(Count)
    assert set(metrics.LEVELS) == set(Gauge)
    code = "".join(
        path.read_text() for folder in ("committers", "spark") for path in (ROOT / folder).rglob("*.py")
    )
    for member in (*Count, *Gauge):
        assert re.search(rf"\b{type(member).__name__}\.{member.name}\b", code), member
    assert len({metric.name for metric in metrics.ALL}) == len(metrics.ALL)
    labels = {label for metric in metrics.ALL for label in metric.labels}
    assert labels == {"namespace", "store", "table", "phase", "error", "alarm", "step", "reason"}


def test_the_page_has_every_metric_with_its_labels():
    page = (ROOT / "docs" / "monitoring.md").read_text()
    rows = re.findall(r"^\| `(tidegate_\w+)` \| (\w+) \| ([^|]*) \|", page, re.MULTILINE)
    there = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert there == {metric.name: (metric.kind, metric.labels) for metric in metrics.ALL}
