"""A table's columns or its state version change: what readers, commands, copies and feeds find."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import tidegate
from support.cli import done, done_json, options_for, refused, run
from support.places import rows_by_table
from tidegate.committers.operations.verify import verify
from tidegate.committers.rename_column import rename_column
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import ConfigError, CorruptError
from tidegate.options import Options
from tidegate.sinks.open_store import open_store
from tidegate.spark.source.change_feed import CHANGE_TYPE, VERSION, Feed, FeedPlanner, encode_works
from tidegate.spark.source.leased_table import lease_table
from tidegate.spark.source.options import SourceOptions
from tidegate.testing.example import Example
from tidegate.values.evolve import renamed
from tidegate.values.state_versions import next_state
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Column, TableSchema

KEY = (Column("k", "string"),)
NARROW = TableSchema(KEY, (Column("a", "int"), Column("s", "struct<x:int>")))
WIDE = TableSchema(KEY, (Column("a", "bigint"), Column("s", "struct<x:int,y:double>"), Column("n", "date")))
RENAMED = renamed("t", WIDE, "a", "b")
BIG = 2**40
CONTENTS = {
    1: {"k1": {"a": 1, "s": {"x": 1}}, "k2": {"a": 2, "s": None}},
    2: {
        "k1": {"a": 1, "s": {"x": 1, "y": None}, "n": None},
        "k2": {"a": BIG, "s": {"x": 2, "y": 0.5}, "n": None},
    },
    3: {
        "k1": {"b": 1, "s": {"x": 1, "y": None}, "n": None},
        "k2": {"b": BIG, "s": {"x": 2, "y": 0.5}, "n": None},
    },
    4: {
        "k1": {"b": 1, "s": {"x": 1, "y": None}, "n": None},
        "k2": {"b": BIG, "s": {"x": 2, "y": 0.5}, "n": None},
        "k3": {"b": 3, "s": None, "n": None},
    },
}


FIRST = TableSchema(KEY, (Column("n", "int"),))
SECOND = next_state("t", FIRST, TableSchema(KEY, (Column("n", "string"),), state_version=2))
STATES = {
    1: {"k1": {"n": 1}, "k2": {"n": 2}},
    2: {"k1": {"n": 1}, "k2": {"n": "two"}},
    3: {"k1": {"n": 1}, "k2": {"n": "two"}, "k3": {"n": "three"}},
}


class Place:
    """A namespace in files."""

    def __init__(self, folder):
        self.folder = folder
        self.wal, self.store = f"file://{folder}/wal", f"sqlite://{folder}/store"
        self.options = options_for(folder)
        self.readers = [option for option in self.options if not option.startswith("--wal")]

    def example(self, schema):
        example = Example(self.wal, self.store, options=Options(key_groups=4, keep_versions=100))
        example.schemas["t"] = schema
        return closing(example)

    def write(self, schema, rows):
        with self.example(schema) as example:
            example.write({"t": rows})
            example.driver.store.end_heartbeat(example.driver.epoch)

    def rename(self, old, new):
        return done_json("schema", "rename", "t", old, new, *self.options)["version"]

    def content(self, version=None, store=None):
        return rows_by_table(store or self.store, version=version).get("t", {})

    def feed(self):
        """The changes of the table, as a stream that starts at the newest version gives them."""
        options = {"namespace": "flights", "store": self.store, "wal": self.wal, "table": "t"}
        return Feed(lease_table(SourceOptions.of(options)), self.wal, {}, exact=False)

    def changes(self, feed, after, upto):
        names = [*feed.leased.values.arrow_schema, (CHANGE_TYPE, pa.string()), (VERSION, pa.int64())]
        with (
            closing(open_log(self.wal, "flights")) as log,
            closing(open_store(self.store, "flights")) as store,
        ):
            parts = FeedPlanner(feed, log, store, 1).works(after, upto)
            batches = [batch for part in parts for batch in feed.rows(encode_works(part), pa.schema(names))]
        return [row for batch in batches for row in batch.to_pylist()]


class History(NamedTuple):
    """What makes each version, the table after each, and the schema of the last one."""

    steps: Sequence[Callable[[Place], Any]]
    contents: Mapping[int, Any]
    schema: TableSchema


HISTORIES = {
    "columns": History(
        [
            lambda place: place.write(NARROW, CONTENTS[1]),
            lambda place: place.write(WIDE, {"k2": CONTENTS[2]["k2"]}),
            lambda place: place.rename("a", "b"),
            lambda place: place.write(RENAMED, {"k3": CONTENTS[4]["k3"]}),
        ],
        CONTENTS,
        RENAMED,
    ),
    "state versions": History(
        [
            lambda place: place.write(FIRST, STATES[1]),
            lambda place: place.write(SECOND, {"k2": STATES[2]["k2"]}),
            lambda place: place.write(SECOND, {"k3": STATES[3]["k3"]}),
        ],
        STATES,
        SECOND,
    ),
}


def made(folder, name):
    place = Place(folder)
    for step in HISTORIES[name].steps:
        step(place)
    return place


@pytest.fixture
def place(tmp_path):
    """Version 2 widens and adds columns, 3 renames one, 4 writes by the new name."""
    return made(tmp_path, "columns")


@pytest.fixture
def migrated(tmp_path):
    """Version 2 migrates a row, 3 adds one of the second state version."""
    return made(tmp_path, "state versions")


@pytest.fixture(params=HISTORIES)
def either(request, tmp_path):
    """The place of a history, what it holds at each version, and its last schema."""
    _, contents, schema = HISTORIES[request.param]
    return made(tmp_path, request.param), contents, schema


def test_each_version_has_its_own_rows(either):
    place, contents, _ = either
    for version, content in contents.items():
        assert place.content(version) == content


def test_the_newest_columns_are_those_of_every_row(place):
    with tidegate.connect(place.store, namespace="flights") as gate:
        assert list(gate.diff(2, 3)) == [], "a rename changes no row"
        table = gate.table("t")
        assert table.get("k2") == CONTENTS[4]["k2"]
        assert table.get_many(["k1", "k3"]) == {key: CONTENTS[4][key] for key in ("k1", "k3")}
        assert table.scan().to_arrow().sort_by("k")["b"].to_pylist() == [1, BIG, 3]


def test_a_row_of_an_older_state_version_is_read_by_it(migrated):
    with tidegate.connect(migrated.store, namespace="flights") as gate:
        table = gate.table("t")
        assert (table.get("k1").state_version, table.get("k2")) == (1, {"n": "two"})
        assert table.scan().to_arrow().sort_by("k").to_pydict() == {
            "k": ["k1", "k2", "k3"],
            "n": [None, "two", "three"],
            "n@1": [1, None, None],
        }


def test_commands_print_the_columns_of_every_state_version(migrated, tmp_path):
    assert done_json("get", "t", "k1", *migrated.readers)["value"] == {"n": 1}
    printed = done("scan", "t", *migrated.readers)
    assert printed.splitlines()[0].split() == ["k", "n", "n@1"]
    assert done_json("status", *migrated.options)["tables"][0]["state_versions"] == [1, 2]
    assert "t\tk string\tn string, n@1 int" in done("status", *migrated.options)
    done("scan", "t", "--parquet", tmp_path / "t.parquet", *migrated.readers)
    told = refused(2, "schema", "rename", "t", "n", "m", *migrated.options)
    assert "rows of the state versions 1, 2" in told


def test_a_rename_is_repeatable_and_says_what_it_cannot_do(place):
    before = place.content()
    told = done("schema", "rename", "t", "a", "b", *place.options)
    assert "column a of table t is called b already: nothing was written" in told
    assert "column k: it is of the key" in refused(2, "schema", "rename", "t", "k", "z", *place.options)
    assert "there is no table 'u'" in refused(2, "schema", "rename", "u", "a", "z", *place.options)
    assert "tidegate's own" in refused(2, "schema", "rename", "_local", "items", "z", *place.options)
    assert place.content() == before


@pytest.mark.parametrize("new", ["c", "a"])
def test_a_second_rename_is_repeatable(place, new):
    """It was refused after an interruption: there was no column of the old name any more."""
    assert [place.rename("b", new), place.rename("b", new)] == [5, None]
    assert "there is none of this name" in refused(2, "schema", "rename", "t", "d", new, *place.options)


def test_a_column_that_orders_captured_changes_keeps_its_name(place):
    deletes = TableSchema(KEY, (Column("b", "bigint"),))
    with place.example(RENAMED) as example:
        example.schemas["_deleted.t"] = deletes
        example.write({"_deleted.t": {"k9": {"b": 1}}})
        example.driver.store.end_heartbeat(example.driver.epoch)
    assert "it orders captured changes" in refused(2, "schema", "rename", "t", "b", "c", *place.options)


def test_a_store_without_the_columns_of_a_table_is_named(place, monkeypatch):
    with place.example(RENAMED) as example:
        monkeypatch.setattr(example.driver.store, "schemas_of", lambda _: {})
        with pytest.raises(CorruptError, match=r"schema .* of table t at version 4 is missing"):
            rename_column(example.driver, "t", "b", "c")


def test_a_restore_brings_the_older_schema_back(either):
    place, contents, schema = either
    done_json("restore", "--to", 1, "--yes", *place.options)
    assert place.content() == contents[1]
    assert place.content(len(contents)) == contents[len(contents)], "older versions stay"
    with tidegate.connect(place.store, namespace="flights") as gate:
        assert gate.table("t").schema().version == 1
    done_json("restore", "--to", 3, "--yes", *place.options)
    assert place.content() == contents[3]
    with place.example(schema) as example:
        assert verify(example.driver.log, example.driver.store).findings == []


def test_an_older_version_is_restored_from_the_log_after_it_was_retired(either):
    place, contents, schema = either
    with place.example(schema) as example:
        driver = example.driver
        retire_up_to(driver.log, driver.store, driver.folded, Options(key_groups=4, keep_versions=1), bool)
        driver.store.end_heartbeat(driver.epoch)
    done_json("restore", "--to", 2, "--yes", *place.options)
    assert place.content() == contents[2]


@pytest.mark.parametrize(
    "name, version", [(name, version) for name, of in HISTORIES.items() for version in of.contents]
)
def test_an_export_has_the_rows_of_its_version(tmp_path, name, version):
    place, content, folder = made(tmp_path, name), HISTORIES[name].contents[version], tmp_path / "export"
    done("export", folder, "--at", version, *place.readers)
    done("import", folder, "--yes", *options_for(tmp_path / "other"))
    assert place.content(store=f"sqlite://{tmp_path}/other/store") == content
    done("import", folder, "--yes", *place.options)
    assert place.content() == content, "into the table with later columns"


def test_a_schema_that_no_release_writes_is_refused_by_an_import(place, tmp_path):
    folder = tmp_path / "export"
    done("export", folder, *place.readers)
    manifest = folder / "manifest.json"
    content = json.loads(manifest.read_text())
    content["tables"]["t"]["schema"]["value"][0]["stored"] = "n"
    manifest.write_text(json.dumps(content))
    assert "stored as one of the fields" in run("import", folder, "--yes", *place.options).stderr
    assert place.content() == CONTENTS[4]


@pytest.mark.parametrize("name", HISTORIES)
def test_backups_across_changes_restore_every_row(tmp_path, name):
    place, folder = Place(tmp_path / "first"), tmp_path / "backup"
    first, *later = HISTORIES[name].steps
    first(place)
    done("backup", folder, *place.options)
    for step in later:
        step(place)
    done("backup", folder, *place.options)
    done("restore-from", folder, "--yes", *options_for(tmp_path / "again"))
    assert place.content(store=f"sqlite://{tmp_path}/again/store") == HISTORIES[name].contents[len(later) + 1]


def test_a_difference_has_each_row_in_its_own_form(either):
    place, contents, _ = either
    before, after = contents[1], contents[len(contents)]
    with tidegate.connect(place.store, namespace="flights") as gate:
        changes = {change.key: (change.before, change.after) for change in gate.diff(1, len(contents))}
    assert changes == {key: (before.get(key), after[key]) for key in ("k2", "k3")}


def test_a_feed_gives_rows_from_before_in_the_columns_after(place):
    rows = place.changes(place.feed(), 0, 4)
    found = sorted((row[VERSION], row["k"], row["b"], row["s"]) for row in rows)
    assert found == [
        (1, "k1", 1, {"x": 1, "y": None}),
        (1, "k2", 2, None),
        (2, "k2", BIG, {"x": 2, "y": 0.5}),
        (4, "k3", 3, None),
    ]


def test_a_feed_gives_rows_from_between_two_renames(place):
    """The column got its first name back: the rows that were written under the other one had null."""
    place.rename("b", "a")
    rows = place.changes(place.feed(), 0, 5)
    found = sorted((row[VERSION], row["k"], row["a"]) for row in rows)
    assert found == [(1, "k1", 1), (1, "k2", 2), (2, "k2", BIG), (4, "k3", 3)]


def test_a_feed_gives_columns_of_older_versions_by_their_own_names(migrated):
    rows = migrated.changes(migrated.feed(), 0, 3)
    assert sorted((row[VERSION], row["k"], row["n"], row["n@1"]) for row in rows) == [
        (1, "k1", None, 1),
        (1, "k2", None, 2),
        (2, "k2", "two", None),
        (3, "k3", "three", None),
    ]


def test_a_running_feed_stops_before_the_first_migrated_row(tmp_path):
    place = Place(tmp_path)
    place.write(FIRST, STATES[1])
    feed = place.feed()
    place.write(SECOND, {"k2": STATES[2]["k2"]})
    with pytest.raises(ConfigError, match=r"from version 2 on.*restart"):
        place.changes(feed, 1, 2)


@pytest.mark.parametrize(
    "start, message",
    [
        (NARROW, r"has the columns n from version 2 on.*restart it"),
        (
            TableSchema(KEY, (*NARROW.value, Column("n", "date"))),
            r"other types from version 2 on, of the columns a \(bigint, it was int\), s .*restart this query",
        ),
        (WIDE, r"has the columns b from version 4 on.*restart it"),
    ],
    ids=["added", "widened", "renamed"],
)
def test_a_running_feed_stops_at_columns_that_it_does_not_know(tmp_path, start, message):
    place = Place(tmp_path)
    with place.example(start) as example:
        example.write({"t": {"k0": {"a": 0}}})
        feed = place.feed()
        example.driver.store.end_heartbeat(example.driver.epoch)
        versions = [(WIDE, {"k2": CONTENTS[2]["k2"]}), (RENAMED, {}), (RENAMED, {"k3": {"b": 3}})]
        for schema, rows in versions:
            example.schemas["t"] = schema
            example.write({"t": rows})
    with pytest.raises(ConfigError, match=message):
        place.changes(feed, 1, 4)


def test_a_store_that_lost_every_row_is_rebuilt_with_the_rows_of_each_version(either):
    place, contents, _ = either
    for path in Path(place.folder, "store").rglob("*.sqlite*"):
        path.unlink()
    visible = ", ".join(map(str, range(2, len(contents) + 1)))
    assert f"made visible: version {visible}" in run("recover", "--force", *place.options).stdout
    assert place.content() == contents[len(contents)]
