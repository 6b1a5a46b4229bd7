"""Derived tables of a Spark query that is killed in each step, with tasks that run again (I1, I2, I4).

On each pair of a log and a store. A reader recounts each version that it sees. At the end all versions are
recounted, also that of a restore.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import uuid

import pytest
from derived_driver import recount, write_input

import tidegate
from support.cli import run
from support.spark_processes import DriverProcesses
from support.wait import wait_until
from tidegate.errors import ConfigError, StoreUnavailableError

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1_500)]

DEADLINE_S = 600.0
PAUSE_S = 0.05
BATCHES = 9


def differs(snapshot):
    """What a version has and should have, where they are not equal."""
    tables = {name: dict(snapshot.table(name).scan()) for name in snapshot.tables()}
    expected = recount(tables["orders"], tables["visits"])
    found = {name: tables[name] for name in expected}
    return None if found == expected else (snapshot.version, found, expected)


class Reader(threading.Thread):
    """Recounts the newest version, again and again."""

    def __init__(self, store: str, namespace: str) -> None:
        super().__init__(name="reader", daemon=True)
        self._place = (store, namespace)
        self._ending = threading.Event()
        self.versions: list[int] = []
        self.wrong: list[object] = []

    def run(self) -> None:
        while not self._ending.wait(PAUSE_S):
            try:
                self._read()
            except Exception as error:  # noqa: BLE001 - the test shows it
                if self.versions or not isinstance(error, (ConfigError, StoreUnavailableError)):
                    self.wrong.append(error)
                    return

    def _read(self) -> None:
        store, namespace = self._place
        with tidegate.connect(store, namespace=namespace) as gate:
            while not self._ending.wait(PAUSE_S):
                if not gate.version():
                    continue
                with gate.snapshot() as snapshot:
                    self.wrong += [each for each in [differs(snapshot)] if each]
                self.versions.append(snapshot.version)

    def end(self) -> None:
        self._ending.set()
        self.join(DEADLINE_S)


def checked(options, first, last):
    with tidegate.connect(options["store"], namespace=options["namespace"]) as gate:
        assert gate.version() == last
        for version in range(first, last + 1):
            with gate.snapshot(version=version) as snapshot:
                assert differs(snapshot) is None


@pytest.mark.parametrize(
    "place",
    [
        "on_files",
        "on_kafka_and_redis",
        pytest.param("on_kafka_and_cassandra", marks=pytest.mark.xdist_group("cassandra")),
    ],
)
def test_derived_tables_of_a_query_that_is_killed_in_each_step_i1_i2_i4(place, request, tmp_path):
    given = request.getfixturevalue(place)
    options = {**given, "namespace": f"n{uuid.uuid4().hex}", "key_groups": 64, "keep_versions": 40}
    at = ["--namespace", options["namespace"], "--store", options["store"], "--wal", options["wal"]]
    unsafe = ["--allow-unsafe"] * ("allow_unsafe" in given)
    write_input(tmp_path)
    reader = Reader(options["store"], options["namespace"])
    with contextlib.closing(DriverProcesses()) as drivers:

        def drive(step, commit, armed=""):
            words = json.dumps({**options, "commit": commit}), step
            return drivers.run("derived_driver.py", tmp_path, *words, armed=armed, deadline_s=DEADLINE_S)

        reader.start()
        try:
            steps = [
                ("stage", "sync", ""),
                ("derive", "pipelined", ""),
                ("again", "pipelined", "apply.after_chunk=kill@7"),
            ]
            for step in steps:
                code, output = drive(*step)
                assert code == -signal.SIGKILL, (step, output)
            recovered = run("recover", "--force", *at, *unsafe)
            assert recovered.exit_code == 0, recovered.output
            code, output = drive("again", "sync")
            assert code == 0, output
            last = [BATCHES]
            wait_until(lambda: reader.versions[-1:] == last or reader.wrong, "the last version is read", 60)
        finally:
            reader.end()
    assert reader.wrong == []
    assert reader.versions == sorted(reader.versions)
    checked(options, 1, BATCHES)
    verified = run("verify", *at)
    assert (verified.exit_code, verified.stdout.startswith("nothing wrong")) == (0, True), verified.output
    told = run("restore", "--to", "3", "--yes", "--force", *at, *unsafe)
    assert told.exit_code == 0, told.output
    checked(options, 1, BATCHES + 1)
