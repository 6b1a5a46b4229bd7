"""Speculation on a real standalone cluster: twins both stage, exactly one ack counts (T2, I1, I2).

A master and two workers with loopback addresses of their own, from the pyspark package; the driver
is a process too, because this one has a SparkContext already.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate
from services.support.spark.cluster import SparkCluster, environment
from tidegate.wal.fold import View, fold_all

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

DEADLINE_S = 120.0
ROWS = 2_000


@pytest.fixture
def cluster(tmp_path):
    """A standalone master with two workers of one core; its URL."""
    with SparkCluster(tmp_path / "cluster", "127.0.0.1", "127.0.0.2") as started:
        yield started.url


@pytest.mark.slow
def test_a_speculated_twin_stages_too_and_one_ack_counts_t2_i2(cluster, log_at, tmp_path):
    folder = tmp_path / "run"
    (folder / "input").mkdir(parents=True)
    rows = [{"k": f"k{n}", "n": n} for n in range(ROWS)]
    (folder / "input" / "1.json").write_text("\n".join(map(json.dumps, rows)))
    script, log = Path(__file__).with_name("speculation_driver.py"), log_at(folder)
    with (tmp_path / "driver.log").open("w") as errors:
        driver = subprocess.Popen(
            [sys.executable, str(script), cluster, str(folder), json.dumps(log.keywords)],
            env=environment("127.0.0.1", tmp_path),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = driver.communicate(timeout=2 * DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(driver.pid, signal.SIGKILL)
            output, _ = driver.communicate()
    assert driver.returncode == 0, (tmp_path / "driver.log").read_text()[-5_000:]
    told = json.loads(output.splitlines()[-1])
    assert told["hosts"] == ["127.0.0.1", "127.0.0.2"]
    assert {"0-0", "0-1", "1-0"} <= set(told["seen"]), "both twins of task 0 wrote their frames"

    assert len(log.segments("flights")) >= 4, "two tasks, a twin, the manifest"
    with log.opened("flights") as opened:
        assert fold_all(View(), opened.decisions()).state.last_version == 1
    with tidegate.connect(f"sqlite://{folder}/store", namespace="flights") as gate:
        assert gate.version() == 1
        assert dict(gate.table("t").scan()) == {row["k"]: {"n": row["n"]} for row in rows}
        sums = {k: {"n": sum(n for n in range(ROWS) if n % 3 == k)} for k in range(3)}
        assert dict(gate.table("sums").scan()) == sums
        assert [info.changes for info in gate.history()] == [{"sums": 3, "t": ROWS}]
