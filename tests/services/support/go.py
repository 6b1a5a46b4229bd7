"""Programs in Go, built from this repository for tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NO_GO = """Go builds the reader for its test and was not found.
  Debian, Ubuntu:  sudo apt-get update && sudo apt-get install -y golang-go"""
BUILD_S = 400


def go_program() -> str:
    """Return the path of Go; without it the test fails."""
    go = shutil.which("go")
    if go is None:
        pytest.fail(NO_GO)
    return go


def built(module: Path, package: str, folder: Path) -> Path:
    """Build a package of a module into a folder; return the program."""
    program = folder / Path(package).name
    build = [go_program(), "build", "-o", str(program), package]
    done = subprocess.run(build, cwd=module, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stderr
    return program
