"""Both topics of a namespace are deleted: the first advice of the query's error, followed, loses nothing."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

import tidegate
from support.cli import ended
from tidegate.base.names import following_name
from tidegate.wal.open_log import open_log

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DRIVER = Path(__file__).with_name("relog_driver.py")
RUN_S = 180


@pytest.fixture
def query(kafka, redis, namespace, tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEGATE_STORE", redis.url)
    monkeypatch.setenv("TIDEGATE_WAL", kafka.url)
    (tmp_path / "input").mkdir()

    def run(name=namespace, armed=""):
        return subprocess.run(
            [sys.executable, DRIVER, tmp_path, name, redis.url, kafka.url],
            env=os.environ | {"TIDEGATE_FAILPOINTS": armed},
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )

    yield run
    for name in (namespace, following_name(namespace)):
        open_log(kafka.url, name).drop()


def add(folder, *numbers):
    for number in numbers:
        rows = [{"k": f"k{key}", "n": number * 10 + key} for key in range(3)]
        path = folder / "input" / f"{number:02}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_600_000_000 + number,) * 2)


def recount(numbers):
    return {f"k{key}": {"n": sum(number * 10 + key for number in numbers)} for key in range(3)}


def test_the_topics_are_deleted_and_the_first_advice_continues_the_sums(
    query, kafka, redis, namespace, tmp_path
):
    """The driver died after version 3 was visible, and before Spark noted its batch: it comes again."""
    add(tmp_path, 0, 1, 2)
    died = query(armed="commit.before_return=kill@3")
    assert died.returncode == -signal.SIGKILL, died.stderr[-2000:]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    topics = [name for name in admin.list_topics(timeout=30).topics if f".{namespace}." in name]
    assert len(topics) == 2
    for future in admin.delete_topics(topics, operation_timeout=30).values():
        future.result(30)
    add(tmp_path, 3)
    refused = query()
    assert refused.returncode == 1
    assert "WalGapError" in refused.stdout
    words = re.findall("`tidegate ([^`]*)`", refused.stdout)[0].split()
    assert words[0] == "relog"
    folder = tmp_path / "checkpoint"
    text = ended(0, *words, "--yes", "--force", "--allow-unsafe", "--checkpoint", folder).stdout
    assert "3 rows of 1 tables were compared and are equal" in text
    again = query(following_name(namespace))
    assert again.returncode == 0, again.stdout + again.stderr[-2000:]
    with tidegate.connect(redis.url, following_name(namespace)) as gate:
        assert dict(gate.table("sums").scan()) == recount(range(4))
        assert gate.version() == 2
