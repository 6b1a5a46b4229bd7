"""The command doctor: what it checks here, and what it names."""

import json
import sys
import threading
import time
import types
from functools import partial

import pytest
from typer.testing import CliRunner

from support.cli import done, done_json, options_for, readers_only, refused, run
from tidegate import cli
from tidegate.cli import app
from tidegate.cli.inspect import doctor, doctor_disks, doctor_servers
from tidegate.status import look
from tidegate.status.probes import Probe
from tidegate.testing.example import write_flights


def test_doctor_passes_here(flights, monkeypatch):
    monkeypatch.setattr(doctor, "check_java", lambda **_: doctor.Check("Java", "pass", "", ""))
    checks = {check["check"]: check["outcome"] for check in done_json("doctor", *flights)}
    assert checks.pop("pyspark") in ("pass", "warn")
    assert set(checks.values()) <= {"pass", "warn"}
    assert checks["log and store: one namespace"] == checks["key groups"] == "pass"
    assert "promise at stake" in done("doctor")


def test_doctor_shows_the_problems_alone(monkeypatch):
    checks = [
        doctor.Check("one", "pass", "", ""),
        doctor.Check("two", "warn", "", ""),
        doctor.Check("three", "fail", "", ""),
    ]
    monkeypatch.setattr(doctor, "_checks", lambda *_: checks)
    result = run("doctor", "--problems")
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["check", "three", "two"]
    assert result.exit_code == 1
    del checks[1:]
    assert done("doctor", "--problems") == "no problem: 1 checks passed\n"
    assert done_json("doctor", "--problems") == []


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


@pytest.mark.parametrize("gone, found", [("log", "restore the log"), ("store", "rebuilds it from the log")])
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
    assert [(check.check, check.outcome) for check in seen.checks] == [
        ("log: reachable", "pass"),
        ("tables", "pass"),
    ]
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


def test_a_failed_check_may_be_accepted_by_its_name(tmp_path, monkeypatch):
    failed = doctor.Check("log: change-log: replication", "fail", "1 replica", "")
    monkeypatch.setattr(doctor, "_checks", lambda *_: iter([doctor.Check("a", "pass", "", ""), failed]))
    assert run("doctor").exit_code == 1
    for name in ("replication", "log: change-log: replication"):
        result = run("doctor", "--accept", name)
        assert (result.exit_code, result.stderr) == (0, "")
        assert "1 replica (accepted by --accept)" in result.stdout
    result = run("doctor", "--accept", "plication")
    assert result.exit_code == 1
    assert "--accept, name 1: no check here has it; the checks are " in result.stderr


def test_problems_are_first_and_v_shows_seconds(monkeypatch):
    checks = [doctor.Check(each, each, "", "", seconds=1.5) for each in ("pass", "warn", "fail")]
    monkeypatch.setattr(doctor, "_checks", lambda *_: iter(checks))
    lines = run("doctor", "-v").stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["check", "fail", "warn", "pass"]
    assert all(line.endswith("\t1.500") for line in lines[1:])
    assert "seconds" not in run("doctor").stdout


def test_a_server_that_is_silent_costs_one_limit(flights, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "check_java", lambda **_: doctor.Check("Java", "pass", "", ""))
    release = threading.Event()
    monkeypatch.setattr(doctor_servers, "open_store", lambda *_: release.wait(60))
    try:
        began = time.monotonic()
        also = [f"--store={name}=sqlite://{tmp_path}/{name}" for name in "bc"]
        result = run("doctor", "--limit=0.5", "--json", *flights, *also)
        assert time.monotonic() - began < 30
    finally:
        release.set()
    silent = [check for check in json.loads(result.stdout) if "no answer within 0.5 s" in check["found"]]
    assert [check["check"] for check in silent] == [
        "store: reachable",
        "b: store: reachable",
        "c: store: reachable",
    ]
    assert result.exit_code == 1


def test_a_server_that_is_away_is_named_with_its_cause(monkeypatch):
    """The usual time limits are used: doctor's own must not be over before the store's."""
    monkeypatch.setattr(doctor, "check_java", lambda **_: doctor.Check("Java", "pass", "", ""))
    result = run("doctor", "--limit=2", "--json", "--store=redis://127.0.0.1:1", "--namespace=n")
    (reached,) = [each for each in json.loads(result.stdout) if each["check"] == "store: reachable"]
    assert (reached["outcome"], "refused" in reached["found"]) == ("fail", True), reached


def test_the_time_limit_of_a_log_or_store_is_below_doctors():
    assert doctor_servers.in_time("kafka://a", {}, 10.0) == {"timeout_s": 8.0}
    assert doctor_servers.in_time("kafka://a", {"timeout_s": 30}, 1.0) == {"timeout_s": 1.0}
    assert doctor_servers.in_time("redis://a", {"timeout_s": 3}, 10.0) == {"timeout_s": 3}
    assert doctor_servers.in_time("redis://a", {"timeout_s": "3"}, 10.0) == {"timeout_s": "3"}
    assert doctor_servers.in_time("file:///a", {}, 10.0) == {}


def test_log_and_stores_are_asked_at_once(flights, tmp_path, monkeypatch):
    """Each waits until all have been asked, so one after the other would end in a BrokenBarrierError."""
    monkeypatch.setattr(doctor, "check_java", lambda **_: doctor.Check("Java", "pass", "", ""))
    all_asked = threading.Barrier(3, timeout=20)

    def waiting(opened, *arguments):
        all_asked.wait()
        return opened(*arguments)

    for module in (doctor_servers, look):
        for name in ("open_store", "open_log"):
            monkeypatch.setattr(module, name, partial(waiting, getattr(module, name)))
    stores = [f"--store=a=sqlite://{tmp_path}/store", f"--store=b=sqlite://{tmp_path}/b"]
    checks = json.loads(run("doctor", "--json", *stores, *flights[1:]).stdout)
    assert {check["check"] for check in checks} > {
        "log: reachable",
        "store: reachable",
        "b: store: reachable",
    }
    assert json.loads(run("status", "--json", *stores, *flights[1:]).stdout)["decided"] == 3


def test_the_set_up_of_a_server_that_stops_answering_is_a_failed_check(flights, monkeypatch):
    monkeypatch.setattr(doctor, "check_java", lambda **_: doctor.Check("Java", "pass", "", ""))
    release = threading.Event()
    monkeypatch.setattr(doctor_servers, "_store_set_up", lambda *_: release.wait(60) and [])
    try:
        checks = json.loads(run("doctor", "--limit=0.5", "--json", *flights).stdout)
    finally:
        release.set()
    outcomes = {check["check"]: check["outcome"] for check in checks}
    assert (outcomes["store: reachable"], outcomes["store: set-up"]) == ("pass", "fail")


def test_a_command_does_not_wait_for_a_late_probe_at_its_end(monkeypatch):
    class EndedError(Exception):
        """The end of the process."""

    def end(code):
        raise EndedError(code)

    monkeypatch.setattr(cli.os, "_exit", end)
    monkeypatch.setattr(sys, "argv", ["tidegate", "--version"])
    release = threading.Event()
    probe = Probe(lambda: release.wait(60), 0.01)
    try:
        assert probe.result(lambda why: why) == "no answer within 0.01 s"
        with pytest.raises(EndedError, match="0"):
            cli.main()
    finally:
        release.set()
