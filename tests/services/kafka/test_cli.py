"""The commands on a log in Kafka, on real brokers."""

import contextlib
import json
import shutil
import time
import uuid

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from support.cli import ended, run
from support.wait import wait_until
from tidegate.base.checks import Check
from tidegate.cli.inspect import doctor
from tidegate.errors import StoreUnavailableError
from tidegate.options import Options
from tidegate.testing.example import BATCHES, Example

NEW = "0e9d3f5c-9f2e-4f3f-8a63-7a0f7a2c9a10"
PASSWORD = "hunter2-and-more"
AT_MOST_S = 20.0
"""A command asks a log that does not answer more than once; each time it waits for timeout_s."""


@pytest.fixture(autouse=True)
def here(monkeypatch):
    for name in ("STORE", "WAL", "NAMESPACE", "WAL_CONFIG"):
        monkeypatch.delenv(f"TIDEGATE_{name}", raising=False)
    monkeypatch.setattr(doctor, "check_java", lambda **_: Check("Java", "pass", "", ""))


@pytest.fixture
def place(tmp_path):
    """Options of a namespace that no other test has, at these brokers."""
    made = []

    def of(bootstrap, *more):
        name = f"n{uuid.uuid4().hex[:12]}"
        store = f"--store=sqlite://{tmp_path}/store-{len(made)}"
        made.append([store, f"--wal=kafka://{bootstrap}", f"--namespace={name}", *more])
        return made[-1]

    yield of
    for options in made:
        run("drop", "--yes", "--force", *options)


@pytest.fixture
def config(tmp_path):
    """A file of the log's options that nobody else can read."""

    def write(**options):
        path = tmp_path / f"{uuid.uuid4().hex}.properties"
        path.touch(0o600)
        path.write_text("".join(f"{name.replace('__', '.')}={value}\n" for name, value in options.items()))
        return f"--wal-config={path}"

    return write


def done(*arguments):
    return ended(0, *arguments).stdout


def doctor_lines(*arguments):
    result = run("doctor", "--json", *arguments)
    return result, {line["check"]: line for line in json.loads(result.stdout)}


def given(options, name):
    return next(one for one in options if one.startswith(f"--{name}=")).partition("=")[2]


def alter(bootstrap, topic, **settings):
    resource = ConfigResource(
        ConfigResource.Type.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ],
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)


def topics(bootstrap, namespace):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return sorted(name for name in admin.list_topics(timeout=10).topics if namespace in name)


@contextlib.contextmanager
def stuck(options, monkeypatch):
    """Version 1 is visible, version 2 is decided and not applied."""
    example = Example(
        given(options, "wal"),
        given(options, "store"),
        given(options, "namespace"),
        options=Options(key_groups=2, apply_deadline_s=0.01, allow_unsafe=True),
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


# -- doctor -----------------------------------------------------------------------------------------


def test_doctor_passes_on_three_brokers(kafka3, place):
    options = place(kafka3.bootstrap)
    result, lines = doctor_lines(*options)
    assert (result.exit_code, lines["log: reachable"]["outcome"]) == (0, "pass")  # no topics yet
    assert "no namespace yet" in lines["log: reachable"]["found"]
    done("init", *options)
    result, lines = doctor_lines(*options)
    assert result.exit_code == 0, result.output
    of_log = {name: line["outcome"] for name, line in lines.items() if name.startswith("log: ")}
    assert of_log.pop("log: login") == "warn"  # these brokers have no logins
    assert len(of_log) > 10
    assert set(of_log.values()) == {"pass"}
    assert "3 replicas" in lines["log: decisions: replication"]["found"]


def test_doctor_warns_when_one_broker_down_would_stop_every_write(kafka3, place, config):
    options = place(kafka3.bootstrap, config(min_insync_replicas=3, partitions=2))
    done("init", *options)
    result, lines = doctor_lines(*options)
    assert result.exit_code == 0, result.output
    assert lines["log: change-log: acknowledgement"]["outcome"] == "warn"


def test_doctor_fails_where_a_writer_is_refused(kafka3, place):
    options = place(kafka3.bootstrap)
    done("init", *options)
    topic = next(
        name for name in topics(kafka3.bootstrap, given(options, "namespace")) if "decisions" in name
    )
    alter(kafka3.bootstrap, topic, retention_ms="3600000", cleanup_policy="compact,delete")
    result, lines = doctor_lines(*options)
    assert result.exit_code == 1
    assert "failed: log: decisions: cleanup, log: decisions: retention" in result.stderr
    assert "retention.ms 3600000" in lines["log: decisions: retention"]["found"]
    refused = run("recover", *options)
    assert refused.exit_code == 2
    assert "retention.ms 3600000" in refused.stderr
    never = run("recover", "--allow-unsafe", *options)  # nothing could be appended
    assert (never.exit_code, "cleanup.policy is compact,delete" in never.stderr) == (2, True)
    assert topic in never.stderr
    alter(kafka3.bootstrap, topic, cleanup_policy="delete")
    wait_until(lambda: run("recover", "--allow-unsafe", *options).exit_code == 0, "every broker knows it")
    assert "retention.ms 3600000" in run("recover", "--allow-unsafe", *options).stderr


def test_one_broker_is_refused_and_may_be_allowed(kafka, place):
    options = place(kafka.bootstrap)
    refused = run("init", *options)
    assert (refused.exit_code, "1 replica" in refused.stderr) == (2, True)
    assert "made," in done("init", "--allow-unsafe", *options)
    result, lines = doctor_lines(*options)
    assert (result.exit_code, lines["log: change-log: replication"]["outcome"]) == (1, "fail")


def test_doctor_without_a_namespace(kafka):
    result, lines = doctor_lines(f"--wal=kafka://{kafka.bootstrap}")
    assert (result.exit_code, lines["log: reachable"]["outcome"]) == (0, "warn")


# -- who does not get in ------------------------------------------------------------------------------

COMMANDS = [
    ["init"],
    ["status"],
    ["doctor"],
    ["recover"],
    ["verify"],
    ["drop", "--yes"],
    ["adopt", "--yes", f"--lineage={NEW}"],
]


@pytest.mark.one_in(7)
@pytest.mark.parametrize("command", COMMANDS)
def test_brokers_that_are_away_are_told_within_the_timeout(place, config, command):
    (options,) = [place("127.0.0.1:1", config(timeout_s=1))]
    started = time.monotonic()
    result = run(*command, *options)
    assert time.monotonic() - started < AT_MOST_S
    assert result.exit_code == (1 if command == ["doctor"] else 6), result.output
    assert "127.0.0.1:1" in result.output
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_a_wrong_password_is_told_and_never_shown_t48(private_kafka, place, config):
    broker = private_kafka(sasl={"ann": PASSWORD})

    def options_with(password):
        return config(
            security__protocol="SASL_PLAINTEXT",
            sasl__mechanism="PLAIN",
            sasl__username="ann",
            sasl__password=password,
            timeout_s=2,
        )

    right = place(broker.bootstrap, options_with(PASSWORD))
    assert "made," in done("init", "--allow-unsafe", *right)
    wrong = [*right[:3], options_with(PASSWORD + "-wrong")]
    for command in COMMANDS:
        started = time.monotonic()
        result = run(*command, *wrong)
        assert time.monotonic() - started < AT_MOST_S
        assert result.exit_code == (1 if command == ["doctor"] else 2), result.output
        assert "uthentication" in result.output
        assert "check security.protocol, sasl.*" in result.output
        assert "hunter" not in result.output
    result, lines = doctor_lines(*wrong)
    assert lines["log: reachable"]["outcome"] == "fail"
    assert lines["store: reachable"]["outcome"] == lines["clock"]["outcome"] == "pass"
    assert json.loads(done("status", "--json", *right))["decided"] == 0


# -- status, recover, drop ------------------------------------------------------------------------------


def test_status_of_a_log_in_kafka(kafka, place, monkeypatch):
    options = place(kafka.bootstrap)
    with stuck(options, monkeypatch):
        facts = json.loads(done("status", "--json", *options))
        assert (facts["decided"], facts["visible"], facts["problems"], facts["warnings"]) == (2, 1, [], [])
        assert min(facts["log_decisions_bytes"], facts["log_changelog_bytes"]) > 100
        assert (facts["log_retention_s"], facts["apply_before"]) == (None, None)
        decisions = topics(kafka.bootstrap, given(options, "namespace"))[1]
        alter(kafka.bootstrap, decisions, retention_ms=str(7 * 86_400_000))
        facts = json.loads(done("status", "--json", *options))
        assert facts["log_retention_s"] == 7 * 86_400
        assert facts["apply_before"] is not None
        assert "version 2 must be applied before" in done("status", *options)


def test_recover_verify_and_drop(kafka, place, monkeypatch):
    options = place(kafka.bootstrap)
    with stuck(options, monkeypatch):
        pass
    recovered = json.loads(done("recover", "--force", "--allow-unsafe", "--json", *options))
    assert (recovered["recovered"], recovered["visible"]) == ([2], 2)
    assert "nothing wrong: versions 1 to 2" in done("verify", *options)
    assert len(topics(kafka.bootstrap, given(options, "namespace"))) == 2
    assert "is gone" in done("drop", "--yes", "--force", *options)
    assert topics(kafka.bootstrap, given(options, "namespace")) == []
    assert run("drop", "--yes", "--force", *options).exit_code == 2


def test_a_log_whose_topics_were_deleted_is_told_i10(kafka, place, monkeypatch):
    options = place(kafka.bootstrap)
    with stuck(options, monkeypatch):
        pass
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.delete_topics(topics(kafka.bootstrap, given(options, "namespace"))).values():
        future.result(10)
    result = run("status", *options)
    assert (result.exit_code, "the log is gone: it is empty" in result.stderr) == (10, True)
    assert "`tidegate relog " in run("recover", "--force", "--allow-unsafe", *options).stderr


# -- the demo -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_on_kafka_keeps_every_promise_and_leaves_no_topic(kafka):
    result = run("demo", "--json", f"--wal=kafka://{kafka.bootstrap}", "--allow-unsafe")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert (facts["right"], facts["recovered"], facts["log_removed"]) == (True, [4], True)
    assert topics(kafka.bootstrap, facts["namespace"]) == []
    shutil.rmtree(facts["folder"])
