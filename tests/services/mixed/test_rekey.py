"""A Spark query on Kafka and Redis continues with other key groups: no batch is lost, none counts twice."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate
from support.cli import ended
from tidegate.wal.open_log import open_log

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DRIVER = Path(__file__).with_name("relog_driver.py")
RUN_S = 180


def add(folder, *numbers):
    for number in numbers:
        rows = [{"k": f"k{key}", "n": number * 10 + key} for key in range(20)]
        path = folder / "input" / f"{number:02}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_600_000_000 + number,) * 2)


def recount(numbers):
    return {f"k{key}": {"n": sum(number * 10 + key for number in numbers)} for key in range(20)}


def test_a_query_stops_after_an_unnoted_batch_and_goes_on_with_other_key_groups(
    kafka, redis, namespace, tmp_path, monkeypatch
):
    """Its last batch is visible, and Spark did not note it: the batch comes again in the new namespace."""
    monkeypatch.setenv("TIDEGATE_STORE", redis.url)
    monkeypatch.setenv("TIDEGATE_WAL", kafka.url)
    (tmp_path / "input").mkdir()
    to = f"{namespace}_16"

    def query(name, key_groups, armed=""):
        return subprocess.run(
            [sys.executable, DRIVER, tmp_path, name, redis.url, kafka.url, str(key_groups)],
            env=os.environ | {"TIDEGATE_FAILPOINTS": armed},
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )

    words = ("rekey", f"--namespace={namespace}", f"--to={to}", "--allow-unsafe", "--yes", "--json")
    try:
        add(tmp_path, 0, 1)
        assert query(namespace, 4).returncode == 0
        ended(0, "alias", "set", f"{namespace}_live", f"--namespace={namespace}")
        copied = json.loads(ended(0, *words, "--key-groups=16").stdout)
        assert (copied["visible"], copied["behind"]) == (1, 0)
        add(tmp_path, 2, 3)
        died = query(namespace, 4, "commit.before_return=kill@2")
        assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
        moved = json.loads(ended(0, *words, "--finish", "--force").stdout)
        assert (moved["visible"], moved["rows"]["sums"]) == (4, 20)  # the copy, two batches, the last one
        refused = query(namespace, 4)
        assert f"was moved to namespace {to}" in refused.stdout
        add(tmp_path, 4)
        again = query(to, 16)
        assert again.returncode == 0, again.stdout + again.stderr[-2000:]
        with tidegate.connect(redis.url, f"{namespace}_live") as gate:
            assert dict(gate.table("sums").scan()) == recount(range(5))
            assert gate.version() == 5
    finally:
        for name in (namespace, to):
            open_log(kafka.url, name).drop()
