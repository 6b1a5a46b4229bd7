"""A printed command works where the command that prints it did, whatever the variables name."""

from __future__ import annotations

import re

import pytest

from support.cli import done, refused, run
from tidegate.cli.core.app import options_of
from tidegate.cli.core.placed import with_places
from tidegate.testing.example import Example

GIVEN = ["restore-from", "/backup", "--namespace", "other", "--store=redis://u:s@h/1", "--wal", "file:///w"]
OTHERS = {"TIDEGATE_NAMESPACE": "flights", "TIDEGATE_STORE": "redis://h/2", "TIDEGATE_WAL": "file:///x"}
STORE, WAL = "--store 'redis://***@h/1'", "--wal file:///w"
WORDS = {
    "`tidegate drop --only-stores`": f"`tidegate drop --only-stores --namespace other {STORE} {WAL}`",
    "`tidegate drop --namespace a --store b=URL`": f"`tidegate drop --namespace a --store b=URL {WAL}`",
    "`tidegate vacuum`, then": f"`tidegate vacuum --namespace other {STORE}`, then",
    "`tidegate alias list`": f"`tidegate alias list {STORE}`",
    "`tidegate explain TEXT`": "`tidegate explain TEXT`",
    "`tidegate no-such`, tidegate drop": "`tidegate no-such`, tidegate drop",
}


@pytest.fixture
def variables(monkeypatch):
    def set_to(values):
        for name in ("NAMESPACE", "STORE", "WAL", "STORE_CONFIG", "WAL_CONFIG"):
            monkeypatch.delenv(f"TIDEGATE_{name}", raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    set_to({})
    return set_to


@pytest.mark.parametrize("text", WORDS)
def test_a_command_gets_what_the_variables_have_otherwise(variables, text):
    variables(OTHERS)
    assert with_places(text, GIVEN, options_of) == WORDS[text]


def test_a_url_in_the_place_of_a_name_is_not_printed(variables):
    words = [
        "import",
        "x",
        "--namespace",
        "memory://name?password=secret",
        "--store-config=redis://u:secret@h",
    ]
    variables(OTHERS | {"TIDEGATE_STORE_CONFIG": "file"})
    assert "secret" not in with_places("`tidegate recover`", words, options_of)


def test_without_variables_it_gets_the_namespace_alone(variables):
    """It is refused for a lack of the others, and harms nothing."""
    assert with_places("`tidegate drop`", GIVEN, options_of) == "`tidegate drop --namespace other`"


def test_what_the_variables_have_is_left_out(variables):
    variables({"TIDEGATE_NAMESPACE": "other", "TIDEGATE_STORE": "a=redis://h/1  b=redis://h/2"})
    words = ["recover", "--namespace", "other", "--store", "a=redis://h/1", "--store", "b=redis://h/2"]
    assert with_places("`tidegate recover`", words, options_of) == "`tidegate recover`"
    assert (
        with_places("`tidegate recover`", words[:-2], options_of)
        == "`tidegate recover --store a=redis://h/1`"
    )


def test_an_error_about_a_copy_gets_the_name_of_the_copy(variables):
    words = ["relog", "--namespace", "flights", "--to", "flights_2"]
    text = "namespace flights_2 follows another query: `tidegate adopt --lineage ID`"
    assert with_places(text, words, options_of) == f"{text[:-1]} --namespace flights_2`"
    assert "--namespace flights`" in with_places("namespace flights: `tidegate verify`", words, options_of)


@pytest.fixture
def two(variables, tmp_path):
    """The variables name namespace flights; there is another one beside it."""
    wal, store = f"file://{tmp_path}/wal", f"sqlite://{tmp_path}/store"
    for name in ("flights", "other"):
        example = Example(wal, store, name)
        example.write({"notes": {b"k": name.encode()}})
        example.driver.store.end_heartbeat(example.driver.epoch)
        example.close()
    variables({"TIDEGATE_NAMESPACE": "flights", "TIDEGATE_STORE": store, "TIDEGATE_WAL": wal})


def test_the_advice_of_a_command_does_not_remove_the_namespace_of_the_variables(two, tmp_path):
    done("backup", tmp_path / "backup", "--namespace", "other")
    advice = refused(2, "restore-from", tmp_path / "backup", "--namespace", "other", "--yes")
    (command,) = re.findall("`tidegate (drop [^`]*)`", advice)
    done(*command.split(), "--yes")
    assert run("get", "notes", "k").exit_code == 0
    assert "in the log only" in run("status", "--namespace", "other").stdout


def test_a_result_has_it_too(two):
    made = done("rekey", "--to", "more", "--key-groups", "16", "--namespace", "other", "--finish", "--yes")
    assert "Then `tidegate drop --namespace other` removes the old namespace" in made
    text = run("restore", "--to", "1", "--namespace", "other", "--yes").output
    assert "`tidegate adopt --namespace other --lineage" in text
