"""Spark Connect: the sink says that it cannot work there, whichever way it is handed over."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
from pyspark import cloudpickle

from tidegate.errors import ConfigError
from tidegate.spark import VersionedSink
from tidegate.spark.batch import batch_context

pytestmark = pytest.mark.spark


def sink(folder):
    return VersionedSink(namespace="flights", wal=f"file://{folder}/wal", store=f"sqlite://{folder}/store")


def test_a_connect_client_cannot_pickle_the_sink_nor_what_each_gives(tmp_path):
    """A Connect client pickles the function of foreachBatch, to run it beside the server."""
    mine = sink(tmp_path)
    for function in (mine, mine.each(lambda _txn, _rows: None)):
        with pytest.raises(ConfigError, match=r"stays in the driver's process.*Spark Connect"):
            cloudpickle.dumps(function)


def test_a_batch_of_a_connect_session_is_refused_with_what_to_do():
    """A Connect session has no py4j object; a sink made on the server's side would meet this."""
    rows = types.SimpleNamespace(sparkSession=types.SimpleNamespace(client=object()))
    with pytest.raises(ConfigError, match=r"not one of a classic Spark session.*builder\.master"):
        batch_context(rows, 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_against_a_server_reads_work_and_writes_are_refused_with_the_reason(tmp_path):
    """A live server, started by the client; what is refused has written nothing."""
    program = [sys.executable, str(Path(__file__).with_name("connect_client.py")), str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"tried"')]
    told = {line["tried"]: line for line in lines}
    assert told["read"].get("gave") == [["N14228", "UA", 2]], told["read"]
    assert told["one key"].get("gave") == [["N24211", "UA", 1]], told["one key"]
    assert [row[-2:] for row in told["stream"].get("gave", [])] == [
        ["upsert", 1], ["upsert", 1], ["upsert", 2], ["delete", 3],
    ], told["stream"]  # fmt: skip
    for name in ("load", "import"):
        assert told[name]["refused"][0].startswith("ConfigError: this DataFrame is not one of a classic"), (
            told
        )
    for name in ("foreachBatch", "each"):
        said = told[name]["refused"]
        assert any("ConfigError: a VersionedSink stays in the driver's process" in one for one in said), said
    assert not (tmp_path / "wal" / "written").exists()
    assert not (tmp_path / "store" / "written").exists()
