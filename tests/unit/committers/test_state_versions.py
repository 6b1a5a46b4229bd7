"""A table with rows of several state versions: in restores, copies, differences, feeds and rebuilds."""

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

import tidegate
from support.cli import done, done_json, options_for, refused, run
from support.places import rows_by_table
from tidegate.committers.operations.verify import verify
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import ConfigError
from tidegate.options import Options
from tidegate.sinks.open_store import open_store
from tidegate.spark.source.change_feed import CHANGE_TYPE, VERSION, Feed, FeedPlanner, encode_works
from tidegate.spark.source.leased_table import lease_table
from tidegate.spark.source.options import SourceOptions
from tidegate.testing.example import Example
from tidegate.values.state_versions import next_state
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Column, TableSchema

KEY = (Column("k", "string"),)
FIRST = TableSchema(KEY, (Column("n", "int"),))
SECOND = next_state("t", FIRST, TableSchema(KEY, (Column("n", "string"),), state_version=2))
CONTENTS = {
    1: {"k1": {"n": 1}, "k2": {"n": 2}},
    2: {"k1": {"n": 1}, "k2": {"n": "two"}},
    3: {"k1": {"n": 1}, "k2": {"n": "two"}, "k3": {"n": "three"}},
}


class Place:
    """A namespace in files: version 2 migrates a row, 3 adds one of the second state version."""

    def __init__(self, folder):
        self.folder = folder
        self.wal, self.store = f"file://{folder}/wal", f"sqlite://{folder}/store"
        self.options = options_for(folder)
        self.readers = [option for option in self.options if not option.startswith("--wal")]

    def write(self, *versions):
        with closing(
            Example(self.wal, self.store, options=Options(key_groups=4, keep_versions=100))
        ) as example:
            for schema, rows in versions:
                example.schemas["t"] = schema
                example.write({"t": rows})
            example.driver.store.end_heartbeat(example.driver.epoch)

    def content(self, version=None, store=None):
        return rows_by_table(store or self.store, version=version).get("t", {})

    def leased(self):
        options = {"namespace": "flights", "store": self.store, "wal": self.wal, "table": "t"}
        return lease_table(SourceOptions.of(options))

    def changes(self, leased, after, upto):
        feed = Feed(leased, self.wal, {}, exact=False)
        names = [*leased.values.arrow_schema, (CHANGE_TYPE, pa.string()), (VERSION, pa.int64())]
        with (
            closing(open_log(self.wal, "flights")) as log,
            closing(open_store(self.store, "flights")) as store,
        ):
            parts = FeedPlanner(feed, log, store, 1).works(after, upto)
            batches = [batch for part in parts for batch in feed.rows(encode_works(part), pa.schema(names))]
        return [row for batch in batches for row in batch.to_pylist()]


VERSIONS = ((FIRST, CONTENTS[1]), (SECOND, {"k2": CONTENTS[2]["k2"]}), (SECOND, {"k3": CONTENTS[3]["k3"]}))


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    place.write(*VERSIONS)
    return place


def test_each_row_is_read_by_the_version_that_wrote_it(place):
    for version, content in CONTENTS.items():
        assert place.content(version) == content
    with tidegate.connect(place.store, namespace="flights") as gate:
        table = gate.table("t")
        assert (table.get("k1").state_version, table.get("k2")) == (1, {"n": "two"})
        assert table.scan().to_arrow().sort_by("k").to_pydict() == {
            "k": ["k1", "k2", "k3"],
            "n": [None, "two", "three"],
            "n@1": [1, None, None],
        }


def test_commands_print_the_columns_of_every_version(place, tmp_path):
    assert done_json("get", "t", "k1", *place.readers)["value"] == {"n": 1}
    printed = done("scan", "t", *place.readers)
    assert printed.splitlines()[0].split() == ["k", "n", "n@1"]
    assert done_json("status", *place.options)["tables"][0]["state_versions"] == [1, 2]
    assert "t\tk string\tn string, n@1 int" in done("status", *place.options)
    done("scan", "t", "--parquet", tmp_path / "t.parquet", *place.readers)
    assert "rows of the state versions 1, 2" in refused(2, "schema", "rename", "t", "n", "m", *place.options)


def test_a_restore_brings_the_older_version_back(place):
    done_json("restore", "--to", 1, "--yes", *place.options)
    assert place.content() == CONTENTS[1]
    with tidegate.connect(place.store, namespace="flights") as gate:
        assert gate.table("t").schema().version == 1
    done_json("restore", "--to", 3, "--yes", *place.options)
    assert place.content() == CONTENTS[3]
    with closing(Example(place.wal, place.store, options=Options(key_groups=4))) as example:
        assert verify(example.driver.log, example.driver.store).findings == []


def test_an_older_version_is_restored_from_the_log_after_it_was_retired(place):
    with closing(Example(place.wal, place.store, options=Options(key_groups=4, keep_versions=1))) as example:
        driver = example.driver
        retire_up_to(driver.log, driver.store, driver.folded, Options(key_groups=4, keep_versions=1), bool)
        driver.store.end_heartbeat(driver.epoch)
    done_json("restore", "--to", 2, "--yes", *place.options)
    assert place.content() == CONTENTS[2]


@pytest.mark.parametrize("version", CONTENTS)
def test_an_export_has_the_rows_of_every_version(place, tmp_path, version):
    folder = tmp_path / "export"
    done("export", folder, "--at", version, *place.readers)
    done("import", folder, "--yes", *options_for(tmp_path / "other"))
    assert place.content(store=f"sqlite://{tmp_path}/other/store") == CONTENTS[version]
    done("import", folder, "--yes", *place.options)
    assert place.content() == CONTENTS[version]


def test_backups_across_a_migration_restore_every_row(tmp_path):
    place, folder = Place(tmp_path / "first"), tmp_path / "backup"
    place.write(VERSIONS[0])
    done("backup", folder, *place.options)
    place.write(*VERSIONS[1:])
    done("backup", folder, *place.options)
    done("restore-from", folder, "--yes", *options_for(tmp_path / "again"))
    assert place.content(store=f"sqlite://{tmp_path}/again/store") == CONTENTS[3]


def test_a_difference_has_each_row_in_its_own_form(place):
    with tidegate.connect(place.store, namespace="flights") as gate:
        changes = {change.key: (change.before, change.after) for change in gate.diff(1, 3)}
    assert changes == {"k2": ({"n": 2}, {"n": "two"}), "k3": (None, {"n": "three"})}


def test_a_feed_gives_columns_of_older_versions_by_their_own_names(place):
    rows = place.changes(place.leased(), 0, 3)
    assert sorted((row[VERSION], row["k"], row["n"], row["n@1"]) for row in rows) == [
        (1, "k1", None, 1),
        (1, "k2", None, 2),
        (2, "k2", "two", None),
        (3, "k3", "three", None),
    ]


def test_a_running_feed_stops_before_the_first_migrated_row(tmp_path):
    place = Place(tmp_path)
    place.write(VERSIONS[0])
    leased = place.leased()
    place.write(VERSIONS[1])
    with pytest.raises(ConfigError, match=r"from version 2 on.*restart"):
        place.changes(leased, 1, 2)


def test_a_store_that_lost_every_row_is_rebuilt_with_rows_of_both_versions(place):
    for path in Path(place.folder, "store").rglob("*.sqlite*"):
        path.unlink()
    assert "made visible: version 2, 3" in run("recover", "--force", *place.options).stdout
    assert place.content() == CONTENTS[3]
