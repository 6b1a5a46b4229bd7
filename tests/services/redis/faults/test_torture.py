"""`tidegate torture` on a real Redis: what only a network can do, and what only Redis has."""

from __future__ import annotations

import pytest

from services.support.kafka.server import KafkaCluster
from services.support.redis.server import RedisServer
from tidegate.sinks.open_store import open_store
from tidegate.torture.run import torture

CELLS = [
    "apply.before_chunk:net-lost:same",
    "publish.before:net-late:second",
    "seal.after:net-late:recover",
    "retire.after_group:kill:second",
    "publish.before:late:second",
]


@pytest.mark.slow
@pytest.mark.timeout(300)  # many processes, on a machine that may be busy
def test_cells_that_need_a_network_are_proven(redis: RedisServer, tmp_path) -> None:
    wal = f"file://{tmp_path}/wal"
    report = torture(wal, redis.url, seed=2, only=CELLS, folder=tmp_path / "r", allow_unsafe=True)
    wrong = [(str(o.cell), o.result, o.findings, o.unproven) for o in report.totals.wrong]
    assert wrong == []
    assert len(report.totals.outcomes) == len(CELLS)
    for outcome in report.totals.outcomes:
        store = open_store(redis.url, outcome.namespace)
        assert store.identity() is None, "the namespace is still there"
        store.close()


PLAN = """
[[fault]]
name = "redis-stopped"
begin = "kill -STOP {redis}"
end = "kill -CONT {redis}"
hold_s = 2

[[fault]]
name = "broker-stopped"
begin = "kill -STOP {broker}"
end = "kill -CONT {broker}"
hold_s = 5
"""
DISTURBED = [
    "apply.before_chunk:redis-stopped:same",
    "publish.before:redis-stopped:second",
    "decide.before_append:broker-stopped:same",
    "manifest.after_write:broker-stopped:recover",
    "open.after_claim:broker-stopped:claimed",
]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cells_with_faults_of_a_plan_are_proven(redis: RedisServer, kafka3: KafkaCluster, tmp_path) -> None:
    """One of three brokers is stopped, for longer than it may lead, and Redis, while drivers go on."""
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.format(redis=redis.pid, broker=kafka3.pid(0)))
    options = {"folder": tmp_path / "r", "allow_unsafe": True, "cell_s": 120}
    report = torture(kafka3.url, redis.url, seed=2, only=DISTURBED, cluster=plan, **options)
    wrong = [(str(o.cell), o.result, o.findings, o.unproven) for o in report.totals.wrong]
    assert wrong == []
    assert len(report.totals.outcomes) == len(DISTURBED)
