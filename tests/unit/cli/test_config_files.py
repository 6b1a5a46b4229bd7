"""The log's options from a file: what it may look like, where they arrive, and that no password is shown."""

import importlib
import json
import os
import re
import subprocess
import sys

import pytest

from support.cli import options_for, run
from tidegate.base.checks import Check
from tidegate.cli.core.config_files import wal_options
from tidegate.cli.inspect import doctor
from tidegate.errors import ConfigError, WalUnavailableError
from tidegate.options.endpoints import Endpoints
from tidegate.testing.example import write_flights
from tidegate.wal.memory_log import MemoryLog

SECRET = "hunter2-and-more"
OPENED_IN = ("committers.operations.local_coordinator", "status.look", "cli.inspect.doctor_servers")


@pytest.fixture
def written(tmp_path):
    """Writes a file that only this user can read."""

    def write(content, mode=0o600):
        path = tmp_path / "client.properties"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)
        return path

    return write


# -- the file -------------------------------------------------------------------------------------


def test_what_kafkas_own_tools_take(written):
    path = written(
        "# how to get in\r\n"
        "\n"
        "security.protocol=SASL_SSL\r\n"
        "  sasl.password \t= a=b # \\no comment, no escape \n"
        "sasl.username=\n"
        "\t# indented\n"
        "linger.ms=5\n"
        "message.timeout=1.5"
    )
    assert wal_options(path) == {
        "security.protocol": "SASL_SSL",
        "sasl.password": "a=b # \\no comment, no escape ",
        "sasl.username": "",
        "linger.ms": "5",
        "message.timeout": "1.5",
    }


def test_options_of_ours_are_numbers_where_they_look_like_it(written):
    path = written(
        "partitions=12\ntimeout_s = 2.5 \nother=-3\nlock_timeout_s=1e3\ndebug=1_0\nx=٣\ntopic_prefix=2026\n"
    )
    assert wal_options(path) == {
        "partitions": 12,
        "timeout_s": 2.5,
        "other": -3,
        "lock_timeout_s": "1e3",
        "debug": "1_0",
        "x": "٣",
        "topic_prefix": "2026",
    }
    assert [type(value) for value in wal_options(path).values()] == [int, float, int, str, str, str, str]


def test_a_file_by_an_editor_of_another_system(written):
    assert wal_options(written(b"\xef\xbb\xbfa.b=\xc3\xbc\r\n")) == {"a.b": "ü"}
    assert wal_options(written("")) == wal_options(None) == {}


@pytest.mark.parametrize(
    "content,line",
    [
        (f"a=1\n{SECRET}\n", 2),
        (f"# x\n\n={SECRET}", 3),
        (f"sasl.password: {SECRET}=\n", 1),
        (f"sasl password={SECRET}\n", 1),
        (f"ssl.key.pem=-----BEGIN\n{SECRET}/+\n{SECRET}==\n", 2),
        (f"sasl.password=x\nb.c=1\nsasl.password={SECRET}\n", 3),
    ],
)
def test_a_line_that_does_not_fit_is_named_and_never_shown(written, content, line):
    path = written(content)
    with pytest.raises(ConfigError, match=re.escape(f"{path}, line {line}: ")) as caught:
        wal_options(path)
    assert "hunter" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_name_given_twice_is_named(written):
    with pytest.raises(ConfigError, match=r"line 2: a\.b is in the file twice"):
        wal_options(written("a.b=1\na.b=1\n"))


@pytest.mark.parametrize("content", [SECRET.encode() + b"\xff=", b"#" * (1024**2 + 1)])
def test_what_is_no_such_file(written, content):
    path = written(content)
    with pytest.raises(ConfigError, match=re.escape(str(path))) as caught:
        wal_options(path)
    assert "hunter" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path):
    for path, why in ((tmp_path / "nowhere", "No such file"), (tmp_path, "directory")):
        with pytest.raises(ConfigError, match=f"--wal-config {re.escape(str(path))}: .*{why}"):
            wal_options(path)


@pytest.mark.parametrize(
    "content,mode,warned",
    [
        ("sasl.password=x\n", 0o600, False),
        ("sasl.password=x\n", 0o644, True),
        ("sasl.password=x\n", 0o640, True),
        ("sasl.password=x\n", 0o604, True),
        ("ssl.key.pem=x\n", 0o604, True),
        ("sasl.oauthbearer.client.secret=x\n", 0o644, True),
        ("security.protocol=SSL\nssl.ca.location=/x.pem\n", 0o644, False),
    ],
)
def test_others_that_can_read_a_password_are_told(written, capsys, content, mode, warned):
    path = written(content, mode)
    wal_options(path)
    told = capsys.readouterr().err
    assert bool(told) is warned
    assert not warned or f"chmod 600 {path}" in told


def test_a_file_of_root_that_lets_a_group_in(written, capsys, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    wal_options(written("sasl.password=x\n", 0o640))
    assert capsys.readouterr().err == ""


def test_endpoints_do_not_show_options(written):
    options = wal_options(written(f"sasl.password={SECRET}\n"))
    where = Endpoints.of("n", "memory://w", "memory://s", options)
    assert where.wal_options == {"sasl.password": SECRET}
    assert "hunter" not in repr(where)


# -- where the options arrive -----------------------------------------------------------------------


@pytest.fixture
def flights(tmp_path):
    write_flights(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    return options_for(tmp_path)


COMMANDS = [
    ["init"],
    ["status"],
    ["doctor"],
    ["verify"],
    ["recover", "--force"],
    ["adopt", "--force", "--yes", "--lineage=0e9d3f5c-9f2e-4f3f-8a63-7a0f7a2c9a10"],
    ["drop", "--force", "--yes"],
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_passes_them_on(flights, written, command, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "check_java", lambda **_: Check("Java", "pass", "", ""))
    right = tmp_path / "right.properties"
    right.write_text("lock_timeout_s=2\n")
    monkeypatch.setenv("TIDEGATE_WAL_CONFIG", str(written("lock_timeout_s=2\nsasl.password=x\n")))
    result = run(*command, *flights)
    assert result.exit_code == (1 if command == ["doctor"] else 2)
    assert "unknown option sasl.password" in result.output
    result = run(*command, *flights, f"--wal-config={right}")
    assert result.exit_code == 0, result.output


def test_without_a_log_its_options_are_not_looked_at(flights, tmp_path):
    nowhere = f"--wal-config={tmp_path}/nowhere"
    assert run("status", nowhere, flights[0], flights[2]).exit_code == 0
    assert run("status", nowhere, *flights).exit_code == 2
    assert "nowhere" not in run("doctor", nowhere).output


# -- T48 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("problem", [WalUnavailableError("away"), OSError(5, "away"), RuntimeError("away")])
def test_no_command_shows_a_password_whatever_goes_wrong_t48(
    flights, written, monkeypatch, tmp_path, command, problem
):
    """Neither in what is printed nor in the error that is left."""

    class Away(MemoryLog):
        def decisions(self, position=0):
            raise problem

        drop = create = size = checks = retention_s = decisions

    seen = []

    def opened(url, namespace, options):
        seen.append(options)
        return Away(url, namespace)

    for module in OPENED_IN:
        monkeypatch.setattr(importlib.import_module(f"tidegate.{module}"), "open_log", opened)
    config = written(f"sasl.password={SECRET}\nssl.key.pem={SECRET}\n")
    for given in (["--json"], []):
        result = run(*command, *flights, f"--wal-config={config}", *given)
        assert result.exit_code != 0
        assert "hunter" not in result.output
        assert "hunter" not in repr(result.exception)
    assert seen[0] == {"sasl.password": SECRET, "ssl.key.pem": SECRET}


def test_a_traceback_does_not_show_it_either_t48(flights, written):
    """An error that nobody foresaw, in a process of its own."""
    code = (
        "from tidegate.committers.operations import local_coordinator as common\n"
        "from tidegate.cli import main\n"
        "def broken(url, namespace, options):\n"
        "    raise RuntimeError(sorted(options))\n"
        "common.open_log = broken\n"
        "main()\n"
    )
    config = written(f"sasl.password={SECRET}\n")
    done = subprocess.run(
        [sys.executable, "-c", code, "verify", *flights, f"--wal-config={config}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "RuntimeError: ['sasl.password']" in done.stderr
    assert "hunter" not in done.stdout + done.stderr


def test_json_of_a_doctor_whose_options_cannot_be_read(flights, written):
    config = written(f"sasl.password={SECRET}\n{SECRET}\n")
    result = run("doctor", "--json", *flights, f"--wal-config={config}")
    lines = {check["check"]: check for check in json.loads(result.stdout)}
    assert result.exit_code == 1
    assert lines["log: options"]["outcome"] == "fail"
    assert "line 2" in lines["log: options"]["found"]
    assert lines["store: reachable"]["outcome"] == "pass"
    assert "hunter" not in result.output
