"""Speculation on a real standalone cluster: twins both stage, exactly one ack counts (T2, I1, I2).

A master and two workers with loopback addresses of their own, from the pyspark package; the driver
is a process too, because this one has a SparkContext already.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest

import tidegate
from tidegate.wal.fold import View, fold_all

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SPARK_HOME = Path(pyspark.__file__).parent
DEADLINE_S = 120.0
ROWS = 2_000


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def environment(address):
    return {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": address,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYSPARK_PYTHON": sys.executable,
    }


def start(folder, name, address, *arguments):
    """A Java process of the cluster; its output goes to a file."""
    with (folder / f"{name}.log").open("w") as output:
        return subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), *arguments],
            env=environment(address),
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_for_port(process, port):
    end = time.monotonic() + DEADLINE_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert process.poll() is None, "the master has ended"
        assert time.monotonic() < end, f"no answer on port {port} within {DEADLINE_S} s"
        time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path):
    """A standalone master with two workers of one core; its URL."""
    folder, port, processes = tmp_path / "cluster", free_port(), []
    folder.mkdir()
    deploy = "org.apache.spark.deploy"
    try:
        master = start(folder, "master", "127.0.0.1", f"{deploy}.master.Master", "--host", "127.0.0.1",
                       "--port", str(port), "--webui-port", "0")  # fmt: skip
        processes.append(master)
        wait_for_port(master, port)
        for address in ("127.0.0.1", "127.0.0.2"):
            arguments = [f"{deploy}.worker.Worker", "--host", address, "--webui-port", "0", "--cores", "1"]
            arguments += [
                "--memory",
                "600m",
                "--work-dir",
                str(folder / address),
                f"spark://127.0.0.1:{port}",
            ]
            worker = start(folder, f"worker-{address}", address, *arguments)
            processes.append(worker)
        yield f"spark://127.0.0.1:{port}"
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)


def test_a_speculated_twin_stages_too_and_one_ack_counts_t2_i2(cluster, log_at, tmp_path):
    folder = tmp_path / "run"
    (folder / "input").mkdir(parents=True)
    rows = [{"k": f"k{n}", "n": n} for n in range(ROWS)]
    (folder / "input" / "1.json").write_text("\n".join(map(json.dumps, rows)))
    script, log = Path(__file__).with_name("speculation_driver.py"), log_at(folder)
    with (tmp_path / "driver.log").open("w") as errors:
        driver = subprocess.Popen(
            [sys.executable, str(script), cluster, str(folder), json.dumps(log.keywords)],
            env=environment("127.0.0.1"),
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
