"""The command line: what each command prints, where, and with which exit code."""

import importlib
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tidegate
from support.cli import done, done_json, refused, run
from tidegate.base import text as text_of
from tidegate.cli import app
from tidegate.cli.inspect import doctor, doctor_disks, doctor_servers
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import BY_NAME, ConfigError, StoreUnavailableError
from tidegate.options import Options
from tidegate.testing.example import BATCHES, LINEAGE, Example, write_flights
from tidegate.wal.record import Decided, decode_record

ROOT = Path(__file__).resolve().parents[3]
NEW = "0e9d3f5c-9f2e-4f3f-8a63-7a0f7a2c9a10"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("STORE", "WAL", "NAMESPACE"):
        monkeypatch.delenv(f"TIDEGATE_{name}", raising=False)


@pytest.fixture(scope="module")
def flights(tmp_path_factory):
    """Options of the example's namespace in files; tests only read here."""
    root = tmp_path_factory.mktemp("flights")
    write_flights(f"file://{root}/wal", f"sqlite://{root}/store")
    return options_for(root)


def options_for(root, namespace="flights"):
    return [f"--store=sqlite://{root}/store", f"--wal=file://{root}/wal", f"--namespace={namespace}"]


def readers_only(options):
    return [option for option in options if not option.startswith("--wal")]


@pytest.fixture
def stuck(tmp_path, monkeypatch):
    """A namespace with version 1 visible and version 2 decided, not applied: its options."""
    example = Example(
        f"file://{tmp_path}/wal",
        f"sqlite://{tmp_path}/store",
        options=Options(key_groups=2, apply_deadline_s=0.01),
    )
    example.write(BATCHES[0])

    def away(stamp, chunk):
        raise StoreUnavailableError("away")

    monkeypatch.setattr(example.driver.store, "apply", away)
    with pytest.raises(StoreUnavailableError):
        example.write(BATCHES[1])
    yield types.SimpleNamespace(options=options_for(tmp_path), driver=example.driver)
    example.close()


def decisions(driver):
    return [entry.content for entry in driver.log.decisions()]


# -- reading ------------------------------------------------------------------------------------


def test_get_prints_a_value(flights):
    options = readers_only(flights)
    assert done("get", "aircraft", "N14228", *options) == "carrier\tUA\nflights\t2\n"
    assert done("get", "aircraft", "N14228", "--at", 1, *options) == "carrier\tUA\nflights\t1\n"
    assert done("get", "notes", "0x0001", *options) == "note\tplain bytes\n"
    assert done_json("get", "legs", "EWR", "1545", *options) == {
        "table": "legs",
        "key": ["EWR", 1545],
        "version": 3,
        "value": {"dest": "IAH"},
    }


def test_get_of_an_absent_key(flights):
    options = readers_only(flights)
    assert "no key N24211 at version 3" in refused(1, "get", "aircraft", "N24211", *options)
    result = run("get", "aircraft", "N24211", "--json", *options)
    assert (result.exit_code, json.loads(result.stdout)["value"]) == (1, None)
    assert done("get", "aircraft", "N24211", "--at", 2, *options)


@pytest.mark.parametrize(
    "key,message",
    [
        (["EWR"], "give 2 KEY"),
        (["EWR", "1545", "x"], "give 2 KEY"),
        (["EWR", "x"], "no int, the type of key column flight"),
    ],
)
def test_get_with_a_key_that_does_not_fit(flights, key, message):
    assert message in refused(2, "get", "legs", *key, *readers_only(flights))


def test_get_with_a_key_out_of_range(flights):
    assert "flight int" in refused(3, "get", "legs", "EWR", 2**31, *readers_only(flights))


def test_keys_are_read_by_their_types():
    from tidegate.keys.groups import encode_key
    from tidegate.values.key_text import parse_key
    from tidegate.wal.record import Column

    typed = {
        "string": (" x", b" x"),
        "binary": ("0xff00", b"\xff\x00"),
        "boolean": ("TRUE", b"true"),
        "date": ("2026-11-21", b"2026-11-21"),
        "tinyint": ("-5", b"-5"),
        "decimal(10,2)": ("1.5", b"1.50"),
    }
    for kind, (text, encoded) in typed.items():
        value = parse_key("t", [text], [Column("k", kind)])
        assert encode_key([value], [kind]) == encoded
    for kind, text in {"binary": "0xf", "boolean": "yes", "date": "21.11.", "decimal(3,1)": "x"}.items():
        with pytest.raises(tidegate.ConfigError, match=re.escape(kind)):
            parse_key("t", [text], [Column("k", kind)])


def test_scan_prints_rows(flights):
    options = readers_only(flights)
    heading, *rows = done("scan", "airports", *options).splitlines()
    assert heading == "origin\tdepartures\tdelay"
    assert sorted(rows) == ["EWR\t2\t1.5", "JFK\t1\t-1.0", "LGA\t1\t4.0"]
    lines = done("scan", "airports", "--at", 1, "--json", *options).splitlines()
    assert sorted(map(json.loads, lines), key=lambda row: row["key"]) == [
        {"key": "EWR", "value": {"departures": 1, "delay": 2.0}},
        {"key": "LGA", "value": {"departures": 1, "delay": 4.0}},
    ]
    assert len(done("scan", "airports", "--limit", 1, "--json", *options).splitlines()) == 1
    assert done("scan", "notes", *options) == "id\tnote\n\\x00\\x01\tplain bytes\n"


def test_history_lists_versions(flights):
    options = readers_only(flights)
    heading, *rows = done("history", *options).splitlines()
    assert heading.startswith("version\tfrom\tdecided")
    assert [row.split("\t")[:2] for row in rows] == [["1", "batch 0"], ["2", "batch 1"], ["3", "batch 2"]]
    (last,) = done_json("history", "--limit", 1, *options)
    assert (last["version"], last["batch"], last["changes"]) == (3, 2, {"aircraft": 1, "airports": 1})
    tasks = heading.split("\t").index("tasks")
    assert [row.split("\t")[tasks] for row in rows] == [str(last["parallelism"])] * 3


def test_key_groups_shows_herons_figures():
    """Its review: 2,000 partitions on 900 instances 50 % more, 10,000 9.1 %."""
    asked = ["key-groups", "--parallelism", 900, "--parallelism", 1000]
    assert done(*asked, "--key-groups", 10_000).splitlines() == [
        "tasks\tkey groups each\ttasks with one more\timbalance",
        "900\t11\t100\t9.1 %",
        "1000\t10\t0\t0.0 %",
    ]
    (half, _) = done_json(*asked, "--key-groups", 2_000)
    assert half == {
        "key_groups": 2_000, "parallelism": 900, "smallest": 2, "with_one_more": 200, "imbalance": 0.5
    }  # fmt: skip


@pytest.mark.parametrize(
    "arguments", [["--key-groups", 100_000, "--parallelism", 7], ["--key-groups", 0, "--parallelism", 1]]
)
def test_key_groups_refuses_what_no_namespace_can_have(arguments):
    refused(ConfigError.exit_code, "key-groups", *arguments)


@pytest.mark.parametrize(
    "arguments,code,message",
    [
        (["get", "planes", "N1"], 2, "tables there are: aircraft, airports, legs, notes"),
        (["scan", "planes"], 2, "tables there are"),
        (["get", "aircraft", "N1", "--at", "4"], 2, "not visible yet"),
    ],
)
def test_what_is_not_there_is_said(flights, arguments, code, message):
    assert message in refused(code, *arguments, *readers_only(flights))


def test_a_retired_version_has_its_exit_code(tmp_path):
    example = Example(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store", options=Options(key_groups=2))
    for rows in BATCHES:
        example.write(rows)
    example.driver.store.announce(3)
    example.close()
    options = readers_only(options_for(tmp_path))
    assert "version 2" in refused(11, "get", "airports", "EWR", "--at", 2, *options)


@pytest.mark.parametrize("command", [["status"], ["history"], ["get", "t", "k"], ["scan", "t"], ["recover"]])
def test_an_unknown_namespace_says_where_it_looked_and_makes_nothing(tmp_path, command):
    options = options_for(tmp_path, "nowhere")
    if command[0] in ("history", "get", "scan"):
        options = readers_only(options)
    message = refused(2, *command, *options)
    assert "nowhere" in message
    assert str(tmp_path) in message
    assert "tidegate init" in message
    assert list(tmp_path.iterdir()) == []


# -- init and status ------------------------------------------------------------------------------


def test_init_makes_a_namespace_once(tmp_path):
    options = options_for(tmp_path, "new")
    first = done_json("init", "--key-groups", 4, *options)
    assert (first["made"], first["key_groups"]) == (True, 4)
    assert done_json("init", *options) == {**first, "made": False}
    assert "was there already, with 4 key groups" in done("init", *options)
    assert "made with key_groups=4, 5 was asked for" in refused(2, "init", "--key-groups", 5, *options)
    assert "next: start a query" in done("init", *options_for(tmp_path, "newer"))
    status = done_json("status", *options)
    assert (status["visible"], status["decided"], status["lineage"], status["tables"]) == (0, 0, None, [])
    assert "none yet" in done("status", *options)
    history = run("history", *readers_only(options))
    assert (history.exit_code, history.stdout) == (0, "")
    assert "namespace new has no visible version yet" in history.stderr
    assert done_json("history", *readers_only(options)) == []
    assert "no visible version yet" in refused(2, "scan", "t", *readers_only(options))


def test_status_tells_where_log_and_store_stand(stuck):
    before = decisions(stuck.driver)
    status = done_json("status", *stuck.options)
    assert (status["decided"], status["visible"], status["lag"], status["horizon"]) == (2, 1, 1, 0)
    assert (status["epoch"], status["writer"]) == (1, stuck.driver.writer)
    assert (status["lineage"], status["last_batch"]) == (LINEAGE, 1)
    assert (status["void_records"], status["problems"], status["heartbeat_age_s"]) == (0, [], None)
    aircraft = status["tables"][0]
    assert (aircraft["name"], aircraft["key"]) == ("aircraft", {"tailnum": "string"})
    text = done("status", *stuck.options)
    assert "2 (1 not visible yet" in text
    assert "aircraft\ttailnum string\tcarrier string, flights int\tnever" in text
    stuck.driver.store.heartbeat(1)
    assert "seems to be running" in done("status", *stuck.options)
    assert decisions(stuck.driver) == before


def test_status_without_a_log_tells_what_the_store_knows(flights):
    status = done_json("status", *readers_only(flights))
    assert status["visible"] == 3
    assert "decided" not in status
    assert "not known without --wal" in done("status", *readers_only(flights))


def test_status_counts_void_records(stuck):
    decided = [c for c in decisions(stuck.driver) if isinstance(decode_record(c, "test"), Decided)]
    stuck.driver.log.append_decision(decided[0])
    status = done_json("status", *stuck.options)
    assert status["void_records"] == 1
    assert "version 1 does not follow" in status["void_reasons"][0]
    assert "void records\t1 (last: " in done("status", *stuck.options)


def test_status_of_a_log_and_a_store_that_do_not_fit(tmp_path, flights):
    root = tmp_path
    example = Example(f"file://{root}/wal", f"sqlite://{root}/store", options=Options(key_groups=2))
    example.write(BATCHES[0])
    example.close()
    wal = options_for(root)[1]
    mixed = [flights[0], wal, flights[2]]
    result = run("status", "--json", *mixed)
    assert result.exit_code == 10
    assert "check the URLs" in json.loads(result.stdout)["problems"][0]
    assert "check the URLs" in result.stderr
    missing = [f"--store=sqlite://{root}/elsewhere", wal, flights[2]]
    result = run("status", *missing)
    assert (result.exit_code, "tidegate recover" in result.stderr) == (10, True)
    assert "(2 key groups, uuid " in result.stdout  # the log knows them
    assert "None" not in result.stdout
    empty = [flights[0], f"--wal=file://{root}/elsewhere", flights[2]]
    result = run("status", *empty)
    assert (result.exit_code, "log is empty" in result.stderr) == (10, True)
    assert not (root / "elsewhere").exists()


# -- recover ----------------------------------------------------------------------------------------


def test_recover_finishes_what_was_decided(stuck):
    assert done_json("recover", *stuck.options) == {"namespace": "flights", "recovered": [2], "visible": 2}
    options = readers_only(stuck.options)
    assert done("get", "airports", "EWR", *options) == "departures\t2\ndelay\t1.5\n"
    before = decisions(stuck.driver)
    assert "nothing to recover: version 2 is visible" in done("recover", *stuck.options)
    assert done_json("recover", *stuck.options)["recovered"] == []
    assert decisions(stuck.driver) == before  # success, and nothing appended


def test_recover_refuses_while_a_writer_lives_unless_forced(stuck):
    stuck.driver.store.heartbeat(1)
    before = decisions(stuck.driver)
    message = refused(2, "recover", *stuck.options)
    assert stuck.driver.writer in message
    assert "--force" in message
    assert decisions(stuck.driver) == before
    assert "made visible: version 2; version 2 is visible now" in done("recover", "--force", *stuck.options)


def test_recover_writes_a_lost_store_anew(stuck, tmp_path):
    elsewhere = [f"--store=sqlite://{tmp_path}/elsewhere", *stuck.options[1:]]
    assert done_json("recover", *elsewhere)["recovered"] == [1, 2]
    assert done("get", "airports", "EWR", *readers_only(elsewhere)) == "departures\t2\ndelay\t1.5\n"


def test_recover_refuses_a_log_that_is_not_the_stores(stuck, flights):
    assert "does not belong to" in refused(10, "recover", flights[0], *stuck.options[1:])


@pytest.mark.parametrize("command", [("recover",), ("verify",), ("adopt", "--lineage", NEW)])
def test_a_log_that_is_gone_is_not_a_namespace_that_was_never_made_i10(flights, tmp_path, command):
    gone = [flights[0], f"--wal=file://{tmp_path}/gone", flights[2]]
    assert "restore the log" in refused(10, *command, *gone)
    assert not (tmp_path / "gone").exists()


# -- adopt ------------------------------------------------------------------------------------------


def test_adopt_by_lineage(stuck):
    text = done("adopt", "--lineage", NEW, *stuck.options)
    assert f"follows query {NEW} from now on (before: {LINEAGE})" in text
    assert "made visible first: version 2" in text
    assert done_json("status", *stuck.options)["lineage"] == NEW
    assert "already" in done("adopt", "--lineage", NEW, *stuck.options)
    back = done_json("adopt", "--lineage", LINEAGE, *stuck.options)
    assert back == {"namespace": "flights", "lineage": LINEAGE, "before": NEW, "recovered": []}


@pytest.mark.parametrize("as_url", [False, True])
def test_adopt_by_checkpoint_folder(stuck, tmp_path, as_url):
    folder = tmp_path / "check point"
    folder.mkdir()
    (folder / "metadata").write_text(json.dumps({"id": NEW}))
    given = folder.as_uri() if as_url else folder
    assert done_json("adopt", "--checkpoint", given, *stuck.options)["lineage"] == NEW


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"id": 7}', "\x00"])
def test_adopt_of_a_folder_that_is_no_checkpoint(stuck, tmp_path, content):
    assert "has started" in refused(2, "adopt", "--checkpoint", tmp_path, *stuck.options)
    (tmp_path / "metadata").write_text(content)
    assert "--lineage ID" in refused(2, "adopt", "--checkpoint", tmp_path, *stuck.options)


def test_adopt_refuses_what_cannot_be(stuck, tmp_path):
    before = decisions(stuck.driver)
    assert "either" in refused(2, "adopt", *stuck.options)
    assert "looks like" in refused(2, "adopt", "--lineage", "flights", *stuck.options)
    assert "either" in refused(2, "adopt", "--lineage", NEW, "--checkpoint", tmp_path, *stuck.options)
    assert "s3://" in refused(2, "adopt", "--checkpoint", "s3://bucket/x", *stuck.options)
    assert "no namespace" in refused(2, "adopt", "--lineage", NEW, *options_for(tmp_path, "nowhere"))
    stuck.driver.store.heartbeat(1)
    assert "--force" in refused(2, "adopt", "--lineage", NEW, *stuck.options)
    assert decisions(stuck.driver) == before
    assert done_json("adopt", "--force", "--lineage", NEW, *stuck.options)["lineage"] == NEW


def test_a_command_fences_the_writer_that_ran(stuck):
    done("recover", *stuck.options)
    stuck.driver.decisions.catch_up()
    assert stuck.driver.folded.epoch == 2
    assert open_namespace(stuck.driver, LINEAGE) == []


# -- doctor -----------------------------------------------------------------------------------------


def test_doctor_passes_here(flights, monkeypatch):
    monkeypatch.setattr(doctor, "check_java", lambda **_: doctor.Check("Java", "pass", "", ""))
    checks = {check["check"]: check["outcome"] for check in done_json("doctor", *flights)}
    assert checks.pop("pyspark") in ("pass", "warn")
    assert set(checks.values()) <= {"pass", "warn"}
    assert checks["log and store: one namespace"] == "pass"
    assert "promise at stake" in done("doctor")


def test_doctor_without_a_namespace_speaks_of_none(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "check_java", lambda **_: doctor.check_python())
    (tmp_path / "short").write_text("timeout_s=0.5\n")
    where = [
        "--store=redis://127.0.0.1:1",
        f"--store-config={tmp_path}/short",
        "--store=b=redis://127.0.0.1:1/1",
    ]
    told = run("doctor", *where, f"--store-config=b={tmp_path}/short")
    assert told.exit_code == 1
    assert told.stdout.count("store redis://127.0.0.1:1") == 2
    assert "namespace doctor" not in told.stdout


def test_a_name_that_is_not_there_is_told_with_those_that_are(tmp_path):
    write_flights(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    for number in range(11):
        done("init", "--key-groups=1", *options_for(tmp_path, f"n{number:02}"))
    near = options_for(tmp_path, "flihgts")
    for command in (["history"], ["status"], ["recover", f"--wal=file://{tmp_path}/other"], ["vacuum"]):
        words = [*readers_only(near), *command[1:]] if command[0] != "status" else near
        told = refused(2, command[0], *words)
        assert (
            "the store has flights, n00, n01, n02, n03, n04, n05, n06, n07, n08 and 2 more; did you" in told
        )
        assert "did you mean 'flights'?" in told
    assert "the store has" not in refused(2, "history", *readers_only(options_for(tmp_path / "none")))


def test_doctor_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "check_java", lambda **_: doctor.Check("Java", "pass", "", ""))
    assert "can be made below" in done("doctor", *options_for(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_doctor_fails_when_log_and_store_are_of_two_namespaces(flights, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "check_java", lambda **_: doctor.Check("Java", "pass", "", ""))
    done("init", *options_for(tmp_path))
    result = run("doctor", flights[0], *options_for(tmp_path)[1:])
    assert result.exit_code == 1
    assert "failed: log and store: one namespace" in result.stderr


@pytest.mark.parametrize("gone, found", [("log", "restore the log"), ("store", "writes it again")])
def test_doctor_fails_when_one_of_log_and_store_is_gone_i10(flights, tmp_path, monkeypatch, gone, found):
    monkeypatch.setattr(doctor, "check_java", lambda **_: doctor.Check("Java", "pass", "", ""))
    options = list(flights)
    options[gone == "log"] = options_for(tmp_path)[gone == "log"]
    result = run("doctor", "--json", *options)
    assert result.exit_code == 1
    checks = {check["check"]: check for check in json.loads(result.stdout)}
    assert checks["log and store: one namespace"]["outcome"] == "fail"
    assert found in checks["log and store: one namespace"]["found"]


def test_doctor_names_what_cannot_be_reached(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "check_java", lambda **_: doctor.Check("Java", "pass", "", ""))
    (tmp_path / "wal").write_text("a file, not a folder")
    others = [option for option in options_for(tmp_path) if not option.startswith("--store=")]
    result = run("doctor", "--json", *others, "--store=redis://user:s3cret@host")
    assert result.exit_code == 1
    outcomes = {check["check"]: check["outcome"] for check in json.loads(result.stdout)}
    assert outcomes["log: folder"] == outcomes["store: reachable"] == "fail"
    assert "s3cret" not in result.output


def _java(tmp_path, version):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    "version,spark,outcome",
    [
        ("17.0.9", True, "pass"),
        ("21", True, "pass"),
        ("11.0.2", True, "fail"),
        ("1.8.0_392", True, "fail"),
        ("11.0.2", False, "warn"),
        ("", True, "fail"),
        (None, True, "fail"),
        (None, False, "warn"),
    ],
)
def test_doctor_looks_for_java_17(tmp_path, monkeypatch, version, spark, outcome):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if version is not None:
        _java(tmp_path, version)
    check = doctor.check_java(spark_is_here=spark)
    assert check.outcome == outcome
    assert str(tmp_path) in check.found
    assert "JAVA_HOME" in check.found


def test_doctor_without_java_at_all(monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    check = doctor.check_java(spark_is_here=False)
    assert (check.outcome, "not found" in check.found) == ("warn", True)


@pytest.mark.parametrize(
    "least,below,outcome", [((1,), None, "pass"), ((999,), None, "fail"), ((1,), (2,), "fail")]
)
def test_doctor_compares_versions(least, below, outcome):
    assert doctor.check_package("pyarrow", least, below, "").outcome == outcome


def test_doctor_warns_of_a_package_that_is_not_there():
    assert doctor.check_package("no-such-package", (1,), None, "").outcome == "warn"


def test_doctor_checks_the_clock_and_the_disk(flights, tmp_path, monkeypatch):
    seen = doctor_servers.look_at(
        doctor_servers.ServerArguments(None, flights[1].removeprefix("--wal="), "flights", None, None)
    )
    assert [check.outcome for check in seen.checks] == ["pass"]
    state = seen.state

    def at(us):
        return doctor.check_clock(types.SimpleNamespace(now_us=lambda: us), state).outcome

    decided = state.decided_at_us
    assert at(decided) == "pass"
    assert at(decided - 60_000_000) == "warn"
    assert at(decided - 7_200_000_000) == "fail"
    assert at(0) == "fail"
    for free, outcome in ((0, "fail"), (5 * 10**8, "warn"), (10**12, "pass")):
        monkeypatch.setattr(
            doctor_disks.shutil, "disk_usage", lambda _, free=free: types.SimpleNamespace(free=free)
        )
        assert doctor_disks.check_disk("log", tmp_path / "not" / "there").outcome == outcome


def test_doctor_on_a_folder_below_a_file(tmp_path):
    (tmp_path / "file").touch()
    assert doctor_disks.check_writable("log", tmp_path / "file" / "wal").outcome == "fail"
    assert doctor_disks.folder_of("memory://x") is None


@pytest.mark.parametrize("option,url", [("--wal", "file://data/wal"), ("--store", "sqlite://data/store")])
def test_doctor_checks_no_folder_of_a_url_that_names_none(option, url):
    told = CliRunner().invoke(app, ["doctor", option, url], prog_name="tidegate").output
    assert "fail" in told
    assert ": folder" not in told, "/wal is not what was meant by file://data/wal"


# -- demo ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("right", [True, False])
def test_demo_calls_the_demo_and_tells_what_came_of_it(monkeypatch, tmp_path, right):
    import dataclasses

    @dataclasses.dataclass
    class Outcome:
        folder: str
        store: str
        wal: str = "file:///x"
        namespace: str = "flights"
        rows: int = 27_004
        versions: int = 31
        seconds: float = 9.5
        kills: tuple = ("day 10: somewhere",)
        recovered: tuple = (10,)
        snapshots_checked: int = 100
        versions_checked: int = 31
        torn: tuple = ()

        @property
        def right(self):
            return right

    def fake(wal, store, folder, progress, **options):
        assert options == {
            "namespace": "flights",
            "wal_options": {},
            "store_options": {},
            "allow_unsafe": False,
        }
        progress(1, "streaming; 3 snapshots checked")
        progress(1, "streaming; 4 snapshots checked")
        return Outcome(str(folder), "sqlite:///x")

    monkeypatch.setitem(sys.modules, "tidegate.demo", types.SimpleNamespace(run=fake))
    monkeypatch.setenv("TIDEGATE_STORE", "sqlite:///not/for/a/demo")
    result = run("demo", "--folder", tmp_path)
    assert result.exit_code == (0 if right else 1)
    assert ("NOT every promise held" in result.stdout) is not right
    assert "driver killed\tday 10: somewhere" in result.stdout
    assert result.stderr.count("version 1: streaming") == 1
    assert json.loads(run("demo", "--folder", tmp_path, "--json").stdout)["right"] is right


def test_demo_without_spark_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "tidegate.demo", raising=False)

    there = importlib.import_module

    def missing(name):
        if name.startswith("tidegate.demo"):
            raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
        return there(name)

    monkeypatch.setattr("importlib.import_module", missing)
    assert "pip install 'tidegate[spark]'" in refused(2, "demo")


# -- the whole ----------------------------------------------------------------------------------------


COMMANDS = [
    "demo",
    "init",
    "status",
    "history",
    "get",
    "scan",
    "recover",
    "adopt",
    "doctor",
    "key-groups",
    "diff",
    "tail",
    "restore",
    "export",
    "import",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_of_each_command(command):
    text = done(command, "--help")
    assert f"\n    tidegate {command}" in text
    assert "--json" in text
    assert len(re.findall(r"  [a-z]+ ", done("--help"))) >= len(COMMANDS)


def test_exit_codes_stand_in_help_and_in_the_docs():
    text, page = done("--help"), (ROOT / "docs" / "cli.md").read_text()
    codes = {cls.exit_code for cls in BY_NAME.values()}
    assert len(codes) == len(BY_NAME)
    for name, cls in BY_NAME.items():
        if name != "TidegateError":
            assert re.search(rf"^ *{cls.exit_code}  {name}", text, re.MULTILINE)
            assert f"| {cls.exit_code} | `{name}`" in page
    for command in COMMANDS:
        assert f"`tidegate {command}" in page


@pytest.mark.parametrize("command", [["scan", "aircraft"], ["history"]])
def test_a_pipe_that_nobody_reads_ends_it_quietly(flights, command):
    """As ``| head``: with the exit code that shells have of other programs."""
    read, write = os.pipe()
    os.close(read)
    program = [sys.executable, "-c", "from tidegate.cli import main; main()"]
    words = [*program, *command, *readers_only(flights)]
    with os.fdopen(write, "wb") as nobody:
        ended = subprocess.run(words, stdout=nobody, stderr=subprocess.PIPE, check=False, timeout=120)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_the_version():
    assert done("--version").strip() == tidegate.__version__


@pytest.mark.parametrize(
    "arguments",
    [["foo"], ["get"], ["history", "--namespace=x"], ["scan", "t", "--at", "x"], ["init", "--kg", "1"]],
)
def test_options_that_cannot_be_read(arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Error: " in result.stderr


def test_options_from_the_environment(flights, monkeypatch):
    for option in flights:
        name, _, value = option.partition("=")
        monkeypatch.setenv(f"TIDEGATE_{name.removeprefix('--').upper()}", value)
    assert done("get", "airports", "LGA") == "departures\t1\ndelay\t4.0\n"
    assert done_json("status")["lag"] == 0


def test_a_password_is_never_shown(tmp_path):
    url = "redis://user:s3cret@cache:6379/first"
    for command in (["history"], ["status"], ["init", f"--wal=file://{tmp_path}/wal"]):
        result = run(*command, f"--store={url}", "--namespace=x")
        assert result.exit_code == 2
        assert "store redis://***: the text after its servers" in result.stderr
        assert "s3cret" not in result.output


def test_on_a_terminal_results_are_tables(flights, monkeypatch, capsys):
    monkeypatch.setattr("tidegate.cli.core.output.on_terminal", lambda: True)
    monkeypatch.setattr("tidegate.cli.read.get_scan.on_terminal", lambda: True)
    for command in (["history"], ["scan", "airports"], ["get", "legs", "EWR", "1545"], ["status"]):
        text = done(*command, *readers_only(flights))
        assert "\t" not in text
        assert "─" in text or command[0] == "get"


def test_nothing_stored_steers_the_terminal():
    assert text_of.cell("\x1b[31mred\x07\t\n[bold]") == "\\x1b[31mred\\x07\\t\\n[bold]"
    assert text_of.cell(b"\x1b[31m") == "\\x1b[31m"
    assert text_of.cell({"a\x1b": [float("nan"), b"x", None]}) == '{"a\\u001b":["NaN","eA==",null]}'


SCRIPT = [sys.executable, "-c", "from tidegate.cli import main; main()"]


def run_script(*arguments, **environment):
    return subprocess.run(
        [*SCRIPT, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_as_a_process(flights):
    result = run_script("get", "airports", "LGA", "--json", *readers_only(flights), PATH="", JAVA_HOME="")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["value"] == {"departures": 1, "delay": 4.0}
    result = run_script("get", "airports", "LGA", "--at", "9", *readers_only(flights))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("tidegate: ConfigError: version 9")
    assert result.stderr.count("\n") == 1


def test_a_reader_of_the_output_may_leave_early(flights):
    command = " ".join([*map(repr, SCRIPT), "scan", "airports", "--json", *readers_only(flights), "| true"])
    done_early = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done_early.stderr
