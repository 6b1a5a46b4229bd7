"""`tidegate conformance`: its lines, its exit codes, and what it never prints."""

import json
import sys

import pytest
from typer.testing import CliRunner

from tidegate.cli import app
from tidegate.testing.conformance.checks import CHECKS

READER = f"{sys.executable} -m tidegate.testing.conformance.reader"


def called(tmp_path, command, *more):
    store = f"sqlite://{tmp_path}/store"
    return CliRunner().invoke(app, ["conformance", command, "--store", store, *more], prog_name="tidegate")


def test_a_line_for_each_check(tmp_path):
    told = called(tmp_path, READER, "--only", "vectors-schemas", "--only", "refuses-header-lost")
    assert told.exit_code == 0, told.output
    assert told.output.splitlines() == [
        "passed  vectors-schemas",
        "skipped refuses-header-lost: only Redis has headers and servers that are compared",
        "1 passed, 1 skipped, 0 failed",
    ]


def test_a_check_that_fails(tmp_path):
    told = called(tmp_path, "cat", "--only", "vectors-schemas", "--json")
    assert told.exit_code == 1
    answer = json.loads(told.stdout)
    assert answer["counts"] == {"passed": 0, "skipped": 0, "failed": 1}
    assert "broke the protocol" in answer["checks"][0]["text"]


def test_the_list_of_checks():
    told = CliRunner().invoke(app, ["conformance", "--list"])
    assert told.output.split() == list(CHECKS)


@pytest.mark.parametrize("more", [[], ["cat"], ["--store", "sqlite:///nowhere"]])
def test_without_a_command_or_a_store(more):
    told = CliRunner().invoke(app, ["conformance", *more])
    assert told.exit_code == 2
    assert "give the reader's command and --store" in told.output


def test_no_password_is_printed(tmp_path):
    told = called(tmp_path, "no-such redis://u:s3cret@host:6379", "--only", "vectors-keys")
    assert told.exit_code == 2
    assert "'no-such' is no program" in told.output
    assert "s3cret" not in told.output
