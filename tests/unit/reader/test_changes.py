"""The rows that a version wrote, from the log: `Gate.changes` and `tidegate changes`."""

import json

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tidegate
from tidegate.cli import app
from tidegate.committers import barrier
from tidegate.committers.steps.retire import retire_up_to
from tidegate.errors import ConfigError, CorruptError, WalGapError
from tidegate.options import Options
from tidegate.reader import changes
from tidegate.sinks.records import ReadAt
from tidegate.sinks.rules.layout import Stored, pack
from tidegate.testing.example import BATCHES, Example, write_flights
from tidegate.wal import fold
from tidegate.wal.file.log import FileLog
from tidegate.wal.manifest import Step
from tidegate.wal.record import Column, TableSchema


class World:
    """A namespace in files, whose frames are small."""

    def __init__(self, root, name="flights", **options):
        self.wal, self.store = f"file://{root}/wal", f"sqlite://{root}/store"
        self.example = Example(
            self.wal,
            self.store,
            name,
            options=Options(key_groups=8, frame_bytes=64 * 1024, **options),
        )

    def gate(self, name="flights", **given):
        return tidegate.connect(self.store, name, **{"wal": self.wal, **given})


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.example.close()


@pytest.fixture
def flights(world):
    for rows in BATCHES:
        world.example.write(rows)
    return world


def told(rows):
    return sorted((row.kind, row.key, row.value) for row in rows)


def test_a_version_gives_the_rows_that_it_wrote_upserts_and_deletes_apart(flights):
    with flights.gate() as gate:
        assert told(gate.changes(1, "legs")) == [
            ("upsert", ("EWR", 1545), {"dest": "IAH"}),
            ("upsert", ("LGA", 1714), {"dest": "IAH"}),
        ]
        assert told(gate.changes(3, "aircraft")) == [("delete", "N24211", None)]
        assert told(gate.changes(2, "notes")) == [("upsert", b"\x00\x01", b"plain bytes")]
        written = gate.changes(2, "airports")
        assert (written.row_count, written.emptied, written.version) == (1, False, 2)
        assert written.decided_at == next(v.decided_at for v in gate.history() if v.version == 2)
        assert told(gate.changes(2, "legs")) == []


def test_the_key_groups_of_a_version_are_a_partition_of_its_rows(world):
    rows = {f"N{number}": {"carrier": "UA", "flights": number} for number in range(200)}
    world.example.write({"aircraft": rows})
    with world.gate() as gate:
        parts = [list(gate.changes(1, "aircraft", group)) for group in range(gate.key_groups)]
        for group, part in enumerate(parts):
            assert {row.key_group for row in part} <= {group}
        assert sorted(row.key for part in parts for row in part) == sorted(rows)
        assert sum(map(len, parts)) == gate.changes(1, "aircraft").row_count == 200


def test_one_key_group_costs_the_frames_that_contain_it(world, monkeypatch):
    rows = {f"N{number}": {"carrier": "UA" * 600, "flights": number} for number in range(400)}
    world.example.write({"aircraft": rows})
    read, blobs = [], FileLog.read
    with world.gate() as gate:
        whole, one = gate.changes(1, "aircraft"), gate.changes(1, "aircraft", 3)
        monkeypatch.setattr(FileLog, "read", lambda log, asked: read.extend(asked) or blobs(log, asked))
        assert len(list(whole)) == 400
        frames = len(read)
        read.clear()
        assert {row.key_group for row in one} == {3}
    assert 0 < len(read) < frames / 2


def test_a_table_of_arrow_has_the_columns_of_that_version(flights):
    flights.example.schemas["airports"] = TableSchema(
        (Column("origin", "string"),), (*flights.example.schemas["airports"].value, Column("city", "string"))
    )
    flights.example.write(
        {"airports": {"BOS": {"departures": 1, "delay": 0.5, "city": "Boston"}, "EWR": None}}
    )
    with flights.gate() as gate:
        old, new = gate.changes(2, "airports").to_arrow(), gate.changes(4, "airports").to_arrow()
        assert old.column_names == ["origin", "departures", "delay", "_change_type", "_key_group"]
        by_key = {row["origin"]: row for row in new.to_pylist()}
        assert [by_key["BOS"][name] for name in ("city", "_change_type")] == ["Boston", "upsert"]
        assert [by_key["EWR"][name] for name in ("departures", "city", "_change_type")] == [
            None,
            None,
            "delete",
        ]
        assert gate.changes(2, "notes").to_arrow()["note"].to_pylist() == [b"plain bytes"]
        assert gate.changes(2, "legs").to_arrow().num_rows == 0


def test_a_version_that_readers_can_no_longer_read_is_still_in_the_log(tmp_path):
    world = World(tmp_path, keep_versions=1)
    for rows in BATCHES:
        world.example.write(rows)
    driver = world.example.driver
    retire_up_to(driver.log, driver.store, driver.folded, driver.options, lambda: False)
    with world.gate() as gate:
        assert [info.version for info in gate.history()] == [3]
        assert told(gate.changes(2, "aircraft")) == [("upsert", "N14228", {"carrier": "UA", "flights": 2})]
    world.example.close()


def test_a_version_that_the_fold_no_longer_keeps_is_found_in_the_log(flights, monkeypatch):
    monkeypatch.setattr(fold, "RECENT_MAX", 2)
    with flights.gate() as gate:
        assert len(list(gate.changes(1, "aircraft"))) == 2


def test_a_version_that_emptied_its_table_says_so(flights):
    flights.example.write({"airports": {}}, frozenset({"airports"}))
    with flights.gate() as gate:
        written = gate.changes(4, "airports")
        assert (written.emptied, list(written)) == (True, [])


def test_each_refusal_names_its_cause_and_a_next_step(flights):
    flights.example.write({}, drops=frozenset({"legs"}))
    with (
        tidegate.connect(flights.store, "flights") as gate,
        pytest.raises(ConfigError, match="connect with wal="),
    ):
        gate.changes(1, "airports")
    with flights.gate() as gate:
        for version, table, group, message in [
            (0, "airports", None, "version is 0; it must be a whole number"),
            (9, "airports", None, r"version 9 .* is not visible yet, .* is 4: .* gate.wait_for\(9\)"),
            (
                1,
                "runways",
                None,
                "no table 'runways' at version 1 .* the tables there are: aircraft, airports, legs",
            ),
            (1, "notes", None, "no table 'notes' at version 1"),
            (4, "legs", None, "no table 'legs' at version 4 .*; version 4 dropped it"),
            (1, "airports", 8, "key_group is 8; namespace flights has the key groups 0 to 7"),
            (1, "airports", True, "key_group is True"),
        ]:
            with pytest.raises(ConfigError, match=message):
                gate.changes(version, table, group)


def test_a_version_whose_frames_were_trimmed_is_refused(flights, tmp_path):
    with flights.gate() as gate:
        rows = gate.changes(1, "airports")
        for segment in (tmp_path / "wal").rglob("*.seg"):
            segment.unlink()
        with pytest.raises(
            WalGapError, match=r"version 1 wrote are no longer in log .*: read a later version"
        ):
            next(rows)
        assert rows.closed
        with pytest.raises(WalGapError, match="version 1 wrote are no longer in log"):
            gate.changes(1, "airports")


def test_a_decision_that_was_trimmed_is_refused(flights, monkeypatch):
    with flights.gate() as gate:
        monkeypatch.setattr("tidegate.reader.decided_log.decided_versions", lambda *_: iter(()))
        with pytest.raises(WalGapError, match="its decision was trimmed"):
            gate.changes(1, "airports")


def test_a_log_of_another_namespace_or_history_is_refused(flights, tmp_path):
    write_flights(f"file://{tmp_path}/other", f"sqlite://{tmp_path}/others")
    with (
        flights.gate(wal=f"file://{tmp_path}/other") as gate,
        pytest.raises(ConfigError, match="the store is of"),
    ):
        gate.changes(1, "airports")
    with (
        flights.gate(wal=f"file://{tmp_path}/none") as gate,
        pytest.raises(ConfigError, match="holds nothing"),
    ):
        gate.changes(1, "airports")
    with flights.gate() as gate:
        gate.version()
        pointer = gate._reader.store.pointer
        gate._reader.store.pointer = lambda: msgspec.structs.replace(pointer(), visible=4, digest="another")
        flights.example.write({"airports": {"BOS": {"departures": 1, "delay": 0.5}}})
        with pytest.raises(CorruptError, match="two histories"):
            gate.changes(1, "airports")


def test_a_decided_version_that_is_not_visible_is_not_shown(flights, monkeypatch):
    """I1: what is not visible as a whole is not shown in part."""
    monkeypatch.setattr(
        flights.example.driver.store, "publish", lambda *_: (_ for _ in ()).throw(RuntimeError)
    )
    with pytest.raises(RuntimeError):
        flights.example.write({"airports": {"BOS": {"departures": 1, "delay": 0.5}}})
    with flights.gate() as gate, pytest.raises(ConfigError, match=r"version 4 .* is not visible yet"):
        gate.changes(4, "airports")


def test_an_alias_reads_the_log_of_the_namespace_that_it_names(tmp_path):
    wal, store = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    write_flights(wal, store, "blue", alias="live")
    with tidegate.connect(store, "live", wal=wal) as gate:
        rows = gate.changes(3, "aircraft")
        write_flights(wal, store, "green", alias="live")
        assert gate.changes(1, "legs").namespace == "green"
        assert told(rows) == [("delete", "N24211", None)]


def test_a_row_that_had_expired_when_it_was_decided_is_a_delete(world):
    row = pack(Stored(b'{"carrier":"UA","flights":1}', expiry_us=1))
    view = changes.TableView(
        "log", ReadAt("aircraft", 1, at_us=2), 8, changes.values_of(world.example.schemas["aircraft"])
    )
    (found,) = changes._decoded(view, 0, [b"N1"], pa.array([row]))
    assert (found.kind, found.value) == ("delete", None)


# -- the steps of a version ---------------------------------------------------------------------------

STEPS = (
    Step("reduce.airports", "reduce", ("airports",), 2, 7, 300, 0.25, 1),
    Step("sessions", "update", ("aircraft", "legs"), 2, 3, 40, 1.5, 2),
)


@pytest.fixture
def stepped(world, monkeypatch):
    """A namespace whose first version has no steps, as of an earlier release."""
    world.example.write(BATCHES[0])
    monkeypatch.setattr(barrier, "_steps", lambda *_: STEPS)
    world.example.write(BATCHES[1])
    return world


def test_a_version_has_the_steps_of_its_manifest(stepped):
    with stepped.gate() as gate:
        assert (gate.job(1), gate.job(2)) == ((), STEPS)
        with pytest.raises(ConfigError, match="is not visible yet"):
            gate.job(3)


def test_history_prints_the_steps_of_each_version(stepped, tmp_path):
    lines = [line.split("\t") for line in run(stepped, "--steps", command="history").splitlines()]
    assert lines == [
        ["version", "step", "tables", "tasks", "rows", "bytes", "seconds", "frames", "ties"],
        ["2", "reduce.airports", "airports", "2", "7", "300", "0.25", "1", "0"],
        ["2", "sessions", "aircraft, legs", "2", "3", "40", "1.5", "2", "0"],
    ]
    versions = json.loads(run(stepped, "--steps", "--json", command="history"))
    assert [len(one["steps"]) for one in versions] == [0, 2]
    assert versions[1]["steps"][0]["call"] == "reduce"
    for segment in (tmp_path / "wal").rglob("*manifest*"):
        segment.unlink()
    assert [one["steps"] for one in json.loads(run(stepped, "--steps", "--json", command="history"))] == [
        None,
        None,
    ]


def test_history_without_a_log_names_the_option(world, monkeypatch):
    monkeypatch.delenv("TIDEGATE_WAL", raising=False)
    world.example.write(BATCHES[0])
    given = ["history", "--steps", "--store", world.store, "--namespace", "flights"]
    done = CliRunner().invoke(app, given, prog_name="tidegate")
    assert (done.exit_code, "--steps reads the log: give --wal" in done.stderr) == (2, True)


# -- the command --------------------------------------------------------------------------------------


def run(world, *words, code=0, command="changes"):
    given = ["--store", world.store, "--wal", world.wal, "--namespace", "flights"]
    done = CliRunner().invoke(app, [command, *map(str, words), *given], prog_name="tidegate")
    assert done.exit_code == code, done.output or repr(done.exception)
    return done.stderr if code else done.stdout


def test_the_command_prints_rows_json_and_parquet(flights, tmp_path):
    lines = [json.loads(line) for line in run(flights, 3, "aircraft", "--json").splitlines()]
    (row,) = lines
    assert (row["kind"], row["key"], row["value"]) == ("delete", "N24211", None)
    assert run(flights, 3, "aircraft").splitlines() == [
        "kind\tkey group\tkey\tvalue",
        f"delete\t{row['key_group']}\tN24211\tnull",
    ]
    assert json.loads(run(flights, 3, "aircraft", "--key-group", row["key_group"], "--json")) == row
    assert run(flights, 3, "aircraft", "--key-group", (row["key_group"] + 1) % 8, "--json") == ""
    file = tmp_path / "legs.parquet"
    assert json.loads(run(flights, 1, "legs", "--parquet", file, "--json"))["rows"] == 2
    assert sorted(pq.read_table(file)["flight"].to_pylist()) == [1545, 1714]
    assert "is not visible yet" in run(flights, 9, "legs", code=2)
