"""A broker that the tests do not start themselves: one that is there, or docker-compose.yml's."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from services.support.servers import ROOT

COMPOSE_KAFKA = "127.0.0.1:9092"


@dataclasses.dataclass(frozen=True)
class ForeignKafka:
    """Nothing is known of it but its address, and others may use it too."""

    bootstrap: str

    def data_folder(self, n: int) -> Path:
        pytest.skip("the files of a broker that others run are out of reach")


def container_engine_runs() -> bool:
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def foreign_kafka() -> ForeignKafka | None:
    """TIDEGATE_TEST_KAFKA's broker, else a container's, else None."""
    given = os.environ.get("TIDEGATE_TEST_KAFKA")
    if given:
        return ForeignKafka(given)
    if not container_engine_runs():
        return None
    # It is left running, as after the same command by hand: other workers and the next run use it.
    subprocess.run(["docker", "compose", "up", "-d", "--wait", "kafka"], cwd=ROOT, check=True)
    return ForeignKafka(COMPOSE_KAFKA)
