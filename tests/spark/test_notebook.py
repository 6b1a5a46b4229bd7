"""The notebook does what it says: its cells, in order, in one process, as a kernel would run them."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.demo.data import DAYS, expected_by_version

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.only_log("file"), pytest.mark.timeout(960)]

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebooks" / "quickstart.ipynb"
AS_A_KERNEL = """
import json, sys
names = {"__name__": "__main__"}
for code in json.load(sys.stdin):
    exec(compile(code, "cell", "exec"), names)
told = {name: names[name] for name in ("newark", "changed", "counts")}
told["tables"] = [sum(row["departures"] for row in table.values()) for table in names["tables"]]
told["moved"], told["last"] = names["moved"].columns, names["sink"].last_commit.version
print(json.dumps(told))
"""


def test_the_cells_run_and_tell_what_the_days_hold(tmp_path):
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    done = subprocess.run(
        [sys.executable, "-c", AS_A_KERNEL],
        input=json.dumps(["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]),
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told["last"] == 7
    by_day = list(itertools.islice(expected_by_version(DAYS), 7))
    seventh, third = by_day[6], by_day[2]
    assert [row["departures"] for row in told["newark"]] == [seventh.airports["EWR"], third.airports["EWR"]]
    assert told["tables"] == [seventh.departures, third.departures]
    assert told["counts"] == [len(seventh.aircraft), len(third.aircraft)]
    assert sorted(told["changed"]) == ["EWR", "JFK", "LGA"]
    assert told["moved"] == ["tailnum", "on_day_3", "on_day_7"]
