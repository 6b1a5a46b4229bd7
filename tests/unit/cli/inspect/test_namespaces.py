"""tidegate namespaces: what a store holds, for someone who does not know."""

import sqlite3

import pytest

from support.cli import done, done_json, refused, run
from tidegate.testing.example import Example, write_flights


@pytest.fixture
def store(tmp_path):
    store = f"sqlite://{tmp_path}/s"
    write_flights(f"file://{tmp_path}/wal", store, "flights", alias="live")
    Example(f"file://{tmp_path}/wal", store, "empty").close()
    return store


def test_each_namespace_has_its_visible_version_age_and_tables_and_no_alias_is_one(store):
    heading, empty, flights = done("namespaces", "--store", store).splitlines()
    assert heading == "namespace\tvisible\tage\ttables"
    assert empty == "empty\tnone yet\t\t"
    name, visible, age, tables = flights.split("\t")
    assert (name, visible, tables) == ("flights", "3", "aircraft, airports, legs, notes")
    assert age.endswith((" s", " min"))


def test_as_json(store):
    facts = done_json("namespaces", "--store", store)
    assert facts["more"] == 0
    empty, flights = facts["namespaces"]
    assert (empty["visible"], empty["decided_at"], empty["age_s"], empty["tables"]) == (0, None, None, [])
    assert flights["age_s"] >= 0
    assert flights["error"] is None


def test_a_limit_says_how_many_are_left(store):
    result = run("namespaces", "--store", store, "--limit", 1)
    assert len(result.stdout.splitlines()) == 2
    assert result.stderr == "tidegate: 1 more: --limit 2 lists all\n"


def test_a_namespace_that_cannot_be_read_hides_no_other(store, tmp_path):
    with sqlite3.connect(tmp_path / "s/empty/meta.sqlite") as meta:
        meta.execute('UPDATE namespace SET identity = \'{"name": "empty"}\'')
    result = run("namespaces", "--store", store)
    assert "empty\tunreadable" in result.stdout
    assert "flights\t3" in result.stdout
    assert "namespace empty: " in result.stderr


def test_an_empty_folder_has_none(tmp_path):
    result = run("namespaces", "--store", f"sqlite://{tmp_path}/nothing")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.endswith("has no namespace\n")
    assert not (tmp_path / "nothing").exists()


def test_a_place_in_memory_is_refused():
    assert "a place in memory ends with the command" in refused(2, "namespaces", "--store", "memory://x")
