"""SIGKILL to a driver in a function, and to an executor whose output was read in part (I1, I2; T2, T6)."""

from __future__ import annotations

import json
import os
import signal

import pytest

import tidegate

pytestmark = [pytest.mark.spark, pytest.mark.only_log("file"), pytest.mark.timeout(400)]

BATCHES = [[{"k": f"k{n}", "n": batch * n} for n in range(batch, 60)] for batch in range(1, 4)]


def expected(version):
    sums = {}
    for batch in BATCHES[:version]:
        for row in batch:
            sums[row["k"]] = {"n": sums.get(row["k"], {"n": 0})["n"] + row["n"]}
    return {"sums": sums, "seen": {f"seen {key}": value for key, value in sums.items()}}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "input").mkdir()
    for at, rows in enumerate(BATCHES):
        path = tmp_path / "input" / f"{at}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_600_000_000 + 100 * at,) * 2)
    return tmp_path


def check(folder, visible):
    with tidegate.connect(f"sqlite://{folder}/store", namespace="flights") as gate:
        assert gate.version() == visible
        for version in range(1, visible + 1):
            with gate.snapshot(version=version) as snapshot:
                found = {name: dict(snapshot.table(name).scan()) for name in ("sums", "seen")}
            assert found == expected(version), version


def words(folder, log_at, master, place):
    return json.dumps(log_at(folder).keywords), master, place


@pytest.mark.slow
def test_a_driver_killed_from_inside_a_function_starts_again_with_the_same_result_i1_i2(
    folder, log_at, drive
):
    given = words(folder, log_at, "local[2]", "function")
    code, told = drive("update_driver.py", folder, *given)
    assert code == -signal.SIGKILL, told
    assert (folder / "killed").exists()
    check(folder, visible=1)
    code, told = drive("update_driver.py", folder, *given)
    assert code == 0, told
    check(folder, visible=3)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["executor", "chance"])
def test_an_executor_lost_after_its_output_was_read_in_part_i1_i2_t6(folder, log_at, drive, place):
    """Spark runs its function again, for the tasks that still need it. A function that gives the same
    is neither lost nor doubled; of one that does not, no version mixes two runs.
    """
    code, told = drive("update_driver.py", folder, *words(folder, log_at, "local-cluster[2,1,512]", place))
    assert (folder / "killed").exists(), told
    if place == "executor":
        assert code == 0, told
        check(folder, visible=3)
        return
    assert code == 1, told
    whole = (folder / "driver.log").read_text()
    assert "FunctionError: Spark ran a function again, in the first stage's tasks ['0/" in whole, told
    with tidegate.connect(f"sqlite://{folder}/store", namespace="flights") as gate:
        assert gate.version() == 1
