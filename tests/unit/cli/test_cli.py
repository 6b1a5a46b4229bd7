"""The command line as a whole: help, exit codes, options, output, processes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate
from support.cli import done, done_json, readers_only, run
from tidegate.base import text as text_of
from tidegate.cli.core import output
from tidegate.errors import BY_NAME

ROOT = Path(__file__).resolve().parents[3]


# -- the whole ----------------------------------------------------------------------------------------


COMMANDS = [
    "demo",
    "new",
    "init",
    "status",
    "namespaces",
    "history",
    "get",
    "scan",
    "recover",
    "adopt",
    "rebuild-checkpoint",
    "relog",
    "rekey",
    "doctor",
    "explain",
    "diff",
    "changes",
    "tail",
    "restore",
    "export",
    "import",
    "backup",
    "restore-from",
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


def test_amounts_are_right_aligned_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("tidegate.cli.core.output.on_terminal", lambda: True)
    rows = [("a", 1, "12 ms", "N1"), ("b", 100, "not known", "7"), ("c", None, "1,000 rows/s", "-")]
    output.print_table(["name", "count", "time", "text"], rows)
    lines = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [cells[1] for cells in lines] == ["     1 ", "   100 ", "  null "]
    assert [cells[2] for cells in lines] == ["        12 ms ", "    not known ", " 1,000 rows/s "]
    assert [cells[0] + cells[3] for cells in lines] == [" a     N1   ", " b     7    ", " c     -    "]


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
