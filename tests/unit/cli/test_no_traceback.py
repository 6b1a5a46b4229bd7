"""Whatever is wrong with what a command is given: one message with its cause and a next step, no traceback.

Every command of the tree is called with every fault; a new one is refused here until it says what it needs.
"""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from tidegate.cli import app
from tidegate.cli.core.app import COMMANDS, command
from tidegate.cli.operate import drop
from tidegate.status import look
from tidegate.testing.example import write_flights

ID = "0e9d3f5c-9f2e-4f3f-8a63-7a0f7a2c9a10"
NEEDS = {
    "alias drop": ["live", "--yes"],
    "alias set": ["live"],
    "adopt": ["--yes", "--lineage", ID],
    "backup": ["{new}"],
    "bench": ["--only", "reads"],
    "changes": ["1", "aircraft"],
    "conformance": ["cat"],
    "diff": ["1"],
    "drop": ["--yes"],
    "export": ["{new}"],
    "get": ["aircraft", "N14228"],
    "import": ["{exported}", "--yes"],
    "quarantine drop": ["{refused}", "--yes"],
    "quarantine export": ["aircraft", "{new}"],
    "rebuild-checkpoint": ["{new}"],
    "rekey": ["--to", "flights_16", "--key-groups", "16"],
    "restore": ["--to", "1", "--yes"],
    "schema rename": ["aircraft", "carrier", "airline"],
    "restore-from": ["{backed_up}", "--yes"],
    "scan": ["aircraft"],
    "store add": ["copy=sqlite://{new}"],
    "store remove": ["copy"],
    "tail": ["--for", "1s", "--after", "0"],
    "torture": ["--cells", "1"],
}
"""What a command needs besides store, log and namespace, so that the fault is all that is wrong."""
NOWHERE = {"explain", "new"}
NO_LOG = {
    "history",
    "get",
    "scan",
    "diff",
    "tail",
    "export",
    "vacuum",
    "quarantine list",
    "quarantine export",
    "alias set",
    "alias list",
    "alias drop",
    "redis-functions",
    "namespaces",
    "conformance",
}
ANY_NAMESPACE = {"alias list", "alias drop", "redis-functions", "namespaces"}
"""What is of a place takes no namespace."""
NO_NAMESPACE = {"demo", "bench", "torture", "conformance"}
MAKES_ONE = {"init", "import", "doctor", "restore-from"}
"""A namespace that is not there is made, or looked for and told."""

NEXT_STEP = re.compile(
    r"check|give|use |set |run |write|known are|look |pass|start|say|choose|mend|makes it|must be|is it"
)


def leaves():
    for name in COMMANDS:
        found = command(name)
        below = getattr(found, "commands", None)
        yield from [name] if below is None else (f"{name} {one}" for one in below)


LEAVES = sorted(set(leaves()) - NOWHERE)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A namespace, an export of it, a file of its refused rows, and a file where a folder should be."""
    root = tmp_path_factory.mktemp("place")
    write_flights(f"file://{root}/wal", f"sqlite://{root}/store")
    where = ["--store", f"sqlite://{root}/store", "--namespace", "flights"]
    (root / "file").write_text("no folder")
    (root / "short").write_text("timeout_s=0.5\n")
    for words in (["export", f"{root}/exported"], ["quarantine", "export", "aircraft", f"{root}/refused"]):
        assert CliRunner().invoke(app, [*words, *where]).exit_code == 0
    backup = ["backup", f"{root}/backed_up", "--wal", f"file://{root}/wal", *where]
    assert CliRunner().invoke(app, backup).exit_code == 0
    return root


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    monkeypatch.setattr(drop, "_is_terminal", lambda: False)


def called(leaf, place, *, store=None, wal=None, namespace="flights", more=()):
    paths = {"new": place / "new", "exported": place / "exported", "refused": place / "refused"}
    paths["backed_up"] = place / "backed_up"
    words = [*leaf.split(), *(word.format(**paths) for word in NEEDS.get(leaf, []))]
    words += ["--store", store or f"sqlite://{place}/store"]
    words += [] if leaf in NO_LOG else ["--wal", wal or f"file://{place}/wal"]
    words += [] if leaf in NO_NAMESPACE | ANY_NAMESPACE else ["--namespace", namespace]
    words += ["--port", "0"] if leaf == "ui" else []
    return CliRunner().invoke(app, [*words, *more], prog_name="tidegate")


def refused(result, *causes):
    """An exit code, no traceback, one message with its cause and a next step."""
    assert isinstance(result.exception, SystemExit), repr(result.exception)  # any other one is a traceback
    assert result.exit_code != 0, result.output
    assert "Traceback" not in result.output
    assert "Missing" not in result.output, "say in NEEDS what the command needs"
    assert any(cause in result.output for cause in causes), result.output
    assert NEXT_STEP.search(result.output), result.output


@pytest.mark.parametrize("leaf", LEAVES)
def test_an_unknown_kind_of_store_or_log(leaf, place):
    refused(called(leaf, place, store="mysql://u:s3cret@host/db"), "mysql")
    if leaf not in NO_LOG:
        told = called(leaf, place, wal="nfs://u:s3cret@host/log")
        refused(told, "nfs")
        assert "s3cret" not in told.output


@pytest.mark.parametrize("leaf", LEAVES)
def test_what_is_in_memory_is_no_place_for_a_command(leaf, place):
    """It would end with the command, which said that it is made."""
    refused(called(leaf, place, store="memory://here"), "--store memory://here: a place in memory ends")
    refused(called(leaf, place, store="main=memory://here"), "sqlite:///path, redis://")
    if leaf not in NO_LOG:
        told = called(leaf, place, wal="memory://here")
        refused(told, "--wal memory://here: a place in memory ends")
        assert "file:///path or kafka://" in told.output
        assert told.exit_code == 2


def test_a_store_in_memory_cannot_be_added(place):
    where = ["--store", f"sqlite://{place}/store", "--wal", f"file://{place}/wal", "--namespace", "flights"]
    told = CliRunner().invoke(app, ["store", "add", "copy=memory://here", *where])
    refused(told, "the new store copy=memory://here")


@pytest.mark.parametrize(
    "leaf", ["get", "scan", "history", "diff", "tail", "export", "quarantine list", "quarantine export"]
)
def test_two_stores_where_one_is_read(leaf, place):
    told = called(leaf, place, more=["--store", f"copy=sqlite://{place}/copy"])
    refused(told, f"--store is given 2 times, and tidegate {leaf} works with one store: give only")
    assert told.exit_code == 2


@pytest.mark.parametrize(
    "leaf, option, value, must",
    [
        ("history", "--limit", "x", "'x' must be a whole number"),
        ("history", "--limit", "0", "'0' must be greater than or equal to 1"),
        ("tail", "--after", "1.5", "'1.5' is no version: it must be a number"),
        ("bench", "--deadline", "soon", "'soon' must be"),
    ],
)
def test_a_number_that_is_none_is_named_with_its_option(leaf, option, value, must, place):
    told = called(leaf, place, more=[option, value])
    assert told.exit_code == 2
    assert must in told.output
    assert "Input should be" not in told.output
    assert option in told.output


@pytest.mark.parametrize("leaf", sorted({*LEAVES} - NO_NAMESPACE - {"store list", "ui"}))
def test_a_store_that_is_not_there(leaf, place):
    """Nothing listens on port 1. (The list and the page tell it, which is no failure of theirs.)"""
    config = ["--store-config", f"{place}/short"]
    refused(called(leaf, place, store="redis://127.0.0.1:1", more=config), "127.0.0.1:1")


@pytest.mark.parametrize("leaf", sorted({*LEAVES} - NO_NAMESPACE - ANY_NAMESPACE - MAKES_ONE))
def test_a_namespace_that_is_not_there(leaf, place):
    refused(called(leaf, place, namespace="other"), "other")


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_folder_that_is_a_file(leaf, place):
    refused(called(leaf, place, store=f"sqlite://{place}/file"), f"{place}/file")
    if leaf not in NO_LOG:
        refused(called(leaf, place, wal=f"file://{place}/file"), f"{place}/file")


def test_an_error_of_the_machine_says_where(place, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device", "/data/store")

    monkeypatch.setattr(look.Places, "look", full)
    refused(called("status", place), "No space left on device: /data/store")


def test_ctrl_c_in_the_middle(place, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(look.Places, "look", interrupted)
    refused(called("status", place), "interrupted")
    assert called("status", place).exit_code == 130


def test_a_file_that_cannot_be_written(place):
    refused(called("scan", place, more=["--parquet", f"{place}/nowhere/file"]), "nowhere/file")
    refused(called("scan", place, more=["--parquet", f"{place}/file/file"]), "file/file")
