"""A project that `tidegate new` wrote: its own tests, as its README runs them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.cli import done

pytestmark = [pytest.mark.spark, pytest.mark.only_log("file")]


# Three processes, two of them with a JVM of their own: half a minute on a quiet machine.
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tests_of_a_new_project_pass(tmp_path):
    done("new", tmp_path / "orders")
    # As a user's shell has it: a program's own folder is on the path.
    ours = ("PYTHONSAFEPATH", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:valkey", "-p", "no:cacheprovider"],
        cwd=tmp_path / "orders", env={**environment, "PYSPARK_PYTHON": sys.executable},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 passed" in result.stdout
