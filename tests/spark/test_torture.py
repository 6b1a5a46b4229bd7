"""`tidegate torture --spark`: cells are proven, and a broken rule is noticed in one."""

import json
from collections import Counter

import pytest

from broken_tree import WRONG_ROWS, edited, made, tortured
from tidegate.torture.cell.stray_requests import STRAYS

# Each starts JVMs: two applications in the first test, one in each other one.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1_800)]

CELLS = (
    "seal.after:executor:same",
    "stage.before_write:shuffle:same",
    "stage.before_ack:python-worker:second",
)
ONE_PROCESS = "open.after_append:python-worker:same"
"""A cell whose Spark is in the driver's process: a task is tried again there, too."""
ROWS_LEFT_OUT = (
    "src/tidegate/torture/spark_app/query.py",
    "files.write(txn, rows, changes)",
    "files.write(txn, rows.limit(1), changes)",
)
NOT_READ_BACK = (
    "committers/states.py",
    "    State.SEALED: {Event.FLIPPED: State.VISIBLE, Event.NOT_FLIPPED: State.READING_BACK},\n",
    "    State.SEALED: {Event.FLIPPED: State.VISIBLE, Event.NOT_FLIPPED: State.VISIBLE},\n",
)
OLD_SIDE_ADDED = (
    "spark/staging/derive.py",
    "    one, zero = pa.scalar(sign, pa.int64()), pa.scalar(0, pa.int64())\n",
    "    one, zero = pa.scalar(1, pa.int64()), pa.scalar(0, pa.int64())\n",
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the tree, as one plain package."""
    return made(tmp_path_factory.mktemp("tree"))


def test_cells_on_a_local_cluster_are_proven(tree, tmp_path):
    cells = [f"--only={cell}" for cell in CELLS]
    limits = ["--spark", "local-cluster[2,1,1024]", "--cell-deadline", "400s"]
    code, report = tortured(tmp_path, tree, *cells, *limits)
    assert (code, report["results"]) == (0, {"proven": len(CELLS)}), report["not_proven"]
    for outcome in report["outcomes"]:
        counts = Counter(outcome["counts"])
        assert counts["versions"] == 4
        assert min(counts["reads"], counts["snapshots"]) > 0
        assert counts["stray requests"] == len(STRAYS)
    assert faults(tmp_path / "r") == {"executor", "shuffle", "python-worker"}
    assert [path.name for path in (tmp_path / "r" / "spark").glob("*/*")] == ["output.txt"] * 2


def test_a_cell_without_executors_of_its_own_is_proven(tree, tmp_path):
    limits = ["--spark", "local[2]", "--cell-deadline", "400s"]
    code, report = tortured(tmp_path, tree, f"--only={ONE_PROCESS}", "--seed", "11", *limits)
    assert (code, report["results"]) == (0, {"proven": 1}), report["not_proven"]


def faults(folder):
    """The kinds of the faults that tasks did."""
    lines = [
        line for path in folder.glob("cells/*/driver-1-task.jsonl") for line in path.read_text().splitlines()
    ]
    return {event["kind"] for event in map(json.loads, lines) if event["event"] == "fault"}


@pytest.mark.parametrize(
    "edit,cell,rules",
    [
        pytest.param(NOT_READ_BACK, "publish.before:io:same", {"stale"}, id="not confirmed"),
        pytest.param(ROWS_LEFT_OUT, "publish.before:raise:same", WRONG_ROWS, id="rows left out"),
        pytest.param(OLD_SIDE_ADDED, "publish.before:kill:second", {"ghost"}, id="derived rows added only"),
    ],
)
def test_a_broken_rule_is_reported(tree, tmp_path, edit, cell, rules):
    with edited(tree, edit):
        code, report = tortured(
            tmp_path, tree, f"--only={cell}", "--spark", "local[2]", "--cell-deadline", "400s"
        )
    assert code == 1
    (wrong,) = report["not_proven"]
    assert {finding["rule"] for finding in wrong["outcome"]["findings"]} & rules, wrong
