"""Prometheus' programs on this machine, for tests of the alerts: those of PATH, or of `make setup`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNPACKED = ROOT / ".services" / "prometheus" / "usr" / "bin"


def prometheus_program(name: str) -> str:
    """The path of ``prometheus`` or ``promtool``. The test is skipped where there is none."""
    folders = [os.environ.get("TIDEGATE_PROMETHEUS", ""), os.environ["PATH"], str(UNPACKED)]
    program = shutil.which(name, path=os.pathsep.join(filter(None, folders)))
    if program is None:
        pytest.skip(
            f"{name} was not found: install Debian's prometheus, or name its folder in TIDEGATE_PROMETHEUS"
        )
    return program
