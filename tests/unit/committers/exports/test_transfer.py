"""Export and import: a version as files, and files as one version."""

import contextlib
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tidegate
import tidegate.committers.exports.export as export_module
from support.places import barrier_of, driver_at, new_place, opened, rows_by_table, silence_writer
from tidegate.cli import app
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.exports.dealt_rows import TableRows, deal
from tidegate.committers.exports.export import export
from tidegate.committers.exports.export_format import MANIFEST, checksum_of, place_of
from tidegate.committers.exports.import_rows import import_rows, read_whole
from tidegate.errors import BadRecordError, ConfigError, CorruptError, SnapshotExpiredError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import ReadAt
from tidegate.testing.example import BATCHES, SCHEMAS, Example
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.staging import own_tables, quarantine

TABLES = ["aircraft", "airports", "legs", "notes"]
LOCAL_ITEMS = TableSchema(own_tables.ITEM_KEY, (Column("value", "binary"),), "bytes")


@pytest.fixture
def place(tmp_path):
    """Options of the example's three versions in files."""
    wal, store = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    example = Example(wal, store, options=Options(key_groups=4))
    for rows in BATCHES:
        example.write(rows)
    example.close()
    return tmp_path


def run(place, *arguments, code=0, namespace="flights", wal=True):
    options = [f"--store=sqlite://{place}/store", f"--namespace={namespace}"]
    options += [f"--wal=file://{place}/wal"] * wal
    result = CliRunner().invoke(app, [*map(str, arguments), *options], prog_name="tidegate")
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def exported(place, *arguments):
    folder = place / "exported"
    return folder, json.loads(run(place, "export", folder, "--json", *arguments, wal=False))


@pytest.mark.parametrize("key_groups", [1, 4, 7])
def test_an_imported_version_holds_what_was_exported(place, key_groups):
    """Into any number of key groups, and once."""
    folder, told = exported(place, "--at", "2")
    assert told["rows"] == {"aircraft": 2, "airports": 2, "legs": 2, "notes": 1}
    again = ["import", folder, "--key-groups", key_groups, "--json"]
    assert json.loads(run(place, *again, namespace="other"))["version"] == 1
    url = f"sqlite://{place}/store"
    assert rows_by_table(url, "other") == rows_by_table(url, version=2)
    assert tidegate.connect(url, "other").key_groups == key_groups
    told = json.loads(run(place, "import", folder, "--json", namespace="other"))
    assert (told["version"], told["new"]) == (1, False)
    assert "nothing wrong" in run(place, "verify", namespace="other")


def test_a_table_of_keys_alone_comes_back_from_an_export_and_a_backup(place):
    """Distinct values, as docs/state.md has them: its rows have no value column."""
    wal, url = f"file://{place}/wal", f"sqlite://{place}/store"
    with contextlib.closing(Example(wal, url, options=Options(key_groups=4))) as example:
        example.schemas["seen"] = TableSchema((Column("tail", "string"),), ())
        example.write({"seen": {"N1": {}, "N2": {}}})
    silence_writer(place / "store", "flights")
    folder, told = exported(place)
    assert told["rows"]["seen"] == 2
    run(place, "import", folder, namespace="other")
    assert rows_by_table(url, "other")["seen"] == rows_by_table(url)["seen"] == {"N1": {}, "N2": {}}
    run(place, "backup", place / "backup")
    run(place, "drop", "--yes")
    run(place, "restore-from", place / "backup", "--yes")
    assert rows_by_table(url)["seen"] == {"N1": {}, "N2": {}}


def test_rows_are_dealt_into_buckets_and_files(place, tmp_path):
    """Many files and many buckets give the same version as one."""
    wal, url = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    example = Example(wal, url, "many", options=Options(key_groups=16))
    example.write({"aircraft": {f"N{at}": {"carrier": "UA" * 400, "flights": at} for at in range(25_000)}})
    store = example.driver.store
    manifest = export(store, store.identity(), 1, tmp_path / "x", file_bytes=1_000_000)
    assert len(manifest.tables["aircraft"].files) > 1
    example.close()
    driver = Coordinator(
        Endpoints("copy", wal, url), open_log(wal, "copy"), open_store(url, "copy"), Options(key_groups=5)
    )
    assert import_rows(driver, tmp_path / "x", *read_whole(tmp_path / "x"), bucket_bytes=1_000).version == 1
    driver.store.close()
    assert rows_by_table(url, "copy") == rows_by_table(url, "many")


def test_a_temporary_folder_without_room_is_named(tmp_path):
    """The error was that of Arrow's writer, without a path."""
    rows = [TableRows(0, pa.array([b"a"]), pa.array([b"+1"]))]
    with pytest.raises(ConfigError, match=r"the temporary folder takes no copy .* set TMPDIR"):
        deal(rows, [1], 4, tmp_path / "gone" / "x", 2)


def test_an_import_replaces_its_tables_and_leaves_the_others(place):
    folder, _ = exported(place, "--at", "1", "--table", "aircraft")
    url = f"sqlite://{place}/store"
    before = rows_by_table(url)
    assert "would be replaced: add --yes" in run(place, "import", folder, code=2)
    assert rows_by_table(url) == before
    run(place, "import", folder, "--yes")
    assert rows_by_table(url) == {**before, "aircraft": rows_by_table(url, version=1)["aircraft"]}
    run(place, "import", folder, "--yes", "--token", "again")
    assert [info.origin for info in tidegate.connect(url, "flights").history()][-1] == "import again"


def test_due_times_are_imported_and_dropped_with_their_rows(place):
    """Their queue is by key group, and made again; states whose rows are replaced have none."""
    url, folder, alone = f"sqlite://{place}/store", place / "timed", place / "alone"
    example = Example(f"file://{place}/wal", url, "timed", options=Options(key_groups=4))
    example.schemas["_due.aircraft"] = TableSchema(SCHEMAS["aircraft"].key, own_tables.DUE_COLUMNS)
    example.schemas["_due_at.aircraft"] = own_tables.QUEUE_SCHEMA
    own = {"_due.aircraft": {"N1": {"due_us": 7, "queued_us": 7}}, "_due_at.aircraft": {(0, -1, 0): b"\x90"}}
    aircraft = {"aircraft": {"N1": {"carrier": "UA", "flights": 1}}}
    example.write(aircraft)
    example.write(aircraft | own)
    example.close()
    run(place, "export", folder, namespace="timed", wal=False)
    run(place, "export", alone, "--at", "1", namespace="timed", wal=False)
    run(place, "import", folder, namespace="same")
    run(place, "verify", namespace="same")
    with tidegate.connect(url, "same") as gate:
        assert gate.table("_due.aircraft").get("N1") == {"due_us": 7, "queued_us": 7}
        run(place, "import", alone, "--yes", namespace="same")
        assert gate.history()[-1].dropped == ("_due.aircraft", "_due_at.aircraft")
    run(place, "import", folder, "--key-groups", 7, namespace="other")
    with tidegate.connect(url, "other") as gate:
        assert gate.table("_due.aircraft").get("N1") == {"due_us": 7, "queued_us": 7}
    run(place, "verify", namespace="other")


def test_a_table_is_exported_with_what_is_remembered_of_its_keys(place):
    """Without it, states never time out after an import, and late changes bring deleted rows back."""
    url, folder = f"sqlite://{place}/store", place / "one"
    example = Example(f"file://{place}/wal", url, "remembered", options=Options(key_groups=4))
    key = SCHEMAS["aircraft"].key
    example.schemas["_due.aircraft"] = TableSchema(key, own_tables.DUE_COLUMNS)
    example.schemas["_due_at.aircraft"] = own_tables.QUEUE_SCHEMA
    example.schemas["_deleted.aircraft"] = TableSchema(key, (Column("lsn", "bigint"),))
    own = {
        "_deleted.aircraft": {"N2": {"lsn": 5}},
        "_due.aircraft": {"N1": {"due_us": 7, "queued_us": 7}},
        "_due_at.aircraft": {(0, -1, 0): b"\x90"},
    }
    one = {"aircraft": {"N1": {"carrier": "UA", "flights": 1}}} | own
    example.write(one | {"airports": {"SFO": {"city": "San Francisco"}}})
    example.close()
    run(place, "export", folder, "--table", "aircraft", namespace="remembered", wal=False)
    run(place, "import", folder, namespace="copy")
    with tidegate.connect(url, "remembered") as gate, tidegate.connect(url, "copy") as copy:
        assert copy.tables() == ["_deleted.aircraft", "aircraft"]
        for name in one.keys() - {"_due_at.aircraft"}:
            assert dict(copy.table(name).scan()) == dict(gate.table(name).scan()) != {}


def with_local_states(place, namespace, *names):
    """Make a namespace with these local states, each with one item, in one version; return its folder."""
    example = Example(
        f"file://{place}/wal", f"sqlite://{place}/store", namespace, options=Options(key_groups=4)
    )
    example.schemas["_local"] = own_tables.INSTANCES_SCHEMA
    rows = {"_local": {(name, 0): {"items": 1, "parallelism": 1} for name in names}}
    for name in names:
        example.schemas[f"_local.{name}"] = LOCAL_ITEMS
        rows[f"_local.{name}"] = {(0, 0): b"i"}
    example.write(rows | {"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
    example.close()
    return place / f"{namespace}-exported"


def test_local_states_are_exported_together(place):
    """The rows of all their instances are in one table."""
    folder, url = with_local_states(place, "states", "one", "two"), f"sqlite://{place}/store"
    run(place, "export", folder, "--table", "_local.one", namespace="states", wal=False)
    run(place, "import", folder, namespace="copy")
    states = rows_by_table(url, "states")
    del states["aircraft"]
    assert rows_by_table(url, "copy") == states


def test_an_import_that_would_take_the_instances_of_another_local_state_is_refused(place):
    """Nothing is staged, and that state continues."""
    folder, url = with_local_states(place, "first", "one"), f"sqlite://{place}/store"
    run(place, "export", folder, namespace="first", wal=False)
    with_local_states(place, "both", "one", "two")
    before = rows_by_table(url, "both")
    message = run(place, "import", folder, "--yes", code=ConfigError.exit_code, namespace="both")
    assert "the export lacks _local.two, which this namespace has" in message
    assert rows_by_table(url, "both") == before


def test_a_part_of_the_local_states_is_not_imported(place):
    """Exports of earlier releases may have one."""
    for part in (["_local"], ["_local.one", "aircraft"], ["_due.aircraft"], ["_deleted.aircraft", "t"]):
        with pytest.raises(ConfigError, match="export again, with all tables"):
            own_tables.check_companions(part, ["aircraft"])
    own_tables.check_companions(["aircraft"], ["_local", "_local.one"])


def test_a_table_of_another_key_is_refused_before_anything_is_staged(place):
    folder, _ = exported(place)
    other = Example(f"file://{place}/wal", f"sqlite://{place}/store", "other")
    other.schemas["airports"] = TableSchema((Column("origin", "binary"),), SCHEMAS["airports"].value)
    other.write({"airports": {b"EWR": {"departures": 9, "delay": 0.0}}})
    other.close()
    message = run(place, "import", folder, "--yes", code=ConfigError.exit_code, namespace="other")
    assert "table airports has the key origin binary, the export has origin string" in message
    assert rows_by_table(f"sqlite://{place}/store", "other") == {
        "airports": {b"EWR": {"departures": 9, "delay": 0.0}}
    }


def test_rows_that_expire_go_on_expiring(place):
    """Their expiry comes along, and the table is known to have such rows."""
    wal, url = f"file://{place}/wal", f"sqlite://{place}/store"
    example = Example(wal, url, "short", options=Options(key_groups=2, ttl={"aircraft": 3600}))
    example.write({"aircraft": {"a": {"carrier": "UA", "flights": 1}}})
    example.close()
    with contextlib.closing(open_store(url, "short")) as store:
        manifest = export(store, store.identity(), 1, place / "x")
        stored = store.get_stored_one(ReadAt("aircraft", 1), b"a")
    assert manifest.tables["aircraft"].expires
    run(place, "import", place / "x", namespace="copy")
    with contextlib.closing(open_store(url, "copy")) as store:
        assert store.get_stored_one(ReadAt("aircraft", 1), b"a") == stored
        assert store.catalog()[0].tables["aircraft"].expires is True


# -- what is refused ------------------------------------------------------------------------------


def test_a_row_that_a_store_cannot_hold_ends_the_import_i10(tmp_path):
    """It was set aside in the imported `_quarantine`, silently. An expiry is not counted."""
    folder = tmp_path / "x"
    options = Options(key_groups=4, ttl={"notes": 3600})
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", "a", options=options)
    example.schemas["_quarantine"] = quarantine.SCHEMA
    row = dict.fromkeys(["key", "value", "key_bytes", "value_bytes"]) | {"table": "t", "cause": "c"}
    example.write({"notes": {b"k": b"x" * 50}, "_quarantine": {"id": row}})
    example.write({"notes": {b"l": b"x" * 51}})
    for version in (1, 2):
        export(example.driver.store, example.driver.store.identity(), version, folder / f"{version}")
    example.close()
    b = driver_at(new_place())
    b.store.value_bytes_max = 50  # as Cassandra's has 15 MiB
    manifest, digest = read_whole(folder / "1")
    assert import_rows(b, folder / "1", manifest, digest).version == 1
    manifest, digest = read_whole(folder / "2")
    told = "table notes, key b'l': its value takes 51 bytes, 50 are allowed; nothing was decided"
    with pytest.raises(BadRecordError, match=told):
        import_rows(b, folder / "2", manifest, digest)
    assert b.store.pointer().visible == b.folded.last_version == 1


def test_an_export_takes_a_folder_of_its_own(place):
    folder, _ = exported(place)
    assert "is not empty" in run(place, "export", folder, wal=False, code=2)
    assert "no table 'x'" in run(place, "export", place / "y", "--table", "x", wal=False, code=2)
    assert "version 9 is not visible yet" in run(place, "export", place / "y", "--at", "9", wal=False, code=2)
    file = place / "file"
    file.write_text("")
    assert "cannot be written: File exists; give another" in run(place, "export", file, wal=False, code=2)


def test_two_exports_at_the_same_time_do_not_share_a_folder(place, monkeypatch):
    """Each ended well, and the manifest was that of the last one alone."""
    example = Example(f"file://{place}/wal", f"sqlite://{place}/store", options=Options(key_groups=4))
    example.write(BATCHES[0])
    example.close()
    write, texts = export_module._write, []

    def meanwhile(folder, *given):
        texts.append(run(place, "export", folder, "--table", "legs", wal=False, code=2))
        return write(folder, *given)

    monkeypatch.setattr(export_module, "_write", meanwhile)
    run(place, "export", place / "e", "--table", "aircraft", wal=False)
    assert len(texts) == 1
    assert "another export is being written there; give a new folder" in texts[0]
    run(place, "export", place / "e", "--table", "legs", wal=False, code=2)


def test_tables_that_a_file_system_does_not_tell_apart_are_not_exported_over_each_other(place, monkeypatch):
    """Some fold upper and lower case: the folders of ``legs`` and ``LEGS`` are one there."""
    example = Example(f"file://{place}/wal", f"sqlite://{place}/store", options=Options(key_groups=4))
    example.schemas["LEGS"] = SCHEMAS["legs"]
    example.write({"LEGS": {("EWR", 1): {"dest": "IAH"}}})
    example.close()
    monkeypatch.setattr(
        "tidegate.committers.exports.export.place_of",
        lambda folder, table, at: place_of(folder, table.lower(), at),
    )
    told = run(place, "export", place / "exported", wal=False, code=2)
    assert "legs is the same name as one that differs in upper and lower case alone" in " ".join(told.split())
    assert not (place / "exported" / MANIFEST).exists()


def test_a_version_that_is_gone_cannot_be_exported(place):
    with contextlib.closing(open_store(f"sqlite://{place}/store", "flights")) as store:
        store.announce(3)
        with pytest.raises(SnapshotExpiredError):
            export(store, store.identity(), 1, place / "x")
    assert not (place / "x").exists()


@pytest.mark.parametrize(
    "how", ["flip", "cut", "gone", "no manifest", "no json", "newer", "rows", "columns", "none"]
)
def test_what_is_not_whole_is_refused_before_anything_is_written_i10(place, how):
    folder, _ = exported(place)
    damage(folder, how)
    error = ConfigError if how in ("no manifest", "newer") else CorruptError
    message = run(place, "import", folder, "--yes", code=error.exit_code)
    assert message.startswith(f"tidegate: {error.__name__}: {folder}")
    assert message.count("\n") == 1
    assert tidegate.connect(f"sqlite://{place}/store", "flights").version() == 3
    if how not in ("rows", "columns", "none"):  # they show while it is staged only, before the decision
        run(place, "import", folder, code=error.exit_code, namespace="new")
        with pytest.raises(ConfigError, match="no namespace"):
            tidegate.connect(f"sqlite://{place}/store", "new")


def damage(folder, how):
    file, manifest = folder / "table=legs" / "part-00000.parquet", folder / "manifest.json"
    if how == "flip":
        bytes_of = bytearray(file.read_bytes())
        bytes_of[100] ^= 1
        file.write_bytes(bytes_of)
    elif how == "cut":
        os.truncate(file, 100)
    elif how == "gone":
        file.unlink()
    elif how == "no manifest":
        manifest.unlink()
    elif how == "no json":
        manifest.write_text("{")
    else:
        told = json.loads(manifest.read_text())
        if how == "newer":
            told["format"] = 3
        elif how in ("columns", "none"):  # a file put there by hand, and its checksum into the manifest
            if how == "columns":
                pq.write_table(pq.read_table(file).drop_columns("value"), file)
            else:
                file.write_bytes(b"PAR1, but no Parquet: PAR1")
            there = checksum_of(file)
            told["tables"]["legs"]["files"][0].update(bytes=there.bytes, checksum=there.checksum)
        else:
            told["tables"]["legs"]["files"][0]["rows"] += 1
        manifest.write_text(json.dumps(told))


def test_the_manifest_cannot_lead_out_of_its_folder_t49(place):
    folder, _ = exported(place)
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"legs"', '"../legs"'))
    assert "../legs" in run(place, "import", folder, "--yes", code=2)


def test_exported_files_are_plain_parquet(place):
    folder, _ = exported(place, "--at", "1")
    rows = pq.read_table(folder / "table=airports" / "part-00000.parquet").sort_by("key").to_pylist()
    assert rows[0]["key"] == b"EWR"
    assert json.loads(rows[0]["value"][1:]) == {"departures": 1, "delay": 2.0}
    assert not (folder / "table=notes").exists()


# -- without rows or tables ----------------------------------------------------------------------------


def test_a_table_without_rows_is_exported_and_imported(tmp_path):
    driver = opened(new_place(), 1)
    commit(driver, barrier_of(driver, 1, {b"%d" % key: None for key in range(20)}))
    folder = tmp_path / "exported"
    manifest = export(driver.store, driver.store.identity(), 2, folder)
    assert manifest.tables["t"].files == ()
    other = driver_at(new_place())
    whole, token = read_whole(folder)
    imported = import_rows(other, folder, whole, token)
    assert (imported.version, imported.new) == (1, True)
    again = import_rows(other, folder, whole, token)
    assert (again.version, again.new) == (1, False)
    assert other.last_decided == 1


def test_an_export_without_tables_is_nothing_to_import(tmp_path):
    manifest = {"namespace": "n", "uuid": "u", "version": 1, "digest": "d", "decided_at_us": 1}
    content = json.dumps({**manifest, "key_groups": 4, "tables": {}, "format": 1})
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ConfigError, match="holds no table, so there is nothing to import"):
        read_whole(tmp_path)
