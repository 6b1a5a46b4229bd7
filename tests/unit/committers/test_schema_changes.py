"""A table's columns change: what readers, commands, copies and feeds find before and after."""

import json
from contextlib import closing
from pathlib import Path

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


class Place:
    """A namespace in files: version 2 widens and adds columns, 3 renames one, 4 writes by the new name."""

    def __init__(self, folder):
        self.folder = folder
        self.wal, self.store = f"file://{folder}/wal", f"sqlite://{folder}/store"
        self.options = options_for(folder)

    def example(self, schema):
        example = Example(self.wal, self.store, options=Options(key_groups=4, keep_versions=100))
        example.schemas["t"] = schema
        return closing(example)

    def write_all(self):
        with self.example(NARROW) as example:
            assert example.write({"t": CONTENTS[1]}) == 1
            example.schemas["t"] = WIDE
            assert example.write({"t": {"k2": CONTENTS[2]["k2"]}}) == 2
            example.driver.store.end_heartbeat(example.driver.epoch)
        assert done_json("schema", "rename", "t", "a", "b", *self.options)["version"] == 3
        with self.example(RENAMED) as example:
            assert example.write({"t": {"k3": CONTENTS[4]["k3"]}}) == 4
            example.driver.store.end_heartbeat(example.driver.epoch)

    def content(self, version=None, store=None):
        return rows_by_table(store or self.store, version=version).get("t", {})

    def feed(self, upto, after=0):
        """The changes of these versions, as a stream that starts at the newest version gives them."""
        options = SourceOptions.of(
            {"namespace": "flights", "store": self.store, "wal": self.wal, "table": "t"}
        )
        return Feed(lease_table(options), self.wal, {}, exact=False), after, upto


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    place.write_all()
    return place


def changes_of(place, feed, after, upto):
    with (
        closing(open_log(place.wal, "flights")) as log,
        closing(open_store(place.store, "flights")) as store,
    ):
        planner = FeedPlanner(feed, log, store, 1)
        columns = pa.schema(
            [*feed.leased.values.arrow_schema, (CHANGE_TYPE, pa.string()), (VERSION, pa.int64())]
        )
        parts = planner.works(after, upto)
        return [
            row for part in parts for b in feed.rows(encode_works(part), columns) for row in b.to_pylist()
        ]


def test_each_version_has_its_own_columns(place):
    for version, content in CONTENTS.items():
        assert place.content(version) == content
    with tidegate.connect(place.store, namespace="flights") as gate:
        table = gate.table("t")
        assert table.get("k2") == CONTENTS[4]["k2"]
        assert table.get_many(["k1", "k3"]) == {key: CONTENTS[4][key] for key in ("k1", "k3")}
        assert table.scan().to_arrow().sort_by("k")["b"].to_pylist() == [1, BIG, 3]


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
    assert done_json("schema", "rename", "t", "b", new, *place.options)["version"] == 5
    assert done_json("schema", "rename", "t", "b", new, *place.options)["version"] is None
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


def test_a_restore_brings_the_older_columns_back(place):
    done_json("restore", "--to", 1, "--yes", *place.options)
    assert place.content() == CONTENTS[1]
    assert place.content(4) == CONTENTS[4], "older versions stay"
    done_json("restore", "--to", 3, "--yes", *place.options)
    assert place.content() == CONTENTS[3]
    with place.example(RENAMED) as example:
        assert verify(example.driver.log, example.driver.store).findings == []


def test_an_older_version_is_restored_from_the_log_after_it_was_retired(place):
    with place.example(RENAMED) as example:
        driver = example.driver
        retire_up_to(driver.log, driver.store, driver.folded, Options(key_groups=4, keep_versions=1), bool)
        driver.store.end_heartbeat(driver.epoch)
    done_json("restore", "--to", 2, "--yes", *place.options)
    assert place.content() == CONTENTS[2]


@pytest.mark.parametrize("version", CONTENTS)
def test_an_export_has_its_versions_columns(place, tmp_path, version):
    folder = tmp_path / "export"
    readers = [option for option in place.options if not option.startswith("--wal")]
    done("export", folder, "--at", version, *readers)
    done("import", folder, "--yes", *options_for(tmp_path / "other"))
    assert place.content(store=f"sqlite://{tmp_path}/other/store") == CONTENTS[version]
    done("import", folder, "--yes", *place.options)
    assert place.content() == CONTENTS[version], "into the table with later columns"


def test_a_schema_that_no_release_writes_is_refused_by_an_import(place, tmp_path):
    folder = tmp_path / "export"
    done("export", folder, *[option for option in place.options if not option.startswith("--wal")])
    manifest = folder / "manifest.json"
    content = json.loads(manifest.read_text())
    content["tables"]["t"]["schema"]["value"][0]["stored"] = "n"
    manifest.write_text(json.dumps(content))
    assert "stored as one of the fields" in run("import", folder, "--yes", *place.options).stderr
    assert place.content() == CONTENTS[4]


def test_backups_across_changes_restore_every_column(tmp_path):
    place, folder = Place(tmp_path / "first"), tmp_path / "backup"
    place.write_all()
    done("backup", folder, *place.options)
    with place.example(RENAMED) as example:
        example.write({"t": {"k4": {"b": 4, "s": None, "n": None}}})
        example.driver.store.end_heartbeat(example.driver.epoch)
    done("backup", folder, *place.options)
    done("restore-from", folder, "--yes", *options_for(tmp_path / "again"))
    expected = {**CONTENTS[4], "k4": {"b": 4, "s": None, "n": None}}
    assert place.content(store=f"sqlite://{tmp_path}/again/store") == expected


def test_a_difference_has_the_columns_of_either_side(place):
    with tidegate.connect(place.store, namespace="flights") as gate:
        changes = {change.key: (change.before, change.after) for change in gate.diff(1, 4)}
        assert changes == {
            "k2": (CONTENTS[1]["k2"], CONTENTS[4]["k2"]),
            "k3": (None, CONTENTS[4]["k3"]),
        }
        assert list(gate.diff(2, 3)) == [], "a rename changes no row"


def test_a_feed_gives_rows_from_before_in_the_columns_after(place):
    rows = changes_of(place, *place.feed(4))
    found = sorted((row[VERSION], row["k"], row["b"], row["s"]) for row in rows)
    assert found == [
        (1, "k1", 1, {"x": 1, "y": None}),
        (1, "k2", 2, None),
        (2, "k2", BIG, {"x": 2, "y": 0.5}),
        (4, "k3", 3, None),
    ]


def test_a_feed_gives_rows_from_between_two_renames(place):
    """The column got its first name back: the rows that were written under the other one had null."""
    done_json("schema", "rename", "t", "b", "a", *place.options)
    rows = changes_of(place, *place.feed(5))
    found = sorted((row[VERSION], row["k"], row["a"]) for row in rows)
    assert found == [(1, "k1", 1), (1, "k2", 2), (2, "k2", BIG), (4, "k3", 3)]


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
        feed, *_ = place.feed(1)
        example.driver.store.end_heartbeat(example.driver.epoch)
        versions = [(WIDE, {"k2": CONTENTS[2]["k2"]}), (RENAMED, {}), (RENAMED, {"k3": {"b": 3}})]
        for schema, rows in versions:
            example.schemas["t"] = schema
            example.write({"t": rows})
    with pytest.raises(ConfigError, match=message):
        changes_of(place, feed, 1, 4)


def test_a_store_that_lost_every_row_is_rebuilt_with_its_columns(place):
    for path in Path(place.folder, "store").rglob("*.sqlite*"):
        path.unlink()
    assert "made visible: version 2, 3, 4" in run("recover", "--force", *place.options).stdout
    assert place.content() == CONTENTS[4]
