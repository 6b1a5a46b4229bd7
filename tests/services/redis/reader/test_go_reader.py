"""The reader in Go, readers/go, beside the one in Python on the same data.

``tidegate conformance`` has most checks: its program is run on Redis here, on a Cluster and on Cassandra where it is slow.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator

import pytest

from services.support.go import built, go_program
from services.support.servers import ROOT
from tidegate.testing.conformance.program import Reader, ReaderRaisedError
from tidegate.testing.example import BATCHES, Example, write_flights

FOLDER = ROOT / "readers" / "go"
BUILD_S, RUN_S = 400, 60

pytestmark = [pytest.mark.xdist_group("go"), pytest.mark.timeout(BUILD_S + 100)]  # built once, by the first test


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> str:
    return str(built(FOLDER, "./cmd/conformance", tmp_path_factory.mktemp("go")))


@pytest.fixture
def reader(program, tmp_path) -> Iterator[Reader]:
    with Reader(program, tmp_path / "errors") as started:
        yield started
