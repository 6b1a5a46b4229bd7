"""What the commands say of a log that lives on servers: doctor, status, --allow-unsafe, the demo."""

import dataclasses
import datetime
import importlib
import json
import sys
import types
import uuid

import pytest

from support.cli import ended, refused, run
from tidegate.base.checks import Check
from tidegate.cli.inspect import doctor
from tidegate.demo import run as demo_run  # the function
from tidegate.errors import ConfigError, CorruptError, StoreUnavailableError, WalUnavailableError
from tidegate.options import Options
from tidegate.options.endpoints import Endpoints
from tidegate.status import log_size, look
from tidegate.status.log_size import LogFacts, deadline_of
from tidegate.testing.example import BATCHES, LINEAGE, Example
from tidegate.wal.log import LogSize
from tidegate.wal.memory_log import MemoryLog, forget
from tidegate.wal.record import BatchOrigin, DecidedVersion, Folded

PASSED = Check("cleanup", "pass", "delete", "nothing decided is lost (I10)")
WARNED = Check("in sync", "warn", "2 replicas of 3", "the stream continues when a broker is down")
FAILED = Check("replication", "fail", "1 replica; give it 3", "durable before acknowledged (I3)")
DAY_S = 86_400.0


class ServersLog(MemoryLog):
    """A log in memory that says of itself what a test wants it to."""

    found: tuple = ()
    retention: object = None
    sized: object = LogSize(1500, 3 * 1024**2)

    def checks(self):
        return list(_told(self.found))

    def retention_s(self):
        return _told(self.retention)

    def size(self):
        return _told(self.sized)


def _told(what):
    if isinstance(what, Exception):
        raise what
    return what


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setattr(doctor, "check_java", lambda **_: Check("Java", "pass", "", ""))
    for module in ("cli.inspect.doctor_servers", "status.look"):  # no host has the name of the broker
        monkeypatch.setattr(importlib.import_module(f"tidegate.{module}"), "nobody_at", lambda _: "")


@pytest.fixture
def log(monkeypatch):
    """The class of the logs that commands open at kafka:// URLs, to be told what to say."""

    class Log(ServersLog):
        name = uuid.uuid4().hex

    def opened(url, namespace, options=None):
        assert url == "kafka://broker:9092"
        return Log(Log.name, namespace)

    for module in (
        "committers.operations.local_coordinator",
        "status.look",
        "cli.inspect.doctor_servers",
        "testing.example",
    ):
        monkeypatch.setattr(importlib.import_module(f"tidegate.{module}"), "open_log", opened)
    yield Log
    forget(Log.name)


@pytest.fixture
def options(tmp_path):
    return [f"--store=sqlite://{tmp_path}/store", "--wal=kafka://broker:9092", "--namespace=flights"]


@pytest.fixture
def stuck(log, tmp_path, monkeypatch):
    """Version 1 is visible, version 2 is decided and not applied: their example."""
    example = Example(
        "kafka://broker:9092",
        f"sqlite://{tmp_path}/store",
        options=Options(key_groups=2, apply_deadline_s=0.01),
    )
    example.write(BATCHES[0])

    def away(*_):
        raise StoreUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(example.driver.store, "apply", away)
        with pytest.raises(StoreUnavailableError):
            example.write(BATCHES[1])
    yield example
    example.close()


def done_json(*arguments):
    return json.loads(ended(0, *arguments, "--json").stdout)


# -- doctor -----------------------------------------------------------------------------------------


def doctor_lines(options):
    result = run("doctor", "--json", *options)
    lines = json.loads(result.stdout)
    return result, {line["check"]: line for line in lines}, [line["check"] for line in lines]


def test_doctor_has_a_line_for_each_check_of_the_log(log, options):
    log.found = (PASSED, WARNED)
    result, lines, order = doctor_lines(options)
    assert (result.exit_code, result.stderr) == (0, "")
    at = order.index("log: reachable")
    assert order[at + 1 : at + 3] == ["log: cleanup", "log: in sync"]
    assert lines["log: in sync"] == {**WARNED._asdict(), "check": "log: in sync"}
    assert not any("folder" in name or "disk" in name for name in order if name.startswith("log"))
    assert "store: disk" in order


def test_doctor_fails_with_the_log_and_names_the_promise(log, options):
    log.found = (PASSED, FAILED)
    result = run("doctor", *options)
    assert result.exit_code == 1
    assert "log: replication\tfail\t1 replica; give it 3\tdurable before acknowledged (I3)" in result.stdout
    assert result.stderr == "tidegate: failed: log: replication\n"
    assert "log and store: one namespace\tpass" in result.stdout


def test_doctor_of_a_log_that_does_not_answer_goes_on_with_the_rest(log, options, monkeypatch):
    asked = []

    def away(*_):
        asked.append(1)
        raise WalUnavailableError("no broker answered within 2 s")

    monkeypatch.setattr(log, "decisions", away)
    monkeypatch.setattr(log, "checks", away)
    result, lines, order = doctor_lines(options)
    assert result.exit_code == 1
    assert lines["log: reachable"]["outcome"] == "fail"
    assert "kafka://broker:9092: no broker answered" in lines["log: reachable"]["found"]
    assert lines["store: reachable"]["outcome"] == lines["clock"]["outcome"] == "pass"
    assert not {"log: set-up", "log and store: one namespace"} & set(order)
    assert len(asked) == 1  # a second question would wait for another timeout


def test_doctor_of_a_damaged_log_still_says_how_it_is_set_up(log, options, monkeypatch):
    def damaged(*_):
        raise CorruptError("offset 7")

    monkeypatch.setattr(log, "decisions", damaged)
    log.found = (PASSED,)
    _, lines, _ = doctor_lines(options)
    assert (lines["log: reachable"]["outcome"], lines["log: cleanup"]["outcome"]) == ("fail", "pass")


def test_doctor_when_only_the_settings_cannot_be_asked_for(log, options):
    log.found = WalUnavailableError("not allowed to see the topic's settings")
    result, lines, _ = doctor_lines(options)
    assert result.exit_code == 1
    assert (lines["log: reachable"]["outcome"], lines["log: set-up"]["outcome"]) == ("pass", "fail")
    assert "not allowed" in lines["log: set-up"]["found"]


def test_doctor_without_a_namespace_says_that_it_needs_one(log, options):
    log.found = (FAILED,)
    result, lines, _ = doctor_lines(options[:2])
    assert (result.exit_code, lines["log: reachable"]["outcome"]) == (0, "warn")
    assert "give --namespace" in lines["log: reachable"]["found"]
    assert "log: replication" not in lines


def test_doctor_without_a_namespace_still_looks_at_the_url():
    result, lines, _ = doctor_lines(["--wal=kafkaesque://user:s3cret@broker"])
    assert (result.exit_code, lines["log: reachable"]["outcome"]) == (1, "fail")
    assert "is not a URL of a log" in lines["log: reachable"]["found"]
    assert "s3cret" not in result.output


def test_doctor_without_a_namespace_at_a_folder(tmp_path):
    result, lines, _ = doctor_lines([f"--wal=file://{tmp_path}/wal"])
    assert (result.exit_code, "log: folder" in lines, "log: reachable" in lines) == (0, True, False)


# -- status -----------------------------------------------------------------------------------------


def at(monkeypatch, example, *, after_s):
    """Now is so long after version 2 was decided."""
    decided_us = example.driver.folded.recent[1].decided_at_us
    now_us = decided_us + round(after_s * 1e6)
    monkeypatch.setattr(look, "Clock", lambda: types.SimpleNamespace(now_us=lambda: now_us))
    return datetime.datetime.fromtimestamp(decided_us / 1e6, datetime.timezone.utc)


def test_status_shows_the_logs_size_and_that_nothing_is_lost_by_age(stuck, options):
    facts = done_json("status", *options)
    assert (facts["log_decisions_bytes"], facts["log_changelog_bytes"]) == (1500, 3 * 1024**2)
    assert (facts["log_retention_s"], facts["apply_before"]) == (None, None)
    assert (facts["problems"], facts["warnings"]) == ([], [])
    result = run("status", *options)
    assert "log size\tdecision log 1.5 KiB, change-log 3.0 MiB\n" in result.stdout
    assert "log keeps\tnothing is lost by age\n" in result.stdout
    assert result.stderr == ""


def test_status_of_files_knows_them_too(tmp_path):
    options = [f"--store=sqlite://{tmp_path}/s", f"--wal=file://{tmp_path}/w", "--namespace=n"]
    run("init", *options)
    facts = done_json("status", *options)
    assert facts["log_decisions_bytes"] > 0 == facts["log_changelog_bytes"]
    assert "nothing is lost by age" in run("status", *options).stdout


def test_status_tells_the_deadline_of_the_oldest_version_that_waits_t18(stuck, options, log, monkeypatch):
    log.retention = 7 * DAY_S
    decided = at(monkeypatch, stuck, after_s=DAY_S)
    facts = done_json("status", *options)
    assert facts["log_retention_s"] == 7 * DAY_S
    before = datetime.datetime.fromisoformat(facts["apply_before"].replace("Z", "+00:00"))
    assert before - decided == datetime.timedelta(days=7)
    assert facts["warnings"] == facts["problems"] == []
    result = run("status", *options)
    assert f"log keeps\t7 days; version 2 must be applied before {before:%Y-%m-%d %H:%M:%S}" in result.stdout
    assert (result.exit_code, result.stderr) == (0, "")


def test_status_warns_when_the_deadline_is_near_t18(stuck, options, log, monkeypatch):
    log.retention = DAY_S
    at(monkeypatch, stuck, after_s=0.9 * DAY_S - 60)
    assert done_json("status", *options)["warnings"] == []
    at(monkeypatch, stuck, after_s=0.95 * DAY_S)
    facts = done_json("status", *options)
    assert facts["problems"] == []
    assert "version 2" in facts["warnings"][0]
    result = run("status", *options)
    assert result.exit_code == 0
    assert result.stderr.startswith("tidegate: warning: version 2 is decided and not visible")
    assert "in 72 min, at " in result.stderr
    assert "tidegate recover" in result.stderr


def test_status_fails_when_the_deadline_has_passed_t18(stuck, options, log, monkeypatch):
    log.retention = DAY_S
    at(monkeypatch, stuck, after_s=DAY_S)
    result = run("status", "--json", *options)
    facts = json.loads(result.stdout)
    assert (result.exit_code, facts["warnings"], len(facts["problems"])) == (10, [], 1)
    assert "may have forgotten it since" in facts["problems"][0]
    assert facts["problems"][0] in result.stderr


def test_status_with_nothing_waiting_has_no_deadline(stuck, options, log, monkeypatch):
    run("recover", *options)
    log.retention = 1.0
    at(monkeypatch, stuck, after_s=DAY_S)
    facts = done_json("status", *options)
    assert (facts["log_retention_s"], facts["apply_before"]) == (1.0, None)
    assert "log keeps\t1 s; nothing waits" in run("status", *options).stdout


def test_status_goes_on_when_size_or_retention_cannot_be_read(stuck, options, log):
    log.sized = WalUnavailableError("broker 2 is away")
    log.retention = WalUnavailableError("not allowed to look")
    facts = done_json("status", *options)
    assert [facts[name] for name in ("log_decisions_bytes", "log_changelog_bytes", "log_retention_s")] == [
        None,
        None,
        None,
    ]
    assert facts["warnings"] == [
        "the log's size is not known: broker 2 is away",
        "the log's retention is not known: not allowed to look",
    ]
    result = run("status", *options)
    assert result.exit_code == 0
    assert "log size\tnot known: broker 2 is away" in result.stdout
    assert "log keeps\tnot known: not allowed to look" in result.stdout


def _folded(first, last):
    facts = tuple(
        DecidedVersion(v, f"a{v}", BatchOrigin(LINEAGE, 0, v, "f"), v - 1, "m", "d", v * 1_000_000, "g")
        for v in range(first, last + 1)
    )
    return Folded("u", "n", 8, "d", last_version=last, recent=facts)


def test_a_deadline_without_the_versions_time_is_that_of_the_oldest_known():
    """Of versions that wait, the fold remembers the last 1,000."""
    facts = LogFacts(None, 100.0)
    assert deadline_of(facts, _folded(1, 5), 1, 0).left_s == 102.0
    assert deadline_of(facts, _folded(4, 5), 1, 0).left_s == 104.0
    assert deadline_of(facts, _folded(4, 5), 1, 0).version == 2
    assert deadline_of(facts, _folded(1, 5), 5, 0) is None
    assert deadline_of(facts, None, 0, 0) is None
    assert deadline_of(LogFacts(None, (2**63 - 1) / 1000), _folded(1, 5), 1, 0) is None


def test_spans_are_told_in_their_unit():
    spans = [log_size.span(seconds) for seconds in (1, 119, 120, 7_200, 86_400, 7 * 86_400, 200_000)]
    assert spans == ["1 s", "119 s", "2 min", "2 h", "24 h", "7 days", "2.3 days"]


# -- allow_unsafe -------------------------------------------------------------------------------------

WRITERS = [["init"], ["recover", "--force"], ["adopt", "--force", "--yes", f"--lineage={uuid.UUID(int=7)}"]]


@pytest.mark.parametrize("command", WRITERS)
def test_a_writer_is_refused_on_an_unsafe_log_and_may_be_told_to_go_on(stuck, options, log, command):
    log.found = (PASSED, WARNED, FAILED)
    before = list(stuck.driver.log.decisions())
    result = run(*command, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "replication: 1 replica; give it 3 (at stake: durable before acknowledged (I3))" in result.stderr
    assert list(stuck.driver.log.decisions()) == before
    result = run(*command, *options, "--allow-unsafe", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["namespace"] == "flights"
    told = result.stderr.splitlines()
    assert [line.startswith("tidegate: warning: ") for line in told] == [True, True]  # each thing once
    assert [name in line for name, line in zip(("in sync", "replication"), told, strict=True)] == [True, True]


def test_what_does_not_open_as_a_writer_is_not_refused(stuck, options, log):
    log.found = (FAILED,)
    for command in (["status"], ["verify"], ["drop", "--yes", "--force"]):
        result = run(*command, *options)
        assert (result.exit_code, result.stderr) == (0, ""), result.output


def test_drop_takes_nothing_while_the_log_does_not_answer(stuck, options, log, monkeypatch):
    """Else a wrong password would cost the store, which a trimmed log cannot give back."""

    def away(*_):
        raise WalUnavailableError("no broker answered")

    with monkeypatch.context() as patch:
        patch.setattr(log, "decisions", away)
        patch.setattr(log, "drop", away)
        result = run("drop", "--yes", *options)
        assert result.exit_code == 6, result.output
    facts = done_json("status", *options)
    assert (facts["visible"], facts["decided"]) == (1, 2)


# -- demo ---------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Outcome:
    wal: str
    namespace: str
    log_removed: bool
    folder: str = "/kept"
    store: str = "sqlite:///kept/store"
    rows: int = 27_004
    versions: int = 31
    seconds: float = 9.5
    kills: tuple = ("day 10: somewhere",)
    recovered: tuple = (10,)
    snapshots_checked: int = 100
    versions_checked: int = 31
    torn: tuple = ()
    by_tasks: dict = dataclasses.field(default_factory=lambda: {1: 2, 31: 2})
    right: bool = True


@pytest.fixture
def demos(monkeypatch):
    """The calls of the demo's run; each leaves its log when a folder was given."""
    calls = []

    def fake(**given):
        calls.append(given)
        return Outcome(given["wal"], given["namespace"], given["folder"] is None)

    monkeypatch.setitem(sys.modules, "tidegate.demo", types.SimpleNamespace(run=fake))
    return calls


@pytest.mark.parametrize("right", [True, False])
def test_demo_calls_the_demo_and_tells_what_came_of_it(monkeypatch, tmp_path, right):
    def fake(wal, store, folder, progress, **options):
        assert options == {
            "namespace": "flights",
            "wal_options": {},
            "store_options": {},
            "allow_unsafe": False,
        }
        progress(1, "streaming; 3 snapshots checked")
        progress(1, "streaming; 4 snapshots checked")
        return Outcome("file:///x", "flights", log_removed=False, folder=str(folder), right=right)

    monkeypatch.setitem(sys.modules, "tidegate.demo", types.SimpleNamespace(run=fake))
    monkeypatch.setenv("TIDEGATE_STORE", "sqlite:///not/for/a/demo")
    result = run("demo", "--folder", tmp_path)
    assert result.exit_code == (0 if right else 1)
    assert ("NOT every promise held" in result.stdout) is not right
    assert "driver killed\tday 10: somewhere" in result.stdout
    assert "large batches\tversions 1 (2 tasks) and 31 (2 tasks): Spark's tasks staged and" in result.stdout
    assert "small batches\t29: the driver applied them without tasks" in result.stdout
    commands = result.stdout.partition("look around:\n")[2].splitlines()
    settings = ["TIDEGATE_NAMESPACE=flights", f"TIDEGATE_STORE={Outcome.store}", "TIDEGATE_WAL=file:///x"]
    assert [word for line in commands[:2] for word in line.split()[1:]] == settings
    assert [line.split()[1] for line in commands[2:]] == ["ui", "history", "diff", "get"]
    assert len(result.stdout.splitlines()) < 20  # a screen has 24, and the set-up takes some
    assert result.stderr.count("version 1: streaming") == 1
    assert json.loads(run("demo", "--folder", tmp_path, "--json").stdout)["right"] is right


def test_demo_without_spark_says_what_to_install(monkeypatch):
    """Only the driver's process imports pyspark: the command looks before it starts that one."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert "the demo needs pyspark: pip install 'tidegate[spark]'" in refused(2, "demo")


def test_the_demo_takes_a_log_on_servers_with_its_options(demos, tmp_path, monkeypatch):
    monkeypatch.setattr("tidegate.cli.trials.demo.refuse_unusable", lambda *_: None)  # as it does this URL
    config = tmp_path / "client.properties"
    config.write_text("sasl.password=hunter2\npartitions=2\n")
    config.chmod(0o600)
    wal = "kafka://user:hunter2@broker:9092"
    given = ["--wal", wal, "--wal-config", config, "--allow-unsafe"]
    result = run("demo", *given)
    assert result.exit_code == 0, result.output
    (call,) = demos
    assert (call["wal"], call["allow_unsafe"]) == (wal, True)
    assert call["wal_options"] == {"sasl.password": "hunter2", "partitions": 2}
    assert "log\tkafka://***@broker:9092\n" in result.stdout
    assert "the log is removed" in result.stdout
    assert f"namespace {call['namespace']} in the log kafka://***@broker:9092" in result.stderr
    kept = run("demo", *given, "--folder", tmp_path / "kept")
    assert demos[1]["namespace"] != call["namespace"]  # never another run's topics
    assert f"tidegate drop --store {Outcome.store} --wal kafka://***@broker:9092" in kept.stdout
    as_json = json.loads(run("demo", *given, "--json").stdout)
    assert (as_json["log_removed"], as_json["wal"]) == (True, "kafka://***@broker:9092")
    assert (as_json["folder"], as_json["store"]) == ("/kept", Outcome.store)
    assert "hunter" not in result.output + kept.output + json.dumps(as_json)


def test_the_demo_in_files_is_as_it_was(demos, monkeypatch, tmp_path):
    monkeypatch.setenv("TIDEGATE_WAL_CONFIG", "/not/for/a/demo")
    result = run("demo", f"--wal=file://{tmp_path}/wal")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert "is removed" not in result.stdout
    assert "tidegate drop" not in result.stdout
    run("demo", f"--folder={tmp_path}")
    assert demos[1]["namespace"] == "flights"


demo_module = sys.modules[demo_run.__module__]


def test_the_demo_leaves_no_topics_on_a_log_that_it_is_refused_on(log, tmp_path):
    log.found = (FAILED,)
    where = Endpoints("flights-1", "kafka://broker:9092", f"sqlite://{tmp_path}/store")
    with pytest.raises(ConfigError, match="1 replica"):
        demo_run(where.wal, where.store, tmp_path / "folder", namespace=where.namespace)
    assert not log(log.name, "flights-1").drop()
    demo_module._make(where, allow_unsafe=True)
    assert demo_module._remove_log(where)


def test_the_demo_never_takes_a_namespace_that_is_there(stuck, log, tmp_path):
    log.found = (FAILED,)
    before = list(stuck.driver.log.decisions())
    with pytest.raises(ConfigError, match="namespace flights is there already"):
        demo_run("kafka://broker:9092", f"sqlite://{tmp_path}/store", tmp_path / "folder")
    assert list(stuck.driver.log.decisions()) == before


def test_the_demos_processes_get_their_arguments_where_nobody_else_reads_them_t48(tmp_path, monkeypatch):
    echo = tmp_path / "echo.sh"
    echo.write_text('#!/bin/sh\necho "$@"; cat\n')
    echo.chmod(0o755)
    monkeypatch.setattr(demo_module.sys, "executable", str(echo))
    process = demo_module._start("stream", tmp_path / "log", "")
    demo_module._give(process, {"wal_options": {"sasl.password": "x"}})
    assert process.wait() == 0
    assert (tmp_path / "log").read_text() == (
        '-m tidegate.demo.stream\n{"wal_options": {"sasl.password": "x"}}'
    )
