"""Files of SQLite that somebody changed: errors that name the place, never a traceback."""

from __future__ import annotations

import contextlib
import os
import sqlite3

import pytest
from typer.testing import CliRunner

import tidegate
from tampering import stores
from tidegate.cli import app
from tidegate.committers.operations.verify import verify
from tidegate.errors import ConfigError, CorruptError
from tidegate.options import Options
from tidegate.options.endpoints import parse_store
from tidegate.sinks.open_store import open_store
from tidegate.testing.example import BATCHES, Example
from tidegate.ui.facts import Facts
from tidegate.wal.fold import recent_version
from tidegate.wal.open_log import open_log

CASES = int(os.environ.get("TIDEGATE_TAMPER", "150"))
"""So many changes at random; for longer: python -m tampering.stores."""


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return stores.SqliteCases(tmp_path_factory.mktemp("tampered"))


@pytest.mark.parametrize("part", range(3))
def test_a_store_with_any_value_changed_gives_what_was_there_or_says_where(cases, part):
    told = []
    assert stores.run(cases, CASES // 3, 1 + part * (CASES // 3), told.append) == 0, told


@pytest.fixture
def store(tmp_path):
    """Three versions in one file of rows; what changes one of its values."""
    url = f"sqlite://{tmp_path}/store"
    example = Example(f"file://{tmp_path}/wal", url, options=Options(key_groups=1))
    for rows in BATCHES:
        example.write(rows)
    example.close()

    def change(file, sql, *values):
        path = tmp_path / "store" / "flights" / file
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            assert connection.execute(sql, values).rowcount
        return url

    return change


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
META_TABLES = ("namespace", "pointer", "leases", "catalog", "schemas", "durable")
SHARD_TABLES = ("shard", "floors", "applied", "sealed", "durable", "t_aircraft")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "file, sql",
    [
        *(
            ("meta.sqlite", f"ALTER TABLE {name} RENAME TO o; CREATE VIEW {name} AS {ENDLESS}")
            for name in META_TABLES
        ),
        *(
            ("shard-00.sqlite", f"ALTER TABLE {name} RENAME TO o; CREATE VIEW {name} AS {ENDLESS}")
            for name in SHARD_TABLES
        ),
        (
            "meta.sqlite",
            f"CREATE TRIGGER t BEFORE INSERT ON leases BEGIN SELECT count(*) FROM ({ENDLESS}); END",
        ),
        (
            "meta.sqlite",
            f"CREATE TRIGGER t BEFORE DELETE ON pointer BEGIN SELECT count(*) FROM ({ENDLESS}); END",
        ),
    ],
)
def test_no_sql_of_a_file_runs_when_it_is_read_listed_or_dropped(tmp_path, file, sql):
    """A view or a trigger of somebody else may never end, and Python cannot interrupt it."""
    url = f"sqlite://{tmp_path}/store"
    with contextlib.closing(Example(f"file://{tmp_path}/wal", url, options=Options(key_groups=1))) as example:
        example.write(BATCHES[0])
    with contextlib.closing(sqlite3.connect(tmp_path / "store" / "flights" / file)) as connection:
        connection.executescript(sql)
    with (
        pytest.raises(CorruptError, match=r"has a (view|trigger) '\w+', which tidegate does not make"),
        tidegate.connect(url, "flights", {"timeout_s": 3}) as gate,
        gate.snapshot() as snapshot,
    ):
        snapshot.table("aircraft").get("N1")
    CliRunner().invoke(app, ["namespaces", "--store", url])
    with contextlib.closing(open_store(url, "flights")) as store:
        assert store.drop()


@pytest.mark.parametrize("file", ["meta.sqlite", "shard-00.sqlite"])
def test_a_schema_whose_bytes_are_no_text_is_told_with_its_file(store, tmp_path, file):
    """SQLite quotes the statement that it cannot read, and Python cannot decode what it says."""
    url = store(file, "PRAGMA user_version = 0")
    path = tmp_path / "store" / "flights" / file
    content = path.read_bytes()
    at = content.index(b"CREATE TABLE ") + len(b"CREATE T")
    path.write_bytes(content[:at] + b"\xe5" + content[at + 1 :])
    with pytest.raises(CorruptError, match=f"{file} is damaged: its schema is not readable"):
        scan(url)


def scan(url, table="airports"):
    with tidegate.connect(url, "flights") as gate, gate.snapshot() as snapshot:
        return dict(snapshot.table(table).scan())


AIRPORTS = "t_airports"
VALUES = {
    "whole number": (5, "a value of type int is stored where bytes have to be"),
    "text": ("+{}", "a value of type str is stored where bytes have to be"),
    "flags": (b"\xff\xffjunk", r"table airports, key b'EWR': a stored value of 6 bytes starts with b'\\xff"),
    "empty": (b"", "table airports, key b'EWR': a stored value of 0 bytes starts with b''"),
    "expiry": (b"e\0", "table airports, key b'EWR': a stored value of 2 bytes starts with b'e"),
    "no JSON": (b"+{", "table airports, key b'EWR': the stored value of 1 bytes does not fit"),
}


@pytest.mark.parametrize("which", VALUES)
def test_a_value_that_is_none_is_told_with_its_place(store, which):
    value, why = VALUES[which]
    url = store("shard-00.sqlite", f"UPDATE {AIRPORTS} SET value = ? WHERE key = ?", value, b"EWR")
    for read in (scan, lambda url: tidegate.connect(url, "flights").table("airports").get("EWR")):
        with pytest.raises(CorruptError, match=why) as caught:
            read(url)
        assert "namespace flights" in str(caught.value)


def test_a_key_that_is_none_is_told_with_its_place_and_not_in_full_length(store):
    key = b"6:" + b"9" * 5_000
    url = store("shard-00.sqlite", "UPDATE t_legs SET key = CAST(? || version || hex(key) AS BLOB)", key)
    with pytest.raises(CorruptError, match=r"namespace flights, table legs: b'6:9+'") as caught:
        scan(url, "legs")
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("key", [7, -1.5, "EWR"])
def test_a_key_of_another_type_is_told_though_sqlite_sorts_it_before_all_bytes(store, key):
    url = store("shard-00.sqlite", f"UPDATE {AIRPORTS} SET key = ? WHERE key = ?", key, b"EWR")
    with pytest.raises(CorruptError, match=r"shard-00\.sqlite, table airports: .* is stored where bytes"):
        scan(url)


@pytest.mark.parametrize("column", ["visible", "epoch", "horizon", "heartbeat_us", "digest", "writer"])
def test_a_pointer_that_is_none_is_told_with_its_place(store, column):
    value = b"x" if column in ("digest", "writer") else "x"
    url = store("meta.sqlite", f"UPDATE pointer SET {column} = ?", value)
    with pytest.raises(CorruptError, match=r"namespace flights: .*meta\.sqlite: the pointer is \("):
        tidegate.connect(url, "flights").version()


def test_a_schema_that_is_nested_without_end_is_told_with_its_place(store):
    nested = "array<" * 300 + "int" + ">" * 300
    url = store("meta.sqlite", "UPDATE schemas SET schema = replace(schema, 'bigint', ?)", nested)
    with pytest.raises(ConfigError, match=r"flights, table airports, schema .* nested more than 100"):
        scan(url)


@pytest.mark.parametrize("groups", [0, -1, 10**12])
def test_key_groups_that_cannot_be_are_told_and_no_table_looks_empty(store, groups):
    url = store(
        "meta.sqlite", "UPDATE namespace SET identity = json_set(identity, '$.key_groups', ?)", groups
    )
    with pytest.raises(CorruptError, match="a stored Identity cannot be read"):
        scan(url)


@pytest.mark.parametrize("words", [["status"], ["export", "{new}"], ["restore", "--to", "2", "--yes"]])
def test_a_schema_that_is_missing_is_told_with_its_place(store, tmp_path, words):
    store("meta.sqlite", "DELETE FROM schemas")
    words = [word.format(new=tmp_path / "new") for word in words]
    words += ["--wal", f"file://{tmp_path}/wal"] * (words[0] != "export")
    done = CliRunner().invoke(app, [*words, "--store", f"sqlite://{tmp_path}/store", "--namespace=flights"])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code
    assert "missing" in done.output


def test_a_schema_that_is_missing_is_told_on_the_page(store, tmp_path):
    url = store("meta.sqlite", "DELETE FROM schemas")
    facts = Facts("flights", (parse_store(url),), f"file://{tmp_path}/wal")
    with pytest.raises(CorruptError, match="of table aircraft at version 3 is missing"):
        facts.lookups.key("aircraft", ["N14228"])


OBJECTS = [b"+5", b"+[]", b"+null", b'+{"departures":1,"delay":{}}', b'+{"departures":1,"delay":true}']
OBJECTS += [b'+{"departures":1,"delay":"12.5"}', b"+{"]


@pytest.mark.parametrize("value", OBJECTS)
def test_a_value_that_is_none_of_its_columns_is_none_for_spark_either(store, value, monkeypatch):
    monkeypatch.setattr(stores, "KEY_GROUPS", 1)
    url = store("shard-00.sqlite", f"UPDATE {AIRPORTS} SET value = ? WHERE key = ?", value, b"EWR")
    with pytest.raises(CorruptError, match="key b'EWR'"):
        scan(url)
    with pytest.raises(CorruptError, match="table airports, key b'EWR'"):
        stores._as_spark(url, {})


def test_a_schema_without_a_key_is_told_with_its_place(store):
    """A get of such a table was a mistake of the caller's."""
    url = store("meta.sqlite", "UPDATE schemas SET schema = json_set(schema, '$.key', json('[]'))")
    with tidegate.connect(url, "flights") as gate, pytest.raises(CorruptError, match="has no key column"):
        gate.table("legs").get(("EWR", 1545))


def test_an_entry_that_is_no_text_is_told_with_its_place(store):
    url = store("meta.sqlite", "UPDATE catalog SET entry = 5")
    with pytest.raises(CorruptError, match=r"meta\.sqlite: a stored CatalogEntry cannot be read"):
        scan(url)


@pytest.mark.parametrize("column", ["visible", "horizon"])
def test_verify_looks_for_no_version_above_the_logs_last_one(store, tmp_path, column, monkeypatch):
    """A pointer may name any version: verify looked for each one up to it, for years."""
    asked = []

    def counted(state, version):
        asked.append(version)
        assert len(asked) < 1_000, "it looks for all of them"
        return recent_version(state, version)

    monkeypatch.setattr("tidegate.committers.operations.verify.recent_version", counted)
    url = store("meta.sqlite", f"UPDATE pointer SET {column} = ?", 2**53)
    with contextlib.closing(open_store(url, "flights")) as opened:
        found = verify(open_log(f"file://{tmp_path}/wal", "flights"), opened).findings
    assert any("pointer" in finding.where for finding in found)


@pytest.mark.parametrize("field", ["decided_at_us", "version"])
def test_a_number_of_the_catalog_that_no_release_writes_is_told_with_its_file(store, field):
    """A time beyond any calendar was an OverflowError."""
    url = store(
        "meta.sqlite", f"UPDATE catalog SET entry = json_set(entry, '$.{field}', 9999999999999999999)"
    )
    with tidegate.connect(url, "flights") as gate, pytest.raises(CorruptError, match=r"meta\.sqlite"):
        gate.history()


def test_a_version_that_is_no_number_is_found_by_verify(store, tmp_path):
    """Readers ask for versions up to theirs, and SQLite sorts texts behind all numbers: the row is absent."""
    store("shard-00.sqlite", f"UPDATE {AIRPORTS} SET version = 'abc' WHERE version = 3")
    words = ["verify", f"--store=sqlite://{tmp_path}/store", f"--wal=file://{tmp_path}/wal"]
    done = CliRunner().invoke(app, [*words, "--namespace=flights"])
    assert done.exit_code == CorruptError.exit_code, done.output
    assert "table airports" in done.output
