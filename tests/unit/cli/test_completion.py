"""Completion in the shell: commands, options; of a store in files namespaces and tables; never an error."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3

import pytest
from typer.testing import CliRunner

from tidegate.cli import app
from tidegate.cli.core.app import COMMANDS
from tidegate.testing.example import Example, write_flights


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("completion")
    write_flights(f"file://{root}/wal", f"sqlite://{root}/store", alias="live")
    Example(f"file://{root}/wal", f"sqlite://{root}/store", "Daily.Top-10").close()
    (root / "store" / "other").mkdir()
    left = root / "store" / "other.dropped"  # as by a drop that was cut short
    shutil.copytree(root / "store" / "flights", left)
    with contextlib.closing(sqlite3.connect(left / "meta.sqlite")) as meta, meta:
        meta.execute("UPDATE namespace SET identity = replace(identity, 'flights', 'fled')")
    (root / "store" / "broken").mkdir()
    (root / "store" / "broken" / "meta.sqlite").write_text("no database")
    return f"sqlite://{root}/store"


def completed(line, **environment):
    """What bash is given for the last word of the line."""
    words = line.split(" ")
    told = CliRunner().invoke(
        app,
        prog_name="tidegate",
        env={"_TIDEGATE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        | {f"TIDEGATE_{name}": value for name, value in environment.items()},
    )
    assert "Traceback" not in told.output
    return told.stdout.split()


def test_commands_and_options():
    assert completed("tidegate ") == list(COMMANDS)
    assert completed("tidegate st") == ["status", "store"]
    assert completed("tidegate quarantine ") == ["list", "export", "drop"]
    assert "--watch" in completed("tidegate status --w")


def test_namespaces_of_a_store_in_files(store):
    assert completed("tidegate status --namespace ", STORE=store) == ["Daily.Top-10", "flights"]
    assert completed("tidegate recover --namespace f", STORE=f"main={store} copy=redis://h") == ["flights"]


def test_tables_of_a_store_in_files(store):
    assert completed(f"tidegate get --store {store} --namespace flights a") == ["aircraft", "airports"]
    assert completed("tidegate scan ", STORE=store, NAMESPACE="flights") == [
        "aircraft", "airports", "legs", "notes",
    ]  # fmt: skip
    assert completed("tidegate diff 1 --table n", STORE=store, NAMESPACE="flights") == ["notes"]


def test_aliases_of_a_store_in_files(store):
    assert completed("tidegate alias drop ", STORE=store) == ["live"]
    assert completed("tidegate alias ") == ["set", "list", "drop"]


@pytest.mark.parametrize(
    "at", ["", "redis://127.0.0.1:1", "sqlite:///nowhere", "sqlite://", "sqlite:///etc/passwd"]
)
def test_elsewhere_there_are_none(at):
    assert completed("tidegate scan ", STORE=at, NAMESPACE="flights") == []
    assert completed("tidegate scan --namespace ", STORE=at) == []
    assert completed("tidegate alias drop ", STORE=at) == []
