"""Incidents with a real Prometheus, the shipped rules, Kafka and Redis: what alerts, what does not.

The rules are those of deploy/prometheus/alerts.yml with seconds in place of minutes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from services.support.kafka.proxied import proxy_of
from services.support.prometheus import RULES, STEP_S, Prometheus, shortened
from services.support.servers import free_ports
from support.prometheus import prometheus_program
from support.wait import wait_until


def test_the_template_changes_times_alone():
    rules = RULES.read_text()
    assert re.sub(r"\b\d+[ms]\b|\* \d+", "", shortened(rules)) == re.sub(r"\b\d+[ms]\b|\* \d+", "", rules)
    assert "for: 2s" in shortened(rules)


class Driver:
    """The process of incident_driver.py."""

    def __init__(self, folder: Path, wal: str, store: str, port: int) -> None:
        self._log = folder / "driver.log"
        script = Path(__file__).with_name("incident_driver.py")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(script), wal, store, str(port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout.readline() == "ready\n", self.log[-3000:]

    def call(self, word: str) -> None:
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == f"{word}\n", self.log[-3000:]

    @property
    def log(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture
def servers(private_kafka, private_redis):
    """A broker behind a proxy, the proxy, and a Redis."""
    cluster = private_kafka(proxied=True)
    with proxy_of(cluster) as proxy:
        yield cluster, proxy, private_redis()


@pytest.mark.slow
def test_incidents(servers, tmp_path):
    cluster, proxy, redis = servers
    prometheus_program("prometheus")
    (port,) = free_ports(1)
    driver = Driver(tmp_path, f"kafka://{cluster.proxied_bootstrap}", redis.url, port)
    prometheus = Prometheus(tmp_path / "prometheus", port)
    try:
        play(driver, prometheus, proxy, redis)
    finally:
        prometheus.close()
        driver.kill()


def play(driver, prometheus, proxy, redis):
    driver.call("commit")
    prometheus.wait("tidegate_visible_version == 1 and on (namespace) tidegate_up == 1")
    prometheus.wait_without("TidegateDriverGone")
    assert prometheus.firing() <= {"TidegateNoNewVersion", "TidegateCommitStuck"}  # a busy machine is slow

    # A planned stop: nothing has failed, and no gauge is left.
    driver.call("stop")
    prometheus.wait("absent(tidegate_up) and absent(tidegate_lag_versions)")
    assert not prometheus.ask("tidegate_failed_batches_total > 0")
    assert not {"TidegateQueryFailed", "TidegateBatchesFail"} & prometheus.firing()

    # Redis is killed: its last values disappear, the commit is stuck, the query dies at its first failure.
    driver.call("commit")
    prometheus.wait("tidegate_visible_version == 2 and on (namespace) tidegate_store_up == 1")
    redis.kill()
    driver.call("commit")
    prometheus.wait_for("TidegateStoreUnreachable", "TidegateCommitStuck")
    prometheus.wait_for("TidegateQueryFailed", "TidegateBatchesFail")
    assert not prometheus.ask("tidegate_leases")
    assert prometheus.ask('tidegate_failed_batches_total{error="StoreUnavailableError"} == 1')
    redis.start()
    driver.call("commit")  # it opens again, and recovers version 3
    prometheus.wait("tidegate_visible_version == 4")
    prometheus.wait_without("TidegateQueryFailed", "TidegateStoreUnreachable", "TidegateCommitStuck")

    # The broker is away: the alarm names it, and not Spark, which runs the phase.
    proxy.refuse()
    proxy.cut()
    driver.call("commit")
    prometheus.wait_for("TidegateLogUnreachable", "TidegateCommitStuck")
    alarm = [line for line in driver.log.splitlines() if "ALARM: version 5" in line][-1]
    assert "waits for kafka://" in alarm, alarm
    assert "Spark" not in alarm
    proxy.accept()
    wait_until(lambda: prometheus.ask("tidegate_up == 0 or tidegate_visible_version == 5"), "an end", STEP_S)

    # A row that cannot be staged ends the query.
    driver.call("bad")
    prometheus.wait('tidegate_failed_batches_total{error="BadRecordError"} == 1')
    prometheus.wait_for("TidegateQueryFailed", "TidegateBatchesFail", "TidegateBadRecords")

    # The driver is killed.
    driver.kill()
    prometheus.wait_for("TidegateDriverGone")
    prometheus.wait("absent(tidegate_up)")
