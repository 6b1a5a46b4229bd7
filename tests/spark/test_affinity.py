"""Tasks run where they ran before, on a real cluster whose workers are killed and added (hints: I1, I2 hold).

A master and three workers with loopback addresses of their own; the driver is a process, too.
"""

from __future__ import annotations

import itertools
import json

import pytest

import tidegate

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.only_log("file"), pytest.mark.timeout(500)]

TASKS, ROWS, STABLE = 6, 300, 2


def noted(folder):
    """What the driver noted of each batch."""
    return [json.loads(line) for line in (folder / "notes").read_text().splitlines()]


@pytest.mark.parametrize("affinity,step", [(True, "reduce"), (True, "update"), (False, "reduce")])
def test_only_the_share_of_a_lost_worker_moves_i1_i2(drive, tmp_path, affinity, step):
    """Spark waits for its hints here for longer than the test lasts, so that chance has no part."""
    settings = {
        "affinity": affinity,
        "wait": "300s",
        "tasks": TASKS,
        "rows": ROWS,
        "stable": STABLE,
        "step": step,
    }
    code, told = drive("affinity_driver.py", tmp_path, json.dumps(settings), deadline_s=400)
    assert code == 0, told
    notes = noted(tmp_path)
    assert [note["phase"] for note in notes] == [p for p in ("stable", "lost", "back") for _ in range(STABLE)]
    with tidegate.connect(f"sqlite://{tmp_path}/store", namespace="flights") as gate:
        assert gate.version() == 3 * STABLE
        with gate.snapshot() as snapshot:
            sums = dict(snapshot.table("sums").scan())
    assert sums == {f"k{n}": {"n": 3 * STABLE * n} for n in range(ROWS)}
    if not affinity:
        assert [note["assigned"] for note in notes] == [None] * len(notes)
        return
    for note in notes:  # each on the executor that it was assigned to, and it says so itself
        assert [executor for executor, _ in note["ran"]] == note["assigned"]
        assert note["met"] == [TASKS, TASKS]
        assert {host for _, host in note["ran"]} == set(note["executors"].values())
    for note in notes[STABLE - 1 :: STABLE]:  # where nothing moved, what the batch before cached serves all
        assert note["reads"] == [ROWS, ROWS]
    first, last = notes[::STABLE], notes[STABLE - 1 :: STABLE]
    assert [note["assigned"] for note in first] == [note["assigned"] for note in last]
    before, lost, back = (note["assigned"] for note in first)
    gone = next(iter(set(before) - set(lost)))
    assert [old == new for old, new in zip(before, lost, strict=True)] == [old != gone for old in before]
    came = next(iter(set(back) - set(lost)))
    assert back.count(came) == TASKS // 3
    assert sum(old != new for old, new in zip(lost, back, strict=True)) == TASKS // 3


def played(drive, tmp_path, play, wait="300s"):
    """What each batch noted; the sums are right in the end."""
    settings = {
        "affinity": True,
        "wait": wait,
        "tasks": TASKS,
        "rows": ROWS,
        "stable": STABLE,
        "play": play,
    }
    code, told = drive("affinity_driver.py", tmp_path, json.dumps(settings | {"play": play}), deadline_s=450)
    assert code == 0, told
    notes = noted(tmp_path)
    with tidegate.connect(f"sqlite://{tmp_path}/store", namespace="flights") as gate:
        with gate.snapshot() as snapshot:
            sums = dict(snapshot.table("sums").scan())
        assert sums == {f"k{n}": {"n": gate.version() * n} for n in range(ROWS)}
    return notes


def kept(notes):
    """Check that each task ran where it was assigned, and that its cache served all where nothing moved."""
    for note in notes:
        assert [executor for executor, _ in note["ran"]] == note["assigned"]
    for note in notes[STABLE - 1 :: STABLE]:
        assert note["reads"] == [ROWS, ROWS]
    return notes


def moved(before, after):
    """How many tasks are at another location."""
    return sum(was != now for (_, was), (_, now) in zip(before["ran"], after["ran"], strict=True))


def test_two_processes_of_one_location_share_its_cache_i1(drive, tmp_path):
    """Of the two tasks of the lost one, one stays at its location, where its cache is."""
    notes = kept(played(drive, tmp_path, "shared"))
    assert {location for note in notes for _, location in note["ran"]} == {"H1", "H3"}
    first = notes[::STABLE]
    assert [moved(before, after) for before, after in itertools.pairwise(first)] == [1, 1]
    for note in first[1:]:
        assert note["reads"][0] >= ROWS * 0.75


def test_a_rolling_restart_moves_each_workers_share_alone_i1(drive, tmp_path):
    """Down, a worker's tasks go to the others; up again, as many come back. The rest stay."""
    notes = kept(played(drive, tmp_path, "rolling"))
    first = notes[::STABLE]
    assert [note["phase"].split()[-1] for note in first] == ["stable", *("down", "up") * 3]
    for before, after in itertools.pairwise(first):
        assert moved(before, after) == TASKS // 3
        assert after["reads"][0] >= ROWS * 0.5


def test_executors_that_spark_ends_and_starts_are_told_as_they_are_i1(drive, tmp_path):
    """Tasks are assigned to executors that are there; the sink tells how many got theirs."""
    notes = played(drive, tmp_path, "dynamic", wait="0s")
    assert [len(note["before"]) for note in notes[::STABLE]] == [3, 1, 3, 1]
    for note in notes:
        if note["assigned"] is None:  # one executor: nothing to choose
            assert note["met"] == [0, 0]
            continue
        assert set(note["assigned"]) <= {*note["before"], *note["executors"]}
        ran = [executor for executor, _ in note["ran"]]
        assert note["met"] == [sum(map(str.__eq__, ran, note["assigned"])), TASKS]
