"""Tables that only make sense together (T67, I13): due times and their queue, local states and their lists.

No command leaves one without the other, whatever command made the version before it; and verify finds it.
"""

import contextlib

import pytest

import tidegate
from support.cli import done, run
from support.places import rows_by_table
from support.rekeyed import NEW, RekeyedPlace, queue_of
from tidegate.committers import barrier
from tidegate.committers.operations.restore import restore
from tidegate.committers.operations.restore_plan import plan_restore
from tidegate.committers.operations.verify import verify
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import ConfigError
from tidegate.keys.groups import decode_key
from tidegate.options import Options
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import ReadAt
from tidegate.testing.example import SCHEMAS, Example
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Column, TableSchema
from tidegate.wal.staging import own_tables
from tidegate.wal.staging.due_queue import TIMES

CARRIER = {"carrier": "UA", "flights": 1}
ITEMS = TableSchema(own_tables.ITEM_KEY, (Column("value", "binary"),), "bytes")


@pytest.fixture
def copy(tmp_path):
    """A namespace with due times that was moved to other key groups; the version before its last one."""
    place = RekeyedPlace(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    place.due = {key: due.queued_us for key, due in place.write_all_kinds().items()}
    place.finish()
    place.old.close()
    with tidegate.connect(place.store, NEW) as gate:
        place.version = gate.version() - 1
        assert "_due_at.aircraft" not in gate.snapshot(version=place.version).side().entry.tables
    assert found(place) == []
    return place


def found(place, namespace=NEW):
    store, log = open_store(place.store, namespace), open_log(place.wal, namespace)
    with contextlib.closing(store), contextlib.closing(log):
        return verify(log, store).findings


@pytest.mark.parametrize("place", ["store", "log"])
def test_a_restore_to_before_the_queue_makes_it(copy, place):
    """The copy of a rekey has no queue before its last version; without one no key ever times out."""
    example = copy.writer(NEW)
    driver = example.driver
    example.schemas["_due.aircraft"] = TableSchema(SCHEMAS["aircraft"].key, own_tables.DUE_COLUMNS)
    example.schemas["_due_at.aircraft"] = own_tables.QUEUE_SCHEMA
    gone = dict.fromkeys([*copy.due][:5])
    example.write({"aircraft": gone, "_due.aircraft": gone, "_due_at.aircraft": {(0, *TIMES): None}})
    if place == "log":
        retire_up_to(driver.log, driver.store, driver.folded, Options(keep_versions=1), lambda: False)
    plan = plan_restore(driver, copy.version)
    assert bool(plan.first) is (place == "log")
    assert [change.version for change in plan.undone] == [copy.version + 2]
    restore(driver, plan)
    example.close()
    assert queue_of(copy) == copy.due
    assert found(copy) == []


def test_a_backup_from_before_the_queue_is_restored_with_one(tmp_path, monkeypatch):
    """As of a copy that was not whole yet."""
    timed = Timed(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(barrier, "_refuse_parted", lambda *_: None)
        timed.write(dues("N1", "N2", "N3"))
    words = ["--store", timed.store, "--wal", timed.wal, "--namespace", "flights"]
    done("backup", tmp_path / "backup", *words)
    timed.write({"aircraft": {"N4": CARRIER}, "_due_at.aircraft": {}})
    timed.example.close()
    done("drop", "--only-stores", "--yes", "--force", *words)
    run("restore-from", tmp_path / "backup", "--to", "1", "--yes", *words)
    assert rows_by_table(timed.store)["aircraft"].keys() == {"N1", "N2", "N3"}
    assert found(timed, "flights") == []


@pytest.mark.parametrize("key_groups", [32, 12])
def test_an_export_from_before_the_queue_is_imported_with_one(copy, tmp_path, key_groups):
    words = ["--store", copy.store, "--namespace"]
    done("export", tmp_path / "folder", "--at", copy.version, *words, NEW)
    done("import", tmp_path / "folder", "--key-groups", key_groups, *words, "other", "--wal", copy.wal)
    assert rows_by_table(copy.store, "other") == rows_by_table(copy.store, NEW)
    with contextlib.closing(open_store(copy.store, "other")) as store:
        (entry,) = store.catalog(1, 1)
        assert "_due_at.aircraft" in entry.tables
    assert found(copy, "other") == []


def test_a_companion_is_exported_with_all_of_them(copy, tmp_path):
    for table in ("aircraft", "_due.aircraft", "_due_at.aircraft"):
        done("export", tmp_path / table, "--table", table, "--store", copy.store, "--namespace", NEW)
        assert {each.name for each in (tmp_path / table).glob("table=*")} == {
            "table=aircraft",
            "table=_due.aircraft",
            "table=_due_at.aircraft",
        }


def test_remembered_deletes_take_the_key_groups_of_their_table(tmp_path):
    """Of the table that is there, whatever they had where they were exported."""
    wal, store = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    deleted = TableSchema(SCHEMAS["airports"].key, (Column("lsn", "bigint"),))
    keys = [f"A{number}" for number in range(40)]
    for namespace, key_groups in (("few", {"airports": 2}), ("all", None)):
        example = Example(wal, store, namespace, options=Options(key_groups=8, table_key_groups=key_groups))
        example.schemas["_deleted.airports"] = deleted
        rows = {"airports": {key: {"departures": 1, "delay": 0.5} for key in keys}}
        rows |= {"_deleted.airports": {key: {"lsn": 5} for key in keys}} if key_groups else {}
        example.write(rows)
        example.close()
    done("export", tmp_path / "folder", "--store", store, "--namespace", "few")
    done("import", tmp_path / "folder", "--yes", "--store", store, "--wal", wal, "--namespace", "all")
    with tidegate.connect(store, "all") as gate:
        assert gate.table("_deleted.airports").get_many(keys) == {key: {"lsn": 5} for key in keys}


# -- the check -------------------------------------------------------------------------------------


class Timed:
    """A namespace whose version has due times, a queue, and a local state of two instances."""

    def __init__(self, folder):
        self.wal, self.store = f"file://{folder}/wal", f"sqlite://{folder}/store"
        self.example = Example(self.wal, self.store, options=Options(key_groups=4))
        self.example.schemas |= {
            "_due.aircraft": TableSchema(SCHEMAS["aircraft"].key, own_tables.DUE_COLUMNS),
            "_due_at.aircraft": own_tables.QUEUE_SCHEMA,
            "_local": own_tables.INSTANCES_SCHEMA,
            "_local.top": ITEMS,
        }

    def write(self, rows, **how):
        return self.example.write(rows, **how)


@pytest.fixture
def timed(tmp_path):
    return Timed(tmp_path)


def dues(*keys):
    of_key = {"due_us": 9, "queued_us": 7}
    return {"aircraft": dict.fromkeys(keys, CARRIER), "_due.aircraft": dict.fromkeys(keys, of_key)}


@pytest.mark.parametrize(
    "rows,parted",
    [
        (dues("N1"), "_due.aircraft"),
        ({"_due_at.aircraft": {}}, "_due_at.aircraft"),
        ({"_local": {}}, "_local"),
        ({"_local.top": {}}, "_local.top"),
    ],
)
def test_no_version_has_one_without_the_other(timed, rows, parted):
    before = timed.write({"aircraft": {"N0": CARRIER}})
    with pytest.raises(ConfigError, match=f"table {parted} would be without its companion.*; nothing was"):
        timed.write(rows)
    assert timed.example.driver.folded.last_version == before
    timed.write({"_local": {}, "_local.top": {}, "_due.aircraft": {}, "_due_at.aircraft": {}})
    with pytest.raises(ConfigError, match="would be without"):
        timed.write({}, drops=frozenset(rows) - {"aircraft"})
    timed.write({}, drops=frozenset(["_local", "_local.top", "_due.aircraft", "_due_at.aircraft"]))


def test_verify_finds_keys_that_are_not_in_the_queue_and_the_import_queues_them(timed, tmp_path):
    timed.write(dues("N1", "N2", "N3") | {"_due_at.aircraft": {}})
    findings = found(timed, "flights")
    assert {finding.expected for finding in findings} == {"the keys of _due.aircraft at their times"}
    assert "stop the query, then `tidegate export FOLDER --table aircraft`" in findings[0].found
    words = ["--store", timed.store, "--namespace", "flights"]
    done("export", tmp_path / "folder", "--table", "aircraft", *words)
    run("import", tmp_path / "folder", "--yes", "--force", "--wal", timed.wal, *words)
    assert found(timed, "flights") == []
    with contextlib.closing(open_store(timed.store, "flights")) as store:
        pages = store.scan_groups(ReadAt("_due_at.aircraft", 2, 2), range(4))
        types = own_tables.QUEUE_SCHEMA.key_types
        keys = [decode_key(key, types) for _, rows in pages for key in rows["key"].to_pylist()]
    assert sum(due_us == TIMES[0] for _, due_us, _ in keys) == len(keys) / 2
    row = next(tuple(key) for key in keys if key[1] != TIMES[0])
    timed = Timed(tmp_path)
    timed.write({"_due_at.aircraft": {row: None}})
    (finding,) = found(timed, "flights")
    assert f"such as row {row}" in finding.found


@pytest.mark.parametrize(
    "rows,words",
    [
        ({}, None),
        ({"_local.top": {(1, 0): None}}, "1 of 2 items of instance 1"),
        ({"_local.top": {(1, 2): b"x"}}, "1 items of no list"),
        ({"_local": {("top", 1): None}}, "2 items of no list; no row of instance 1 of 2"),
        ({"_local": {("top", 0): None}}, "no row of instance 0"),
        ({"_local": {("top", 1): {"items": 2, "parallelism": 3}}}, "one of 3"),
    ],
)
def test_verify_finds_lists_without_their_items(timed, rows, words):
    lists = {("top", at): {"items": at + 1, "parallelism": 2} for at in range(2)}
    timed.write({"_local": lists, "_local.top": {(0, 0): b"a", (1, 0): b"b", (1, 1): b"c"}})
    if rows:
        timed.write(rows)
    findings = found(timed, "flights")
    assert (words is None) == (findings == [])
    if words:
        assert words in findings[0].found
        assert "tidegate restore --to VERSION" in findings[0].found
