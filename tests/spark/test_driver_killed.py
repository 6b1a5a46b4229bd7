"""SIGKILL to a Spark driver at each step of a batch, and to an executor (I1, I2, I4, I5; T2, T6, T10).

Real processes: a driver script with a JVM of its own is killed in batch 1, then started again. No
batch may be lost, doubled, or run again once it was decided.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from killed_driver import BATCHES, expected, write_input
from log_places import command

import tidegate
from support.whole_snapshots import whole_snapshots
from tidegate.wal.fold import View, fold_all

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

UNDECIDED = ("batch", "stage", "manifest.after_write", "decide.before_append")
DECIDED = (
    "decide.after_append",
    "apply.before_chunk",
    "apply.after_chunk",
    "seal.after",
    "publish.before",
    "publish.after",
    "commit.before_return",
)
ON_KAFKA = ("decide.after_append",)
"""Those that `make test` runs on Kafka; `make full` runs all of them with both kinds of log."""
PUBLISHED = ("publish.after", "commit.before_return")
CHUNKS = 2
"""Frames of one version: one of each task."""


def numbers(version):
    """What the local state holds, over all its instances."""
    return sorted(row["n"] for batch in BATCHES[:version] for row in batch)


OLDEST = Path(__file__).resolve().parents[2] / ".venv-oldest/bin/python"
"""An environment of the oldest release of Spark; `make test` makes it first."""


@pytest.fixture
def folder(tmp_path):
    write_input(tmp_path)
    return tmp_path


@pytest.fixture
def log(folder, log_at):
    return log_at(folder)


@pytest.fixture
def run(folder, log, drive):
    """The driver script to its end; its exit code and what it printed."""

    def driver(place="none", armed="", master="local[2]", python=sys.executable):
        words = (json.dumps(log.keywords), master, place)
        return drive("killed_driver.py", folder, *words, armed=armed, python=python)

    return driver


def check(folder, log, visible, decided):
    """Every visible version's content, and one version per batch."""
    with log.opened("flights") as opened:
        facts = fold_all(View(), opened.decisions()).state.recent
    assert [fact.origin.batch_id for fact in facts] == list(range(decided))
    with tidegate.connect(f"sqlite://{folder}/store", namespace="flights") as gate:
        assert gate.version() == visible
        for version in range(1, visible + 1):
            with gate.snapshot(version=version) as snapshot:
                found = {name: dict(snapshot.table(name).scan()) for name in ("newest", "sums")}
                seen = snapshot.table("_local.seen").scan()
                instances = dict(snapshot.table("_local").scan())
                assert sorted(int(item) for _, item in seen) == numbers(version), version
            assert found == expected(version), version
            assert sum(told["items"] for told in instances.values()) == len(numbers(version))


def committed(folder):
    return sorted(int(path.name) for path in (folder / "checkpoint" / "commits").glob("[0-9]*"))


def as_expected(snapshot):
    """Whether both tables are as they have to be at this version."""
    tables = {name: dict(snapshot.table(name).scan()) for name in ("newest", "sums")}
    return tables == expected(snapshot.version)


def beside(folder):
    return whole_snapshots(f"sqlite://{folder}/store", "flights", as_expected)


def calls(folder):
    return [int(line) for line in (folder / "calls").read_text().split()]


def reads(folder):
    """(hits, misses) of each batch that was done, by its id; a killed one's are not there."""
    lines = [map(int, line.split()) for line in (folder / "reads").read_text().splitlines()]
    return {batch: (hits, misses) for batch, hits, misses in lines}


def agree(folder, log):
    """As an operator would ask: log and store hold the same."""
    where = ["--store", f"sqlite://{folder}/store", "--namespace", "flights", *log.words]
    assert json.loads(command("verify", "--json", *where))["findings"] == []


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(place, marks=[pytest.mark.on_kafka] if place in ON_KAFKA else [])
        for place in (*UNDECIDED, *DECIDED)
    ],
)
def test_a_driver_killed_in_a_batch_is_started_again_i1_i2_i4_i5(folder, log, run, place):
    inside = "." in place
    nth = CHUNKS + 1 if place.startswith("apply.") else 2
    with beside(folder):
        code, told = run("none" if inside else place, f"{place}=kill@{nth}" if inside else "")
        assert code == -signal.SIGKILL, told
        assert committed(folder) == [0], "Spark does not know that batch 1 is done"
        assert (folder / "checkpoint" / "offsets" / "1").exists()
        check(folder, log, visible=2 if place in PUBLISHED else 1, decided=2 if place in DECIDED else 1)

        code, told = run()
        assert code == 0, told
    assert committed(folder) == [0, 1, 2, 3]
    check(folder, log, visible=4, decided=4)
    again = [] if place in DECIDED or place == "batch" else [1]
    assert calls(folder) == [0, 1, *again, 2, 3]
    # The cache of state outlives the driver that was killed: only new keys are asked of the store.
    assert reads(folder)[2] == (10, 4)
    if place not in DECIDED:
        assert reads(folder)[1] == (10, 0)
    agree(folder, log)


@pytest.mark.skipif(sys.prefix == str(OLDEST.parents[1]) or not OLDEST.exists(), reason="no older Spark")
@pytest.mark.parametrize("oldest_is_first", [True, False])
def test_each_start_may_be_on_another_release_of_spark_i1_i2_i4(folder, log, run, oldest_is_first):
    """The version that one release decided is completed by the other, and its checkpoint continues there."""
    ways = [str(OLDEST), sys.executable]
    first, second = ways if oldest_is_first else reversed(ways)
    with beside(folder):
        for python, nth, decided in ((first, 2, 2), (second, 1, 3)):
            code, told = run(armed=f"decide.after_append=kill@{nth}", python=python)
            assert code == -signal.SIGKILL, told
            check(folder, log, visible=decided - 1, decided=decided)
        code, told = run(python=first)
        assert code == 0, told
    assert committed(folder) == [0, 1, 2, 3]
    assert calls(folder) == [0, 1, 2, 3], "no batch runs again once it is decided"
    check(folder, log, visible=4, decided=4)
    agree(folder, log)


def test_a_pipelined_driver_killed_between_decided_and_visible_i2_i4(folder, log, drive):
    """Spark may have the batch as done: the next driver finds it in the log all the same."""
    words = (json.dumps({**log.keywords, "commit": "pipelined"}), "local[2]", "none")
    code, told = drive("killed_driver.py", folder, *words, armed="pipeline.before_complete=kill@2")
    assert code == -signal.SIGKILL, told
    check(folder, log, visible=1, decided=2)
    code, told = drive("killed_driver.py", folder, *words)
    assert code == 0, told
    assert calls(folder) == [0, 1, 2, 3]
    check(folder, log, visible=4, decided=4)
    agree(folder, log)


def test_what_a_killed_driver_decided_is_recovered_without_spark_i4(folder, log, run):
    """The restarted query finds the batch visible, and goes on behind it."""
    code, told = run(armed=f"apply.after_chunk=kill@{CHUNKS + 1}")
    assert code == -signal.SIGKILL, told
    where = ["--store", f"sqlite://{folder}/store", "--namespace", "flights", *log.words]
    done = json.loads(command("recover", "--json", "--force", "--allow-unsafe", *where))
    assert (done["recovered"], done["visible"]) == ([2], 2)
    check(folder, log, visible=2, decided=2)
    code, told = run()
    assert code == 0, told
    assert calls(folder) == [0, 1, 2, 3]
    check(folder, log, visible=4, decided=4)


def test_an_executor_killed_between_frames_and_ack_i2_t2(folder, log, run):
    """A process of its own, with its worker; another executor stages that task again."""
    code, told = run("executor", master="local-cluster[2,1,512]")
    assert code == 0, told
    assert (folder / "killed").exists()
    assert calls(folder) == [0, 1, 2, 3]
    check(folder, log, visible=4, decided=4)
    # Batch 3 stages nothing but its manifest; each other one two change-logs and a manifest; one orphan.
    assert len(log.segments("flights")) > 3 * 3 + 1, "the killed executor's frames are orphans"
