"""Every argument that is a path, of every command, given the URL of a store or a log."""

import os
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from support.cli import done, run
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


ODD = "s3:d", "s3:bucket/x", "s3://b/y", "gs:b", "file:c", "hdfs:f", "mock:e", "~/h", "a:b", "x?y#z%20", "-b"
"""Names of folders that are no URLs."""


@pytest.mark.parametrize("name", ODD)
def test_a_name_of_a_folder_is_taken_as_it_is(name, flights, tmp_path, monkeypatch):
    """pyarrow takes names for URLs and home folders: it gets open files alone."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / name
    folder.mkdir(parents=True)
    done("backup", *flights, "--", f"{name}/backup")
    done("backup", "--check", "--", f"{name}/backup")
    (tmp_path / "tidegate.toml").write_text(
        "namespace = 'flights'\nstore = 'sqlite://${HERE}/s'\nwal = 'file://${HERE}/w'\n"
    )
    (tmp_path / "tidegate.toml").rename(folder / "tidegate.toml")
    monkeypatch.setenv("TIDEGATE_CONFIG", str(folder / "tidegate.toml"))
    done("restore-from", "--yes", "--", f"{name}/backup")
    done("export", "--", f"{name}/export")
    done("import", "--yes", "--token=again", "--", f"{name}/export")
    done("scan", "aircraft", "--parquet", f"{name}/rows.parquet")
    assert run("verify").exit_code == 0


def test_a_name_of_a_folder_need_be_no_utf8(flights, tmp_path):
    folder = tmp_path / "\udcff\udcfe"
    folder.mkdir()
    config = folder / "tidegate.toml"
    config.write_text("namespace = 'flights'\nstore = 'sqlite://${HERE}/s'\nwal = 'file://${HERE}/w'\n")
    environment = {**os.environ, "TIDEGATE_CONFIG": str(config)}
    for words in (["backup", *flights], ["backup", "--check"], ["restore-from", "--yes"]):
        command = [sys.executable, "-m", "tidegate", *words, str(folder / "backup")]
        done = subprocess.run(command, capture_output=True, env=environment, timeout=120, check=False)
        assert done.returncode == 0, done
