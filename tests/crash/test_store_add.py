"""SIGKILL to `tidegate store add` at each step: readers of the new store see nothing, then all of it."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys

import pytest

from tidegate.base import failpoints
from tidegate.sinks.open_store import open_store
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
        self.meta = folder / "main" / "flights" / "meta.sqlite"
        write_flights(self.wal, self.main)

    def add(self, armed=""):
        with contextlib.closing(sqlite3.connect(self.meta)) as connection:  # as if no writer ran
            connection.execute("UPDATE pointer SET heartbeat_us = NULL")
            connection.commit()
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
        with contextlib.closing(open_store(url, "flights")) as store:
            if store.identity() is None or not (visible := store.pointer().visible):
                return None
            (entry,) = store.catalog(visible, visible)
            return visible, {
                (table, key): value
                for table, at in entry.tables.items()
                for group in range(KEY_GROUPS)
                for rows in store.scan(table, group, visible, at.start)
                for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
            }


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
