"""The notebook shows what it would show again: its cells run in order in one process, as in a kernel."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.demo.data import DAYS, expected_by_version

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.only_log("file"), pytest.mark.timeout(960)]

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebooks" / "quickstart.ipynb"
PROGRAM = Path(__file__).parents[2] / "tools" / "notebook.py"
KINDS = ("text", "text/plain", "text/html", "image/svg+xml")
VARIES = re.compile(r"20\d\d-\d\d-\d\d[T ][\d:.]+(?:\+00:00|Z)|\d+\.\d+|\d+ versions a minute| {2,}")


def shown(notebook):
    """What each cell shows, without times."""
    cells = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [
        [
            {
                kind: VARIES.sub("*", "".join(text))
                for kind, text in each.get("data", each).items()
                if kind in KINDS
            }
            for each in outputs
        ]
        for outputs in cells
    ]


def test_the_cells_run_and_show_what_is_stored(tmp_path):
    """``tools/notebook.py FILE`` stores it again."""
    done = subprocess.run(
        [sys.executable, PROGRAM, NOTEBOOK, "--print"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert shown(json.loads(done.stdout)) == shown(json.loads(NOTEBOOK.read_text()))


def test_the_stored_numbers_are_those_of_the_days():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    texts = {
        "".join(cell["source"]).splitlines()[-1]: ast.literal_eval("".join(output["data"]["text/plain"]))
        for cell in cells
        for output in cell.get("outputs", ())
        if output["output_type"] == "execute_result" and "".join(output["data"]["text/plain"])[0] in "({"
    }
    by_day = list(itertools.islice(expected_by_version(DAYS), 7))
    third, sixth, seventh = by_day[2], by_day[5], by_day[6]
    assert [row["departures"] for row in texts["newark"]] == [seventh.airports["EWR"], third.airports["EWR"]]
    assert texts["counts"] == (len(seventh.aircraft), len(third.aircraft))
    changed = {key: tuple(row["departures"] for row in rows) for key, rows in texts["changed"].items()}
    assert changed == {key: (sixth.airports[key], seventh.airports[key]) for key in ("EWR", "JFK", "LGA")}
