"""What the command line imports before it does something: the rest is waited for by nobody."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tidegate.cli import app
from tidegate.cli.core.app import COMMANDS, command
from tidegate.testing.example import write_flights

CLIENTS = {"pyspark", "confluent_kafka", "redis", "cassandra", "prometheus_client"}
HEAVY = {*CLIENTS, "pyarrow", "pandas", "numpy", "rich", "msgspec", "sqlite3", "asyncio"}

PROGRAM = """
import json, sys
from tidegate.cli import main
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def modules_after(*words):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout, set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("asked", ["--help", "--version"])
def test_the_list_of_commands_imports_none_of_them(asked):
    _, modules = modules_after(asked)
    assert HEAVY & modules == set()
    assert {name for name in modules if name.startswith("tidegate.")} <= {
        "tidegate.cli",
        "tidegate.cli.core",
        "tidegate.cli.core.app",
        "tidegate.cli.core.signals",
        "tidegate.cli.core.streams",
        "tidegate.errors",
    }


def test_status_imports_no_client_and_nothing_that_it_does_not_need(tmp_path):
    write_flights(f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store")
    where = ["--store", f"sqlite://{tmp_path}/store", "--wal", f"file://{tmp_path}/wal"]
    told, modules = modules_after("status", *where, "--namespace", "flights")
    assert "visible version\t3" in told
    assert {*CLIENTS, "pandas", "pyarrow.parquet", "rich", "tidegate.spark"} & modules == set()


def test_a_name_that_nearly_fits_is_suggested():
    told = CliRunner().invoke(app, ["statu"])
    assert told.exit_code == 2
    assert "'status'" in told.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_where_the_list_says(name):
    found = command(name)
    assert found.name == name
    assert found.help
    if "app" not in COMMANDS[name].name:
        assert "Examples:" in found.epilog


def test_no_line_of_the_list_is_cut_short():
    told = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output
    assert all(found.line in told for found in COMMANDS.values())


@pytest.mark.parametrize("group", ["alias", "quarantine", "store"])
def test_a_groups_own_list_is_whole_and_shows_nothing_else(group):
    told = CliRunner().invoke(app, [group, "--help"], env={"COLUMNS": "80"}).output
    assert "..." not in told.partition("Commands:")[2]
    assert "--install-completion" not in told


def leaves():
    for name in COMMANDS:
        found = command(name)
        below = getattr(found, "commands", None)
        yield from ([name, inner] for inner in below) if below else [[name]]


@pytest.mark.parametrize("words", list(leaves()), ids=" ".join)
def test_help_names_what_is_given_and_no_type_of_python(words):
    told = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}).output
    usage, _, rest = told.partition("\n")
    assert not set("{}<>") & set(usage)
    assert re.findall(r"^  (?:--)?\S+(?: (<[^>]+>|INTEGER|FLOAT|TEXT RANGE)).*", rest, re.MULTILINE) == []
