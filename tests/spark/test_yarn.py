"""A query on YARN: its executors and workers killed, its driver killed in its container (I1, I2, I4; T2)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from killed_driver import write_input
from test_driver_killed import calls, check, committed
from test_store_executors import BATCHES, PLANS, expected

import tidegate
from services.support.spark.cluster import spark_home
from services.support.spark.yarn import YarnCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.only_log("file"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def yarn(tmp_path_factory):
    with YarnCluster(tmp_path_factory.mktemp("yarn")) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def environment(yarn, monkeypatch):
    for name, value in {**yarn.environment, "PYSPARK_PYTHON": sys.executable}.items():
        monkeypatch.setenv(name, value)


def test_executors_and_workers_killed_in_containers_i1_i2_t2(tmp_path, log_at, drive):
    (tmp_path / "input").mkdir()
    for at, rows in enumerate(BATCHES):
        path = tmp_path / "input" / f"{at}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_600_000_000 + 100 * at,) * 2)
    words = (json.dumps(log_at(tmp_path).keywords), "yarn", json.dumps(PLANS))
    code, told = drive("executors_driver.py", tmp_path, *words, deadline_s=400)
    assert code == 0, told
    notes = [json.loads(line) for line in (tmp_path / "notes").read_text().splitlines()]
    killed = {note["batch"]: note["who"] for note in notes if note["kind"] == "killed"}
    assert killed == {batch: who for batch, (_, who) in PLANS.items()}
    assert [note["batch"] for note in notes if note["kind"] == "called"] == ["0", "1", "2", "3"]
    with tidegate.connect(f"sqlite://{tmp_path}/store", namespace="flights") as gate:
        assert gate.version() == len(BATCHES)
        for version in range(1, len(BATCHES) + 1):
            with gate.snapshot(version=version) as snapshot:
                found = {name: dict(snapshot.table(name).scan()) for name in ("newest", "sums")}
            assert found == expected(version), version


def test_a_driver_killed_in_its_container_is_started_again_i1_i2_i4(yarn, tmp_path, log_at):
    """In cluster mode YARN starts it, and once more after its end: it continues on the checkpoint."""
    write_input(tmp_path)
    log = log_at(tmp_path)
    script = Path(__file__).with_name("killed_driver.py")
    submit = [str(spark_home() / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", "cluster"]
    words = [str(script), str(tmp_path), json.dumps(log.keywords), "yarn", "stage"]
    ran = subprocess.run([*submit, *words], capture_output=True, text=True, timeout=400, check=False)
    assert ran.returncode == 0, ran.stderr[-5_000:]
    assert (tmp_path / "killed").exists()
    assert yarn.attempts()[-1] == 2
    assert committed(tmp_path) == [0, 1, 2, 3]
    check(tmp_path, log, visible=4, decided=4)
    assert calls(tmp_path) == [0, 1, 1, 2, 3]
