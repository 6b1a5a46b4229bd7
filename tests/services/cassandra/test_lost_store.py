"""A keyspace whose tables were truncated: the store is rebuilt from the log, and nobody reads the past."""

from __future__ import annotations

import contextlib
import threading
import uuid
from pathlib import Path

import pytest
from cassandra.query import SimpleStatement
from typer.testing import CliRunner

import tidegate
from services.support.cassandra.server import CassandraServer
from support.wait import wait_until
from tidegate.base import failpoints
from tidegate.base.failpoints import FailpointError
from tidegate.cli import app
from tidegate.committers.background.worker import Background
from tidegate.errors import StoreLostError, StoreNotVerifiedError, TidegateError, VersionRegressedError
from tidegate.keys.groups import encode_key
from tidegate.options import Options
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import ReadAt
from tidegate.testing.example import Example

VERSIONS, KEPT = 8, 3
KEYSPACE = "lost_tables"
TABLES = ("namespaces", "pointers", "rows", "notes", "tables", "schemas", "leases")


@pytest.fixture(scope="module")
def url(cassandra: CassandraServer) -> str:
    """A keyspace of this module: it is truncated."""
    where = cassandra.url.rpartition("/")[0] + "/" + KEYSPACE
    with contextlib.closing(open_store(where, "none", {"create": True, "replication": 1})) as store:
        store.prepare()
    return where


class Place:
    """A namespace with ``VERSIONS`` versions in that keyspace."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.wal, self.namespace = url, f"file://{folder}/wal", f"n{uuid.uuid4().hex[:8]}"
        self.options = [f"--store={url}", f"--wal={self.wal}", f"--namespace={self.namespace}"]

    def writer(self) -> Example:
        options = Options(key_groups=4, keep_versions=KEPT)
        return Example(self.wal, self.url, self.namespace, options=options)

    def write(self, example: Example, versions: int) -> None:
        for _ in range(versions):
            number = example.driver.folded.last_version + 1
            airports = {f"A{key}": {"departures": number, "delay": 1.0} for key in range(number % 5 + 1)}
            example.write({"airports": {**airports, "always": {"departures": number, "delay": 2.0}}})

    def answers(self, version: int | None = None) -> dict:
        with tidegate.connect(self.url, self.namespace) as gate, gate.snapshot(version) as snapshot:
            return {"version": snapshot.version, **dict(snapshot.table("airports").scan())}

    def run(self, command: str) -> None:
        done = CliRunner().invoke(app, [command, *self.options], prog_name="tidegate")
        assert done.exit_code == 0, done.output

    def lose(self, *tables: str) -> None:
        with contextlib.closing(open_store(self.url, self.namespace)) as store:
            store.identity()
            for table in tables or TABLES:
                store._space.session.driver.execute(
                    SimpleStatement(f"TRUNCATE {KEYSPACE}.tidegate_{table}"), timeout=60
                )


@pytest.fixture
def place(url, tmp_path) -> Place:
    made = Place(url, tmp_path)
    example = made.writer()
    made.write(example, VERSIONS)
    example.close()
    return made


def test_the_kept_versions_are_back_at_once(place):
    kept = range(VERSIONS - KEPT + 1, VERSIONS + 1)
    before = {version: place.answers(version) for version in kept}
    place.lose()
    place.run("recover")
    example = place.writer()
    entries = example.driver.store.catalog()
    assert example.driver.store.pointer().visible == VERSIONS
    assert [entry.version for entry in entries][-KEPT:] == [*kept]
    assert all(entry.published_at_us > 0 for entry in entries)
    assert {version: place.answers(version) for version in kept} == before
    place.write(example, 1)
    example.close()
    place.run("verify")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["fill.after_begin", "fill.after_group", "seal.after", "publish.before"])
def test_an_interrupted_rebuild_shows_nothing(place, name):
    before = place.answers()
    place.lose()
    failpoints.arm(f"{name}=raise")
    with pytest.raises(FailpointError):
        place.writer()
    failpoints.arm(None)
    with tidegate.connect(place.url, place.namespace) as gate:
        assert gate.version() == 0
        with pytest.raises(StoreNotVerifiedError):
            gate.table("airports").get("always")
    example = place.writer()
    assert place.answers() == before
    example.close()


def test_no_instance_reads_older_rows_during_the_rebuild(place, monkeypatch):
    """Instances that have seen versions, the driver's own too, are refused until the last one is visible."""
    example = place.writer()
    driver, store = example.driver, example.driver.store
    key = [encode_key(("always",), example.schemas["airports"].key_types)]
    reader = open_store(place.url, place.namespace)
    ways = [
        way
        for each in (store, reader)
        for way in (
            lambda each=each: each.get_stored(ReadAt("airports", VERSIONS), key).to_pylist(),
            lambda each=each: [each.get_stored_one(ReadAt("airports", VERSIONS), key[0])],
        )
    ]
    newest = ways[0]()
    assert [way() for way in ways] == [newest] * 4
    with tidegate.connect(place.url, place.namespace) as gate:
        assert gate.version() == VERSIONS
        place.lose()
        background = Background(driver.log, store, driver.options, lambda: driver.epoch)
        half, go_on = threading.Event(), threading.Event()
        begin_now = store.begin

        def begin(*of):  # the base is written, the versions above it are not
            half.set()
            assert go_on.wait(100)
            return begin_now(*of)

        monkeypatch.setattr(store, "begin", begin)
        try:
            assert half.wait(30), "the heartbeat did not notice the loss"
            for way in ways:
                for _ in range(2):
                    with pytest.raises((StoreLostError, StoreNotVerifiedError, VersionRegressedError)):
                        way()
            go_on.set()
            wait_until(lambda: store.pointer().visible == VERSIONS)
            assert [way() for way in ways] == [newest] * 4
            for _ in range(2):
                with contextlib.suppress(StoreLostError):
                    version = gate.version()
            assert version == VERSIONS
            assert gate.table("airports").get("always")["departures"] == VERSIONS
        finally:
            go_on.set()
            background.stop()
    reader.close()
    example.close()


@pytest.mark.parametrize("table", ["namespaces", "pointers"])
def test_recover_rebuilds_a_store_without_pointer_or_name(place, table):
    before = place.answers()
    place.lose(table)
    with pytest.raises(TidegateError, match="no namespace"):
        tidegate.connect(place.url, place.namespace)
    place.run("recover")
    assert place.answers() == before
    place.run("verify")
