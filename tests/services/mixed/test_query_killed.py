"""A Spark query is killed with a version half applied, and started again, while a reader reads (I1, I2, I4).

On each pair of a log and a store: files and SQLite, Kafka and Redis, Kafka and Cassandra.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import uuid

import pytest
from killed_driver import BATCHES, expected, write_input

import tidegate
from support.spark_processes import DriverProcesses
from support.wait import wait_until
from tidegate.errors import ConfigError, StoreUnavailableError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]

TABLES = ("newest", "sums")
KILLED_AT = "apply.after_chunk=kill@3"
"""A version has a frame of each of two tasks: version 2 is decided, and half of it is in the store."""
DEADLINE_S = 600.0
PAUSE_S = 0.02


class Reader(threading.Thread):
    """Compares the two tables at the newest version with what that version has to hold, again and again."""

    def __init__(self, store: str, namespace: str) -> None:
        super().__init__(name="reader", daemon=True)
        self._place = (store, namespace)
        self._ending = threading.Event()
        self.versions: list[int] = []
        self.wrong: list[object] = []

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                self._read()
            except Exception as error:  # noqa: BLE001 - the test shows it
                if self.versions or not isinstance(error, (ConfigError, StoreUnavailableError)):
                    self.wrong.append(error)
                    return
                self._ending.wait(PAUSE_S)  # the writer has not made the namespace yet

    def _read(self) -> None:
        store, namespace = self._place
        with tidegate.connect(store, namespace=namespace) as gate:
            while not self._ending.wait(PAUSE_S):
                if not gate.version():
                    continue
                with gate.snapshot() as snapshot:
                    content = {name: dict(snapshot.table(name).scan()) for name in TABLES}
                self.versions.append(snapshot.version)
                if content != expected(snapshot.version):
                    self.wrong.append((snapshot.version, content))

    def end(self) -> None:
        self._ending.set()
        self.join(DEADLINE_S)


@pytest.mark.parametrize(
    "place",
    [
        "on_files",
        "on_kafka_and_redis",
        pytest.param("on_kafka_and_cassandra", marks=pytest.mark.xdist_group("cassandra")),
    ],
)
def test_a_query_that_is_killed_and_started_again_shows_whole_versions_alone_i1_i2_i4(
    place, request, tmp_path
):
    options = {
        **request.getfixturevalue(place),
        "namespace": f"n{uuid.uuid4().hex}",
        "key_groups": 64,
        "keep_versions": 10,
    }
    write_input(tmp_path)
    reader = Reader(options["store"], options["namespace"])
    with contextlib.closing(DriverProcesses()) as drivers:

        def run(armed=""):
            words = (json.dumps(options), "local[2]", "none")
            return drivers.run("killed_driver.py", tmp_path, *words, armed=armed, deadline_s=DEADLINE_S)

        reader.start()
        try:
            code, output = run(armed=KILLED_AT)
            assert code == -signal.SIGKILL, output
            count = len(reader.versions)
            wait_until(
                lambda: len(reader.versions) > count or reader.wrong, "a read after the kill", DEADLINE_S
            )
            code, output = run()
            assert code == 0, output
            wait_until(lambda: reader.versions[-1:] == [4] or reader.wrong, "version 4 is read", DEADLINE_S)
        finally:
            reader.end()
    assert reader.wrong == []
    assert {1, 4} <= set(reader.versions), "read at rest: the version before the kill, and the last one"
    assert reader.versions == sorted(reader.versions)
    called = [int(line) for line in (tmp_path / "calls").read_text().split()]
    assert called == [0, 1, 2, 3], "a decided batch is not run again"
    with tidegate.connect(options["store"], namespace=options["namespace"]) as gate:
        for version in range(1, len(BATCHES) + 1):
            with gate.snapshot(version=version) as snapshot:
                content = {name: dict(snapshot.table(name).scan()) for name in TABLES}
            assert content == expected(version), version
