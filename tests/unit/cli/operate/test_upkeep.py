"""The commands that check, clean and end a namespace: verify, vacuum, drop, doctor's room."""

import contextlib
import importlib
import json
import shutil
import sqlite3

import pytest

from support.cli import done, options_for, readers_only, refused, run
from support.places import silence_writer
from tidegate.base import failpoints, files
from tidegate.base.clock import Clock
from tidegate.cli.inspect import doctor, doctor_disks
from tidegate.errors import StoreUnavailableError, WalGapError
from tidegate.sinks.open_store import open_store
from tidegate.sinks.rules.leases import Lease
from tidegate.sinks.sqlite import drop
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.testing.example import Example, write_flights
from tidegate.wal.file.log import FileLog
from tidegate.wal.fold import View, fold_all
from tidegate.wal.open_log import open_log


@pytest.fixture
def options(tmp_path):
    """The example's namespace in files of its own, its writer long gone."""
    write_flights(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    silence_writer(tmp_path / "store")
    return options_for(tmp_path)


def in_shards(root, statement):
    for path in sorted((root / "store" / "flights").glob("shard-*.sqlite")):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            with contextlib.suppress(sqlite3.OperationalError):
                connection.execute(statement)
            connection.commit()


# -- verify ---------------------------------------------------------------------------------------


def test_verify_finds_nothing(options):
    assert done("verify", *options).startswith("nothing wrong: versions 1 to 3, 11 changes in ")
    report = json.loads(done("verify", "--json", *options))
    assert (report["findings"], report["notes"], report["visible"], report["changes"]) == ([], [], 3, 11)


def test_verify_names_what_is_wrong_and_exits_14(options, tmp_path):
    in_shards(tmp_path, "UPDATE t_airports SET value = CAST('+{}' AS BLOB) WHERE version = 3")
    result = run("verify", *options)
    assert result.exit_code == 14
    heading, finding = result.stdout.splitlines()
    assert heading == "where\texpected\tfound"
    assert "shard-" in finding
    assert "version 3, key group" in finding
    assert "table airports, key 'JFK'" in finding
    result = run("verify", "--json", *options)
    assert result.exit_code == 14
    (finding,) = json.loads(result.stdout)["findings"]
    assert set(finding) == {"where", "expected", "found"}


def test_verify_of_a_log_that_cannot_be_read(options, tmp_path):
    path = tmp_path / "wal" / "flights" / "decisions.log"
    content = bytearray(path.read_bytes())
    content[60] ^= 1
    path.write_bytes(content)
    result = run("verify", *options)
    assert result.exit_code == 14
    assert str(path) in result.stdout


# -- vacuum -----------------------------------------------------------------------------------------


def test_vacuum_says_what_would_go_and_what_went(options):
    options = readers_only(options)
    store = open_store(options[0].removeprefix("--store="), "flights")
    store.announce(3)
    store.close()
    would = json.loads(done("vacuum", "--dry-run", "--json", *options))
    assert (would["dry_run"], would["horizon"], would["entries"]) == (True, 3, 2)
    assert would["rows"] == 4  # aircraft N14228@1, N24211@1 and its marker, airports EWR@1
    assert done("vacuum", "--dry-run", *options).startswith("would go: 4 rows")
    assert {part["contents"] for part in would.pop("usage")} >= {"rows and notes"}
    gone = json.loads(done("vacuum", "--json", *options))
    assert gone == {**would, "dry_run": False}
    nothing = done("vacuum", *options)
    assert nothing.startswith("gone: 0 rows, notes of 0 ")
    assert "rows and notes\tnot known\t" in nothing


def test_a_vacuum_that_frees_nothing_in_a_full_store_ends_with_the_findings(options, monkeypatch):
    """Its way out is in the list: a lease that holds versions, smaller options, other files."""
    options = readers_only(options)
    with contextlib.closing(open_store(options[0].removeprefix("--store="), "flights")) as store:
        store.lease(Lease("slow-reader", 1), 600.0)
    monkeypatch.setattr(SqliteStore, "used_shares", lambda _: {"disk": 1.0})
    result = run("vacuum", *options)
    assert result.exit_code == StoreUnavailableError.exit_code
    assert "version 1, held by leases: slow-reader for " in result.stdout
    assert "close these snapshots and scans" in result.stdout
    assert "is full (100% used), and there is nothing to drop" in result.stderr
    assert done("get", "airports", "EWR", *options) == "departures\t2\ndelay\t1.5\n"


def test_an_import_that_a_restore_has_undone_comes_again_under_another_token(options, tmp_path):
    """It was "imported before", with exit code 0, and its rows were not there."""
    folder = tmp_path / "export"
    done("export", folder, *readers_only(options))
    again = ["import", folder, *options, "--yes", "--token"]
    done(*again, "first")
    assert "was imported before as version 4" in done(*again, "first")
    done("restore", "--to=3", "--yes", *options)
    message = refused(2, *again, "first")
    assert "imported as version 4, which version 5 has undone, a restore: nothing was written" in message
    assert "version 6 of namespace flights is visible" in done(*again, "second")


def test_an_import_that_ended_before_its_version_was_visible_is_completed_by_the_next_one(options, tmp_path):
    """It said "imported before", with exit code 0, and readers had no row of it."""
    folder, copy = tmp_path / "export", [*options[:-1], "--namespace=copy"]
    done("export", folder, *readers_only(options))
    failpoints.arm("publish.before=raise")
    assert run("import", folder, "--yes", *copy).exit_code != 0
    failpoints.arm(None)
    told = done("import", folder, "--yes", "--force", *copy)
    assert "made visible first: version 1" in told
    assert "was imported before as version 1" in told
    assert done("get", "airports", "EWR", *readers_only(copy)) == "departures\t2\ndelay\t1.5\n"
    assert "made visible" not in done("import", folder, "--yes", *copy)


# -- drop -------------------------------------------------------------------------------------------


def test_drop_needs_yes_where_nobody_can_be_asked(options, tmp_path):
    assert "--yes" in refused(2, "drop", *options)
    assert done("get", "airports", "EWR", *readers_only(options))
    text = done("drop", "--yes", *options)
    assert text.startswith("namespace flights is gone")
    assert [*(tmp_path / "store").glob("[!.]*"), *(tmp_path / "wal").iterdir()] == []
    assert "no namespace 'flights'" in refused(2, "drop", "--yes", *options)


def test_drop_asks_for_the_name_on_a_terminal(options, monkeypatch):
    monkeypatch.setattr(importlib.import_module("tidegate.cli.operate.drop"), "_is_terminal", lambda: True)
    result = run("drop", *options, typed="flight\n")
    assert result.exit_code == 2
    assert "nothing was removed" in result.stderr
    result = run("drop", "--json", *options, typed="flights\n")
    assert result.exit_code == 0
    answer = result.stdout.splitlines()[-1]  # before it the runner echoes what was typed
    assert json.loads(answer) == {"namespace": "flights", "store": True, "log": True}


def test_drop_refuses_while_a_writer_lives_unless_forced(options):
    store = open_store(options[0].removeprefix("--store="), "flights")
    store.heartbeat(1)
    store.close()
    assert "--force" in refused(2, "drop", "--yes", *options)
    assert "is gone" in done("drop", "--yes", "--force", *options)


def test_drop_of_a_damaged_store_needs_force(options, tmp_path):
    (tmp_path / "store" / "flights" / "meta.sqlite").write_bytes(b"no SQLite file at all" * 500)
    assert "damaged" in refused(14, "drop", "--yes", *options)
    assert "is gone" in done("drop", "--yes", "--force", *options)
    assert list((tmp_path / "store").glob("[!.]*")) == []


def test_drop_with_another_log_removes_nothing_unless_forced(options, tmp_path):
    """A mistyped log has nothing of any namespace; ``tidegate relog`` leaves such a store, too."""
    elsewhere = [*readers_only(options), f"--wal=file://{tmp_path}/mistyped"]
    message = refused(2, "drop", "--yes", *elsewhere)
    assert "shows version 3" in message
    assert "check --wal; nothing was removed" in message
    assert done("verify", *options)
    alone = refused(2, "drop", "--only-stores", "--yes", *elsewhere)
    assert "shows version 3" in alone
    forced = message.partition("`tidegate ")[2].partition("`")[0].split()
    assert "is gone" in done(*forced, "--yes", *elsewhere)


def test_drop_of_two_namespaces_of_one_name_is_refused_forced_or_not(options, tmp_path):
    """Two environments have the same names: the log is the other one's."""
    other = tmp_path / "other"
    write_flights(f"file://{other}/wal", f"sqlite://{other}/store", "flights")
    mixed = [*readers_only(options), f"--wal=file://{other}/wal", "--yes"]
    for force in ([], ["--force"]):
        assert "has another namespace flights than" in refused(2, "drop", *mixed, *force)
    assert "shows version 3" in refused(2, "drop", "--only-stores", *mixed)
    for words in (["backup", str(tmp_path / "backup")], ["rekey", "--to=m", "--key-groups=4"]):
        assert "does not belong to the" in refused(WalGapError.exit_code, *words, *mixed[:-1])
    assert done("verify", *options)
    assert "is gone" in done("drop", "--only-stores", "--force", *mixed)
    assert done("verify", *options_for(other))


def test_drop_leaves_other_namespaces_alone(options, tmp_path):
    write_flights(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", "flights-2")
    done("drop", "--yes", *options)
    assert done("verify", *options_for(tmp_path, "flights-2"))


@pytest.mark.parametrize(
    "cut", ["before the store is gone", "between store and log", "before the log is gone"]
)
def test_a_drop_cut_short_is_finished_by_the_next_and_refused_or_remade_until_then(
    options, tmp_path, monkeypatch, cut
):
    """A crash leaves no half of a namespace to be read."""

    def dies(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if cut == "before the store is gone":
            patch.setattr(drop, "remove_folder", dies)
        elif cut == "between store and log":
            patch.setattr(FileLog, "drop", dies)
        else:
            plain = shutil.rmtree
            patch.setattr(
                files.shutil,
                "rmtree",
                lambda path: dies() if path.match("*/wal/*") and path.exists() else plain(path),
            )
        assert run("drop", "--yes", *options).exit_code != 0
    assert "no namespace" in refused(2, "get", "airports", "EWR", *readers_only(options))
    if cut == "before the log is gone":
        assert not list(open_log(f"file://{tmp_path}/wal", "flights").decisions())
    else:  # the log is whole: whoever opens it writes the store anew, whole
        remade = run("recover", *options)
        assert (remade.exit_code, "it is rebuilt, with versions" in remade.stderr) == (0, True)
        assert done("get", "airports", "EWR", *readers_only(options)) == "departures\t2\ndelay\t1.5\n"
        silence_writer(tmp_path / "store")
    assert "is gone" in done("drop", "--yes", *options)
    assert [*(tmp_path / "store").glob("[!.]*"), *(tmp_path / "wal").iterdir()] == []


def test_drop_with_a_wrong_store_does_not_take_the_log_alone(options, tmp_path):
    """A typing error in --store would leave a store that nobody can go on with."""
    wrong = [f"{given}-typo" if given.startswith("--store=") else given for given in options]
    assert wrong != options
    assert "check --store" in refused(2, "drop", "--yes", *wrong)
    assert done("get", "airports", "EWR", *readers_only(options))
    assert "nothing was there" in done("drop", "--yes", "--force", *wrong)


def test_drop_takes_no_log_of_one_namespace_with_the_store_of_another(options, tmp_path):
    """Two namespaces of one name: their uuids differ."""
    Example(f"file://{tmp_path}/other-wal", f"sqlite://{tmp_path}/other").close()
    other = [f"--wal=file://{tmp_path}/other-wal" if each.startswith("--wal=") else each for each in options]
    assert other != options
    assert "check --wal and --store; nothing was removed" in refused(2, "drop", "--yes", *other)
    assert done("get", "airports", "EWR", *readers_only(options))
    assert (tmp_path / "other-wal").exists()


# -- doctor -------------------------------------------------------------------------------------------


def lines_of_doctor(monkeypatch, options):
    monkeypatch.setattr(doctor, "check_java", lambda **_: doctor.Check("Java", "pass", "", ""))
    return {check["check"]: check for check in json.loads(done("doctor", "--json", *options))}


def test_doctor_tells_sizes_leases_and_room(options, monkeypatch):
    lines = lines_of_doctor(monkeypatch, options)
    assert "store" in lines["size"]["found"]
    assert lines["oldest lease"]["found"] == "no reader holds a version"
    assert "a day by the last 3 versions" in lines["log: room"]["found"]
    store = open_store(options[0].removeprefix("--store="), "flights")
    store.lease(Lease("reader", 1), 60)
    store.close()
    line = lines_of_doctor(monkeypatch, options)["oldest lease"]
    assert line["outcome"] == "pass"
    assert "version 1, 2 behind" in line["found"]


def test_a_lease_held_too_long_is_a_warning(options, monkeypatch):
    class Past(Clock):
        def now_us(self):
            return super().now_us() - 3_600_000_000

    url = options[0].removeprefix("--store=")
    for clock in (Past(), None):
        store = open_store(url, "flights", None, clock)
        store.lease(Lease("reader", 1), 7_200)
        store.close()
    assert lines_of_doctor(monkeypatch, options)["oldest lease"]["outcome"] == "warn"


def test_the_forecast_warns_in_time(options):
    log = open_log(options[1].removeprefix("--wal="), "flights")
    state = fold_all(View(), log.decisions()).state
    assert doctor_disks.check_forecast(log, state, 10**18).outcome == "pass"
    assert doctor_disks.check_forecast(log, state, 1).outcome == "warn"


def test_what_cannot_be_told_is_left_out(options, monkeypatch):
    def away(*_):
        raise StoreUnavailableError("away")

    def trimmed(*_, **__):
        raise WalGapError("trimmed")

    monkeypatch.setattr("tidegate.sinks.sqlite.store.SqliteStore.leases", away)
    monkeypatch.setattr(doctor_disks, "read_manifest", trimmed)
    lines = lines_of_doctor(monkeypatch, options)
    assert "size" in lines
    assert "oldest lease" not in lines
    assert "log: room" not in lines
