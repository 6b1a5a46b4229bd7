"""Every argument that is a path, of every command, given the URL of a store or a log."""

import typing
from pathlib import Path

import pytest

from support.cli import run
from tidegate.cli.core.app import COMMANDS, command

URLS = "redis://me:s3cret@host/0", "kafka://me:s3cret@host:9092", "copy=cassandra://me:s3cret@host/k"


def paths():
    """The words of each command that takes a path, the command, and that parameter."""
    for name in COMMANDS:
        found = command(name)
        for sub, one in found.commands.items() if hasattr(found, "commands") else [("", found)]:
            hints = typing.get_type_hints(one.callback)
            words = [name, sub] if sub else [name]
            for param in one.params:
                hint = hints.get(param.name, str)
                if Path in (hint, *typing.get_args(hint)):
                    yield pytest.param(words, one, param, id=" ".join([*words, param.name]))


@pytest.mark.parametrize("words,one,param", list(paths()))
def test_a_url_in_the_place_of_a_path_is_refused_without_its_login(words, one, param, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in (("STORE", "sqlite:///s"), ("WAL", "file:///w"), ("NAMESPACE", "n")):
        monkeypatch.setenv(f"TIDEGATE_{name}", value)
    for url in URLS:
        given = []
        for each in one.params:
            is_argument = each.param_type_name == "argument"
            if each is param:
                given += [url] if is_argument else [each.opts[0], url]
            elif each.required:
                given += ["1"] if is_argument else [each.opts[0], "1"]
        result = run(*words, *given)
        assert result.exit_code == 2, result.output
        assert "is a path on this machine" in result.output or "it is a URL" in result.output
        assert "s3cret" not in result.output
    assert list(tmp_path.iterdir()) == []
