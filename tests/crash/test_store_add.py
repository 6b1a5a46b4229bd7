"""SIGKILL to `tidegate store add` at each step: readers of the new store see nothing, then all of it."""

import os
import signal
import subprocess
import sys

import pytest

from support.places import silence_writer, stored_rows
from tidegate.base import failpoints
from tidegate.testing.example import write_flights

DEADLINE_S = 120.0
KEY_GROUPS = 8
NAMES = (
    "open.before_append",
    "open.after_append",
    "open.after_claim",
    "follow.after_claim",
    "fill.after_begin",
    "fill.after_group",
    "publish.before",
    "publish.after",
)


class Place:
    def __init__(self, folder):
        self.wal, self.main, self.copy = (
            f"file://{folder}/wal",
            f"sqlite://{folder}/main",
            f"sqlite://{folder}/copy",
        )
        self.folder = folder
        write_flights(self.wal, self.main)

    def add(self, armed=""):
        silence_writer(self.folder / "main")
        command = [sys.executable, "-c", "from tidegate.cli import main; main()", "store", "add"]
        command += [
            f"copy={self.copy}",
            f"--store=main={self.main}",
            f"--wal={self.wal}",
            "--namespace=flights",
        ]
        environment = {**os.environ, failpoints.ENVIRONMENT_VARIABLE: armed}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )

    def content(self, url):
        """What a reader finds: the visible version and every row at it; None before there is one."""
        return stored_rows(url, key_groups=KEY_GROUPS)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", NAMES)
def test_an_addition_killed_anywhere_is_repeated(tmp_path, name):
    place = Place(tmp_path)
    killed = place.add(f"{name}=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    whole = place.content(place.main)
    assert place.content(place.copy) in (None, whole)
    again = place.add()
    assert again.returncode == 0, again.stderr
    assert place.content(place.copy) == whole == place.content(place.main)
