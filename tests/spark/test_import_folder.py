"""sink.import_folder: an export of any size as one version, by a Spark job, once, into any kind of store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tidegate
from tampering.made_export import MadeTable, make_export, placed
from tidegate.cli import app
from tidegate.errors import ConfigError, CorruptError
from tidegate.options import Options
from tidegate.sinks.records import ReadAt
from tidegate.spark import Derived, VersionedSink
from tidegate.testing.example import BATCHES, Example
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.staging import own_tables

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The example's three versions, and one row that expires: exported from SQLite."""
    place = tmp_path_factory.mktemp("exported")
    wal, store = f"file://{place}/wal", f"sqlite://{place}/store"
    example = Example(wal, store, options=Options(key_groups=8, ttl={"legs": "7 days"}))
    for rows in BATCHES:
        example.write(rows)
    example.close()
    words = ["export", f"{place}/folder", "--store", store, "--namespace", "flights"]
    assert CliRunner().invoke(app, words).exit_code == 0
    return place


def content(store, namespace):
    with tidegate.connect(store, namespace) as gate, gate.snapshot() as snapshot:
        return {name: dict(snapshot.table(name).scan()) for name in snapshot.tables()}


def sink_at(place, namespace="copy", **options):
    return VersionedSink(
        namespace=namespace, wal=f"file://{place}/wal", store=f"sqlite://{place}/store", **options
    )


def imported(spark, sink, folder, **named):
    try:
        return sink.import_folder(spark, str(folder), **named)
    finally:
        sink.close()


def test_a_namespace_whose_store_was_lost_keeps_its_key_groups(spark, exported, tmp_path):
    """The log knows how many it has: the export's are those of a new namespace only."""
    folder = exported / "folder"
    assert imported(spark, sink_at(tmp_path, key_groups=3), folder) == 1
    shutil.rmtree(tmp_path / "store" / "copy")
    assert imported(spark, sink_at(tmp_path), folder, token="again") == 2
    with tidegate.connect(f"sqlite://{tmp_path}/store", "copy") as gate:
        assert gate.key_groups == 3


@pytest.mark.parametrize("key_groups", [None, pytest.param(3, marks=pytest.mark.slow)])
def test_an_export_becomes_one_version_once(spark, exported, tmp_path, key_groups):
    given = {} if key_groups is None else {"key_groups": key_groups}
    folder, store = exported / "folder", f"sqlite://{tmp_path}/store"
    assert imported(spark, sink_at(tmp_path, **given), folder) == 1
    assert content(store, "copy") == content(f"sqlite://{exported}/store", "flights")
    with tidegate.connect(store, "copy") as gate:
        assert gate.key_groups == (key_groups or 8)
        assert gate.history()[0].origin.startswith("import ")
    assert imported(spark, sink_at(tmp_path, **given), folder) == 1, "not doubled"
    words = [
        "import",
        folder,
        "--yes",
        "--store",
        store,
        "--wal",
        f"file://{tmp_path}/wal",
        "--namespace",
        "copy",
    ]
    told = CliRunner().invoke(app, [*map(str, words), "--force"])
    assert told.exit_code == 0, told.output
    with tidegate.connect(store, "copy") as gate:
        assert gate.version() == 1, "the command knows it, too"
    assert imported(spark, sink_at(tmp_path), folder, token="once more") == 2
    assert content(store, "copy") == content(f"sqlite://{exported}/store", "flights")


@pytest.mark.slow
def test_rows_keep_their_expiry_and_other_tables_stay(spark, exported, tmp_path):
    sink = sink_at(tmp_path)
    sink.load({"own": spark.createDataFrame([(1, "a")], "id int, name string")}, token="t", key="id")
    assert imported(spark, sink, exported / "folder") == 2
    store = f"sqlite://{tmp_path}/store"
    assert content(store, "copy")["own"] == {1: {"name": "a"}}
    opened = tidegate.sinks.open_store.open_store(store, "copy")
    entry = opened.catalog(2, 2)[0]
    assert [name for name, at in sorted(entry.tables.items()) if at.expires] == ["legs"]
    stored = opened.get_stored_one(ReadAt("legs", 2, entry.tables["legs"].start), b"3:EWR,4:1545,")
    opened.close()
    assert stored[:1] == b"e"


def test_what_does_not_fit_is_refused_before_anything_is_staged(spark, exported, tmp_path):
    folder = Path(shutil.copytree(exported / "folder", tmp_path / "folder"))
    sink = sink_at(tmp_path)
    rows = spark.createDataFrame([(1, "UA")], "tailnum int, carrier string")
    sink.load({"aircraft": rows}, token="t", key="tailnum")
    staged = sorted((tmp_path / "wal").rglob("*.seg"))

    def refused(error, match):
        with pytest.raises(error, match=match):
            imported(spark, sink, folder)
        assert sorted((tmp_path / "wal").rglob("*.seg")) == staged
        with tidegate.connect(f"sqlite://{tmp_path}/store", "copy") as gate:
            assert gate.version() == 1

    refused(ConfigError, "aircraft.*key")
    part = folder / "table=notes" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    refused(CorruptError, "part-00000.parquet has .* checksum")
    part.unlink()
    refused(CorruptError, "cannot be read.*export again")
    (folder / "manifest.json").unlink()
    refused(ConfigError, "no whole export")


def test_rows_that_somebody_made_up_are_refused_before_anything_is_staged_t61(spark, tmp_path):
    """Their checksums fit. The checks are those of `tidegate import` (``test_untrusted_exports.py``)."""
    schema = TableSchema((Column("name", "string"),), (Column("age", "int"),))
    fit, unfit = b'+{"age":7}', b"e\0"

    def refused(name, files, match):
        folder = make_export(tmp_path / name, {"people": MadeTable(schema, files, expires=True)})
        with pytest.raises(CorruptError, match=match):
            imported(spark, sink_at(tmp_path), folder)
        assert not list((tmp_path / "wal").rglob("*.seg"))

    rows = placed([(b"a", fit), (b"b", fit)])
    refused(
        "value",
        [placed([(b"a", fit), (b"b", unfit)])],
        "part-00000.parquet, row [12], key 'b': .*starts with",
    )
    refused("twice", [rows, rows[1:]], "part-00001.parquet, row 1: .*not in its place")
    assert imported(
        spark, sink_at(tmp_path), make_export(tmp_path / "fit", {"people": MadeTable(schema, [rows])})
    )


@pytest.mark.parametrize("wanted", [None, pytest.param(8, marks=pytest.mark.slow)])
def test_a_table_keeps_its_key_groups_and_its_due_times(spark, tmp_path, wanted):
    """As `tidegate import` keeps them; the sink's own option comes first, and the queue is made again."""
    wal, store = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    options = Options(key_groups=16, table_key_groups={"aircraft": 4})
    example = Example(wal, store, "small", options=options)
    example.schemas["_due.aircraft"] = TableSchema(example.schemas["aircraft"].key, own_tables.DUE_COLUMNS)
    example.schemas["_due_at.aircraft"] = own_tables.QUEUE_SCHEMA
    keys = [f"N{number}" for number in range(40)]
    due = {key: {"due_us": 9, "queued_us": len(key)} for key in keys}
    aircraft = {key: {"carrier": "UA", "flights": 1} for key in keys}
    example.write({"aircraft": aircraft, "_due.aircraft": due, "_due_at.aircraft": {}})
    example.close()
    words = ["export", f"{tmp_path}/folder", "--store", store, "--namespace", "small"]
    assert CliRunner().invoke(app, words).exit_code == 0
    named = {} if wanted is None else {"table_key_groups": {"aircraft": wanted}}
    assert imported(spark, sink_at(tmp_path, **named), tmp_path / "folder") == 1
    assert content(store, "copy") == content(store, "small")
    words = ["status", "--store", store, "--namespace", "copy", "--json"]
    tables = {one["name"]: one for one in json.loads(CliRunner().invoke(app, words).stdout)["tables"]}
    assert tables["aircraft"]["key_groups"] == (wanted or 4)
    assert tables.keys() >= {"_due.aircraft", "_due_at.aircraft"}
    words = ["verify", "--store", store, "--wal", wal, "--namespace", "copy"]
    assert CliRunner().invoke(app, words).exit_code == 0


def test_derived_tables_are_made_of_the_imported_base(spark, tmp_path):
    """Their exported rows are not read: they would be taken for the totals of the base."""
    place, folder = tmp_path / "from", tmp_path / "folder"
    legs = spark.createDataFrame([(1, "a", 5), (2, "a", 6), (3, "b", None)], "id int, who string, n bigint")
    totals = Derived("totals", of="legs", key="who", aggregates={"legs": "count", "n": ("sum", "n")})
    sink = sink_at(place, "first", derived=[totals])
    sink.load({"legs": legs}, token="t", key="id")
    sink.close()
    words = ["export", str(folder), "--store", f"sqlite://{place}/store", "--namespace", "first"]
    assert CliRunner().invoke(app, words).exit_code == 0
    with pytest.raises(ConfigError, match="the export has the derived tables totals: declare them"):
        imported(spark, sink_at(tmp_path), folder)
    assert imported(spark, sink_at(tmp_path, derived=[totals]), folder) == 1
    found = content(f"sqlite://{tmp_path}/store", "copy")
    assert found["totals"] == {"a": {"legs": 2, "n": 11}, "b": {"legs": 1, "n": None}}
    assert found["legs"].keys() == {1, 2, 3}
    words = ["verify", "--store", f"sqlite://{tmp_path}/store", "--wal", f"file://{tmp_path}/wal"]
    told = CliRunner().invoke(app, [*words, "--namespace", "copy"])
    assert "nothing wrong" in told.output
