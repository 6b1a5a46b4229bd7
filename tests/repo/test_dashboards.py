"""The dashboard and the alert rules ask for what a real run exposes: metric names, and their labels."""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from pathlib import Path

import prometheus_client
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import tidegate
from tidegate.base.clock import Clock
from tidegate.committers.background.follower import Standing
from tidegate.committers.background.gauges import Gauges
from tidegate.committers.barrier import NamedCall
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import BadRecordError, FencedError, StoreUnavailableError
from tidegate.observe import events, metrics
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.memory.store import MemoryStore
from tidegate.spark.reporting import SinkReporter
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.wal.memory_log import MemoryLog
from tidegate.wal.staging.acks import StateReads

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "deploy/grafana/dashboards/tidegate.json"
RULES = ROOT / "deploy/prometheus/alerts.yml"
OURS = re.compile(r"\btidegate_\w+")
BY_THE_SERVER = {"le", "job", "instance"}


def expressions():
    """(where it stands, the query, label names that its texts use)."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            used = re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"])
            yield f"panel {panel['title']}", target["expr"], used
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            text = " ".join(rule["annotations"].values())
            yield f"rule {rule['alert']}", rule["expr"], re.findall(r"\$labels\.(\w+)", text)


def asked_for(query):
    """Metric names with the labels that select them, and the labels of by-clauses. A small tokenizer."""
    bare = re.sub(r'"[^"]*"', '""', query)
    selected = {}
    for found in re.finditer(r"(tidegate_\w+)\s*(?:\{([^}]*)\})?", bare):
        labels = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", found[2] or "")
        selected.setdefault(found[1], set()).update(labels)
    grouped = {name.strip() for names in re.findall(r"\bby\s*\(([^)]*)\)", bare) for name in names.split(",")}
    return selected, grouped


def problems_in(query, used, exposed):
    """What the query asks for that is not exposed."""
    selected, grouped = asked_for(query)
    wrong = [f"no metric {name}" for name in selected if name not in exposed]
    known = set().union(*(exposed.get(name, set()) for name in selected)) | BY_THE_SERVER
    for name, labels in selected.items():
        wrong += [
            f"{name} has no label {label}" for label in labels - exposed.get(name, known) - BY_THE_SERVER
        ]
    wrong += [f"no label {label}" for label in grouped - known]
    return wrong + [f"the text's {label} is not in the result" for label in set(used) - (grouped or known)]


class Once:
    """A store whose first apply fails, and whose later one waits until it is let through."""

    def __init__(self, store):
        self.store, self.fails, self.hold = store, 1, None

    def __getattr__(self, name):
        return getattr(self.store, name)

    def apply(self, stamp, *chunks):
        if self.hold is not None:
            self.hold.wait(60)
        if self.fails:
            self.fails -= 1
            raise StoreUnavailableError("away")
        self.store.apply(stamp, *chunks)


@pytest.fixture(scope="module")
def exposed():
    """Label names by sample name, of a run in which everything happens once: versions, a retry, an alarm, a
    fence, a refused row, a second store, readers.
    """
    registry = prometheus_client.CollectorRegistry()
    metrics.register(registry)
    name = uuid.uuid4().hex
    options = Options(key_groups=4, stuck_alarm_s=0.05)
    where = Endpoints("flights", f"memory://{name}", f"memory://{name}", store_name="main")
    store = Once(MemoryStore(name, "flights"))
    driver = Coordinator(where, MemoryLog(name, "flights"), store, options)
    teller = SinkReporter(where, options)
    open_namespace(driver, "query-1")

    def write(batch_id):
        barrier = ArrowBarrier(driver.log, {"aircraft": {b"N1": b"1"}}, batch("query-1", batch_id), 4)
        barrier.named_calls = [NamedCall("reduce.aircraft", "reduce", ("aircraft",))]
        with teller.watching(driver, barrier.origin) as phases:
            fact = commit(driver, barrier)
            teller.published(fact, driver.last_manifest, phases)
        teller.decided(driver, fact, StateReads(1, 0, 1, 10, 0.1, moved={"budget": 3}), 5)

    write(0)
    store.hold = threading.Event()
    worker = threading.Thread(target=write, args=(1,))
    worker.start()
    end = time.monotonic() + 60
    while "tidegate_stuck_seconds{" not in prometheus_client.generate_latest(registry).decode():
        assert time.monotonic() < end
        time.sleep(0.02)
    store.hold.set()
    worker.join(60)
    teller.running()
    store.used_shares, driver.log.folder = (lambda: {"a": 0.9, "b": 0.1}), ROOT
    measured = Gauges(teller.at, driver.log, store, lambda: driver.folded, options.max_leases, Clock())
    measured.watch_eviction()
    measured.report([Standing("copy", "there", 1, 2, 5.0)])
    events.level(events.Gauge.VOID, events.Labels("flights"), driver.decisions.view.void)
    other = Coordinator(where, MemoryLog(name, "flights"), MemoryStore(name, "flights"), options)
    open_namespace(other, "query-1")
    with pytest.raises(FencedError) as fenced:
        write(2)
    for error in (fenced.value, BadRecordError("a bad row")):
        teller.failed(2, error)
    with tidegate.connect(f"memory://{name}", namespace="flights") as gate:
        gate.table("aircraft").get(b"N1")
        with pytest.raises(BadRecordError):
            gate.table("aircraft").get(1.5)
    text = prometheus_client.generate_latest(registry).decode()
    events.remove(metrics._registered.pop(id(registry))[1])
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_every_query_asks_for_what_a_run_exposes(exposed):
    asked = list(expressions())
    assert len(asked) > 25
    wrong = {
        f"{where}: {query}": found
        for where, query, used in asked
        if (found := problems_in(query, used, exposed))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    "query,used",
    [
        ("tidegate_visible", []),
        ('tidegate_visible_version{tabel="x"}', []),
        ("sum by (tabel) (rate(tidegate_rows_total[5m]))", []),
        ("sum by (namespace) (rate(tidegate_rows_total[5m]))", ["table"]),
        ("tidegate_visible_version", ["phase"]),
    ],
)
def test_a_query_for_what_is_not_there_is_found(exposed, query, used):
    assert problems_in(query, used, exposed)


def test_every_metric_is_in_a_panel(exposed):
    shown = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for where, query, _ in expressions()
        if where.startswith("panel")
        for name in OURS.findall(query)
    }
    assert {metric.name for metric in metrics.ALL} <= shown
    assert {metric.name for metric in metrics.ALL} <= {
        re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed
    }


def test_the_alerts_name_what_to_do_and_panels_do_not_overlap():
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"].keys() == {"summary", "action", "runbook"}, rule["alert"]
            assert "`tidegate " in rule["annotations"]["action"], rule["alert"]
            assert rule["labels"]["severity"] in {"warning", "critical"}
    places = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & places, panel["title"]
        places |= cells
