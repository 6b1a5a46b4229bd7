"""The README's first example does what it says, pasted as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.only_log("file")]

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_twenty_lines_run(tmp_path):
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    assert len(code.splitlines()) <= 20
    program = tmp_path / "pasted.py"
    # Its own wait is kept: a fixed one was too short for the first batch on a slow machine.
    program.write_text(code.replace("/tmp/tide", str(tmp_path / "tide")))
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"},
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    version, value, count = re.fullmatch(
        r"(\d+) (\{.*\}) (\d+)", done.stdout.strip().splitlines()[-1]
    ).groups()
    assert int(version) >= 1
    assert "'value': " in value
    assert count == "10"
