"""The format of SQLite's files: its number, and the tables of every file."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

import tidegate
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import ConfigError
from tidegate.options import Options
from tidegate.sinks.sqlite.disk.files import Files
from tidegate.sinks.sqlite.disk.tables import FORMAT, META_FILE, tables_in
from tidegate.testing.example import Example, write_flights


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_flights(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    return tmp_path / "store"


def numbers(store: Path) -> dict[str, int]:
    found = {}
    for path in sorted((store / "flights").glob("*.sqlite")):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            (found[path.name],) = connection.execute("PRAGMA user_version").fetchone()
    return found


def tables(store: Path) -> dict[str, set[str]]:
    found = {}
    for path in sorted((store / "flights").glob("shard-*.sqlite")):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            found[path.name] = set(tables_in(connection))
    return found


def rows(store: Path) -> dict[str, dict]:
    with tidegate.connect(f"sqlite://{store}", "flights") as gate:
        return {table: dict(gate.table(table).scan()) for table in gate.tables()}


def test_each_file_has_the_formats_number(store):
    assert set(numbers(store).values()) == {FORMAT}
    assert len(numbers(store)) == 9


def test_a_visible_version_has_its_tables_in_every_file(tmp_path):
    """Also those without a row: a reader that knows SQL alone gets no error for them."""
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    example.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
    assert all(of_one >= {"t_aircraft"} for of_one in tables(tmp_path / "store").values())
    example.write({"legs": {("EWR", 1): {"dest": "IAH"}}})
    assert all(of_one >= {"t_aircraft", "t_legs"} for of_one in tables(tmp_path / "store").values())
    example.close()


def test_the_tables_are_there_before_the_flip(tmp_path, monkeypatch):
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    example.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
    at = tmp_path / "store" / "flights" / META_FILE
    seen = []
    writing = Files.writing

    @contextlib.contextmanager
    def looked(self, name, *, durable):
        with writing(self, name, durable=durable) as connection:
            yield connection
            with contextlib.closing(sqlite3.connect(f"file:{at}?mode=ro", uri=True)) as meta:
                (visible,) = meta.execute("SELECT visible FROM pointer").fetchone()
            whole = all("t_legs" in of_one for of_one in tables(tmp_path / "store").values())
            seen.append((visible, name == META_FILE and whole))

    monkeypatch.setattr(Files, "writing", looked)
    example.write({"legs": {("EWR", 1): {"dest": "IAH"}}})
    assert (1, True) in seen, "all are there before version 2 is visible"
    example.close()


def test_a_table_that_was_made_again_stays_in_every_file(tmp_path):
    """The retirement of the version that dropped it removes empty tables of that name, unless it is back."""
    options = Options(key_groups=8, keep_versions=1)
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", options=options)
    one = {"aircraft": {"N1": {"carrier": "UA", "flights": 1}}}
    legs = {"legs": {("EWR", 1): {"dest": "IAH"}}}
    example.write({**one, **legs})
    example.write(one, drops=frozenset({"legs"}))
    example.write(legs)
    driver = example.driver
    retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False, 0)
    assert driver.store.pointer().horizon == 3
    assert all("t_legs" in of_one for of_one in tables(tmp_path / "store").values())
    example.close()


@pytest.mark.parametrize("name", [META_FILE, "shard-03.sqlite"])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_file_of_another_format_is_refused(store, name, number):
    with contextlib.closing(sqlite3.connect(store / "flights" / name)) as connection:
        connection.execute(f"PRAGMA user_version = {number}")
    refused = rf"{name}: it has storage format {number or 1}, .*use the release that wrote it"
    with pytest.raises(ConfigError, match=refused):
        rows(store)


def test_an_identity_of_another_format_is_refused(store):
    with contextlib.closing(sqlite3.connect(store / "flights" / META_FILE)) as connection, connection:
        (identity,) = connection.execute("SELECT identity FROM namespace").fetchone()
        changed = json.dumps({**json.loads(identity), "format": 3})
        connection.execute("UPDATE namespace SET identity = ?", (changed,))
    with pytest.raises(ConfigError, match=r"storage format 3, this release reads and writes format 2: use"):
        rows(store)
