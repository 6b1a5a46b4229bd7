"""A worker and an executor killed while they apply to a server: others apply the same from the log (I1, I2).

Real processes, real signals; state is read from the store by the tasks. The server is this test's own.
"""

from __future__ import annotations

import json
import os

import pytest

import tidegate
from services.support.cassandra.server import CassandraServer
from services.support.redis.server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.only_log("file"), pytest.mark.timeout(400)]

BATCHES = [
    [{"k": f"k{n}", "n": n} for n in range(300)],
    [{"k": f"k{n}", "n": 10 * n - 100} for n in range(200)],  # the first ten keys are deleted
    [{"k": f"k{n}", "n": 7} for n in range(0, 400, 3)],
    [{"k": f"k{n}", "n": n - 5} for n in range(250)],
]
PLANS = {"1": ["applying", "executor"], "2": ["applying", "worker"]}
"""Which batch somebody is killed in, when, and who: see executors_driver.py."""


def expected(version):
    newest, sums = {}, {}
    for batch in BATCHES[:version]:
        for row in batch:
            sums[row["k"]] = {"n": sums.get(row["k"], {"n": 0})["n"] + row["n"]}
            newest[row["k"]] = {"n": row["n"]}
            if row["n"] < 0:
                del newest[row["k"]]
    return {"newest": newest, "sums": sums}


@pytest.fixture(
    params=[
        pytest.param((RedisServer, {}), id="redis", marks=pytest.mark.slow),
        pytest.param((CassandraServer, {"create": True}), id="cassandra", marks=pytest.mark.slow),
    ]
)
def store(request, tmp_path):
    """Where it is and what it is told, for a sink."""
    make, options = request.param
    with make(tmp_path / "server") as server:
        yield {"store": server.url, "store_options": options}


def test_killed_while_they_apply_i1_i2_t2(store, tmp_path, log_at, drive):
    (tmp_path / "input").mkdir()
    for at, rows in enumerate(BATCHES):
        path = tmp_path / "input" / f"{at}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_600_000_000 + 100 * at,) * 2)
    where = {**log_at(tmp_path).keywords, **store, "keep_versions": 10}
    words = (json.dumps(where), "local-cluster[2,1,1024]", json.dumps(PLANS))
    code, told = drive("executors_driver.py", tmp_path, *words, deadline_s=300)
    assert code == 0, told
    notes = [json.loads(line) for line in (tmp_path / "notes").read_text().splitlines()]
    killed = {note["batch"]: note["who"] for note in notes if note["kind"] == "killed"}
    assert killed == {batch: who for batch, (_, who) in PLANS.items()}
    assert [note["batch"] for note in notes if note["kind"] == "called"] == ["0", "1", "2", "3"]
    with tidegate.connect(store["store"], namespace="flights") as gate:
        assert gate.version() == len(BATCHES)
        for version in range(1, len(BATCHES) + 1):
            with gate.snapshot(version=version) as snapshot:
                found = {name: dict(snapshot.table(name).scan()) for name in ("newest", "sums")}
            assert found == expected(version), version
