"""A table is dropped by one version: what readers, the log, upkeep and operators find from then on."""

import sqlite3
from contextlib import closing

import msgspec
import pytest
from typer.testing import CliRunner

import tidegate
from support.places import barrier_of, driver_at, new_place, opened, rows_by_table
from tidegate.cli import app
from tidegate.committers.apply.apply import read_manifest
from tidegate.committers.commit import commit
from tidegate.committers.coordinator import Coordinator
from tidegate.committers.opening.open import open_namespace
from tidegate.committers.operations.restore import restore
from tidegate.committers.operations.restore_plan import plan_restore
from tidegate.committers.operations.verify import verify
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import ConfigError, TidegateError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import ReadAt
from tidegate.sinks.sqlite import rows as sqlite_rows
from tidegate.sinks.sqlite import vacuum as sqlite_vacuum
from tidegate.testing.arrow_barrier import ArrowBarrier, batch
from tidegate.testing.example import SCHEMAS, Example
from tidegate.wal import record
from tidegate.wal.fold import View, fold_all
from tidegate.wal.manifest import encode_manifest
from tidegate.wal.open_log import open_log
from tidegate.wal.record import Column, Summary, TableSchema

AIRCRAFT = frozenset({"aircraft"})
OTHER = TableSchema((Column("hull", "bigint"), Column("line", "string")), (Column("seats", "int"),))


def plane(flights):
    return {"carrier": "UA", "flights": flights}


class Place:
    """A namespace in files with one writer."""

    def __init__(self, folder):
        self.wal, self.store = f"file://{folder}/wal", f"sqlite://{folder}/store"
        self.options = Options(key_groups=4, keep_versions=100)
        self.example = Example(self.wal, self.store, options=self.options)
        self.write = self.example.write
        self.driver = self.example.driver
        self.cli = [f"--store={self.store}", "--namespace=flights"]

    def again(self):
        """Open a new driver, as after a command."""
        self.example.close()
        self.example = Example(self.wal, self.store, options=self.options)
        self.write, self.driver = self.example.write, self.example.driver
        return self.example

    def make_again(self, rows, schema=OTHER):
        self.example.schemas["aircraft"] = schema
        return self.write({"aircraft": rows})

    def retire(self, keep_versions=1):
        options = Options(key_groups=4, keep_versions=keep_versions)
        return retire_up_to(self.driver.log, self.driver.store, self.driver.folded, options, lambda: False)

    def content(self, version=None):
        return rows_by_table(self.store, version=version)

    def sql_tables(self):
        names = set()
        for path in self.driver.store._files.folder.glob("shard-*.sqlite"):
            with closing(sqlite3.connect(path)) as connection:
                names |= {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        return {name for name in names if name.startswith("t_")}

    def faults(self):
        return verify(self.driver.log, self.driver.store).findings


@pytest.fixture
def place(tmp_path):
    """Version 1 has two tables, version 2 drops one of them and writes the other."""
    place = Place(tmp_path)
    place.write({"aircraft": {"a": plane(1), "b": plane(2)}, "notes": {b"n": b"1"}})
    place.write({"notes": {b"n": b"2"}}, drops=AIRCRAFT)
    yield place
    place.example.close()


def test_the_version_that_drops_it_and_later_ones_have_no_such_table(place):
    assert place.content(1) == {"aircraft": {"a": plane(1), "b": plane(2)}, "notes": {b"n": b"1"}}
    assert place.content(2) == {"notes": {b"n": b"2"}}
    place.write({"notes": {b"n": b"3"}})
    with tidegate.connect(place.store, "flights") as gate:
        with pytest.raises(ConfigError, match=r"there is no table 'aircraft' at version 3 .*: notes$"):
            gate.table("aircraft").get("a")
        assert gate.tables() == ["notes"]
        assert [info.dropped for info in gate.history()] == [(), ("aircraft",), ()]
    assert place.faults() == []


@pytest.mark.parametrize("between", [0, 1])
def test_its_name_is_free_from_the_next_version_on_for_another_key(place, between):
    for number in range(between):
        place.write({"notes": {b"n": b"%d" % number}})
    made = place.make_again({(7, "x"): {"seats": 9}})
    assert made == 3 + between
    assert place.content()["aircraft"] == {(7, "x"): {"seats": 9}}
    assert place.content(1)["aircraft"] == {"a": plane(1), "b": plane(2)}
    assert place.faults() == []
    place.retire()
    assert place.content()["aircraft"] == {(7, "x"): {"seats": 9}}
    assert place.faults() == []


def test_a_table_that_comes_back_with_the_same_columns_has_no_older_row(place):
    place.write({"aircraft": {"c": plane(3)}})
    assert place.content()["aircraft"] == {"c": plane(3)}
    with tidegate.connect(place.store, "flights") as gate, gate.diff(1, 3, ["aircraft"]) as changes:
        assert {(change.kind, change.key) for change in changes} == {
            ("removed", "a"),
            ("removed", "b"),
            ("added", "c"),
        }


def test_retirement_removes_its_rows_and_their_sql_tables(place):
    place.write({"notes": {b"n": b"3"}})
    assert place.sql_tables() == {"t_aircraft", "t_notes"}
    assert place.retire() == 3
    assert place.sql_tables() == {"t_notes"}
    assert place.faults() == []
    assert place.driver.store.vacuum(dry_run=True).rows == 0


def test_a_vacuum_goes_on_where_a_retirement_removes_a_dropped_table_meanwhile(place, monkeypatch):
    place.write({"notes": {b"n": b"3"}})
    place.driver.store.announce(2)
    listed, retired = sqlite_vacuum.tables_in, []

    def retired_then(connection):
        names = listed(connection)
        if not retired:
            retired.append(place.retire())
        return names

    monkeypatch.setattr(sqlite_vacuum, "tables_in", retired_then)
    with closing(open_store(place.store, "flights")) as other:
        other.vacuum()
    assert retired == [3]
    assert place.content() == {"notes": {b"n": b"3"}}


def test_a_look_for_expired_rows_goes_on_where_another_driver_removes_the_dropped_table(place, monkeypatch):
    place.make_again({(number, ""): {"seats": 0} for number in range(20)})
    place.write({"aircraft": {(number, ""): None for number in range(20)}})
    place.driver.store.announce(4)
    place.write({}, drops=AIRCRAFT)
    hidden, retired = sqlite_rows.is_hidden, []

    def retired_then(head, at_us):
        if not retired:
            retired.append(0)
            retired[0] = place.retire()
        return hidden(head, at_us)

    monkeypatch.setattr(sqlite_rows, "is_hidden", retired_then)
    with closing(open_store(place.store, "flights")) as other:
        for group in range(4):
            other._shards.drop_expired("aircraft", group, b"", 100, 4, 0)
    assert retired == [5]
    assert place.content() == {"notes": {b"n": b"2"}}


def test_an_open_store_notices_that_a_table_is_gone_and_there_again(place):
    """One process reads and applies, another retires: neither may remember a table that was dropped."""
    with closing(open_store(place.store, "flights")) as other:
        assert len(other.get_many(ReadAt("aircraft", 1), [b"a"])) == 1
        place.retire()
        place.make_again({(7, "x"): {"seats": 9}})
        for group in range(4):
            list(other.scan(ReadAt("aircraft", 3, 2), group))
        entry = place.driver.store.catalog(3, 3)[0]
        assert entry.tables["aircraft"].start == 2


def test_a_table_dropped_and_made_again_each_version_keeps_nothing(place):
    place.make_again({(0, ""): {"seats": 0}})
    for number in range(4, 14):
        if number % 2:
            place.write({"aircraft": {(number, ""): {"seats": number}}})
        else:
            place.write({}, drops=AIRCRAFT)
        place.retire(2)
    assert place.content() == {"notes": {b"n": b"2"}, "aircraft": {(13, ""): {"seats": 13}}}
    counts = {(row.table, row.version) for row in place.driver.store.row_counts(["aircraft", "notes"])}
    assert counts == {("aircraft", 13), ("notes", 2)}
    assert place.faults() == []


@pytest.mark.parametrize("made_again", [False, True], ids=["dropped", "made again with another key"])
def test_a_restore_brings_a_dropped_table_back_whole(place, made_again):
    if made_again:
        place.make_again({(7, "x"): {"seats": 9}})
    place.example.close()
    driver = Coordinator(
        Endpoints("flights", place.wal, place.store),
        open_log(place.wal, "flights"),
        open_store(place.store, "flights"),
    )
    assert restore(driver, plan_restore(driver, 1)).made == 3 + made_again
    assert place.content() == place.content(1)
    if made_again:
        assert place.content(3)["aircraft"] == {(7, "x"): {"seats": 9}}
    assert verify(driver.log, driver.store).findings == []
    driver.store.close()
    driver.log.close()


def test_history_and_tail_show_the_drop(place):
    shown = CliRunner().invoke(app, ["history", *place.cli])
    assert "notes 1, aircraft dropped" in shown.output
    printed = CliRunner().invoke(app, ["tail", *place.cli, "--after", "1", "--limit", "1"])
    kinds = [tuple(line.split("\t")[1:3]) for line in printed.stdout.splitlines()]
    assert sorted(kinds) == [
        ("changed", "notes"),
        ("end", "3 changes"),
        ("removed", "aircraft"),
        ("removed", "aircraft"),
    ]


def ran(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def test_an_alias_reads_the_version_without_it_and_then_the_new_one(place):
    ran("alias", "set", "live", *place.cli)
    with tidegate.connect(place.store, "live") as gate:
        table = gate.table("aircraft")
        with pytest.raises(ConfigError, match=r"there is no table 'aircraft' at version 2"):
            table.get("a")
        with gate.snapshot(version=1) as snapshot:
            place.make_again({(7, "x"): {"seats": 9}})
            place.write({}, drops=AIRCRAFT)
            place.make_again({"a": plane(9)}, SCHEMAS["aircraft"])
            assert snapshot.table("aircraft").get("b") == plane(2)
        assert dict(table.scan()) == {"a": plane(9)}


def test_an_export_has_the_tables_of_its_version_and_an_import_brings_one_back(place, tmp_path):
    for version in (1, 2):
        ran("export", tmp_path / f"v{version}", "--at", version, *place.cli)
    assert sorted(path.name for path in (tmp_path / "v2").iterdir()) == ["manifest.json", "table=notes"]
    place.write({"notes": {b"n": b"3"}})
    place.retire()
    place.driver.store.end_heartbeat(place.driver.epoch)
    ran("import", tmp_path / "v1", f"--wal={place.wal}", "--yes", *place.cli)
    with closing(place.again()):
        assert place.content() == {"aircraft": {"a": plane(1), "b": plane(2)}, "notes": {b"n": b"1"}}
        assert place.faults() == []


def test_a_diff_across_another_key_names_keys_of_each_version_by_its_own_columns(place):
    place.make_again({(7, "x"): {"seats": 9}})
    with tidegate.connect(place.store, "flights") as gate, gate.diff(1, 3, ["aircraft"]) as changes:
        assert {(change.kind, change.key) for change in changes} == {
            ("removed", "a"),
            ("removed", "b"),
            ("added", (7, "x")),
        }


# -- the log ------------------------------------------------------------------------------------------


def test_only_records_that_know_of_a_drop_have_its_fields(place):
    entries = list(place.driver.log.decisions())
    decided = record.decode_record(entries[-1].content, "here")
    assert (decided.dropped, sorted(decided.tables)) == (("aircraft",), ["notes"])
    assert b"dropped" not in entries[-2].content
    state = fold_all(View(), entries).state
    assert state.dropped_at == state.first_start == 2
    summary = Summary(**place.driver.decisions.header(), state=state)
    content = record.encode_record(summary)
    assert record.decode_record(content, "here") == summary


def test_no_manifest_drops_a_table_that_it_has(place):
    decided = place.driver.folded.recent[-1]
    manifest = read_manifest(place.driver.log, decided)
    assert manifest.dropped == ("aircraft",)
    with pytest.raises(TidegateError, match="it drops table notes and has it"):
        encode_manifest(msgspec.structs.replace(manifest, dropped=("notes",)))


def test_dropped_tables_leave_their_room_to_others(write):
    names = [f"{number:020}" for number in range(660)]
    write(names)
    write([], drops=frozenset(names[:100]))
    write([f"later-{number:014}" for number in range(100)])
    with pytest.raises(ConfigError, match="has 660 tables"):
        write([f"more-{number:015}" for number in range(100)])


@pytest.fixture
def write(place_name):
    driver = driver_at(place_name)
    open_namespace(driver, "q")

    def write_tables(tables, drops=frozenset()):
        number = driver.folded.last_version
        rows = {table: {b"k": b"v"} for table in tables}
        return commit(driver, ArrowBarrier(driver.log, rows, batch("q", number), 4, drops=drops))

    return write_tables


@pytest.fixture
def place_name():
    return new_place()


def test_another_driver_that_only_has_the_summary_gives_the_name_no_older_row(place_name):
    """The log was cut behind the drop: the next driver knows it from the Summary alone."""
    driver = opened(place_name, summary_every=1)
    commit(driver, ArrowBarrier(driver.log, {}, batch("q", 1), 4, drops=frozenset({"t"})))
    commit(driver, ArrowBarrier(driver.log, {"u": {}}, batch("q", 2), 4))
    summary = [entry for entry in driver.log.decisions() if b'"kind":"summary"' in entry.content][-1]
    driver.log.trim_decisions(summary.position)
    later = driver_at(place_name)
    open_namespace(later, "q")
    commit(later, barrier_of(later, 3, {b"new": b"1"}))
    (entry,) = later.store.catalog(4, 4)
    assert entry.tables["t"].start == 2
    assert later.store.get_many(ReadAt("t", 4, 2), [b"0", b"new"]).to_pylist() == [None, b"1"]
