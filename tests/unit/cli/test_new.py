"""tidegate new: a project that can be read and changed. tests/spark/test_new_project.py runs it."""

import ast
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import tidegate
from support.cli import done, done_json, refused
from tidegate.cli.trials.new import PLACES, VALUES

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("on", VALUES)
def test_a_project_has_all_its_files_and_no_mark_is_left(tmp_path, on):
    told = done("new", tmp_path / "p", "--on", on)
    assert told.endswith("python stream.py --once\n")
    files = {path.relative_to(tmp_path / "p").as_posix(): path for path in (tmp_path / "p").rglob("*")}
    assert files.keys() - {"input", "tests"} == PLACES.keys()
    for name in PLACES:
        text = files[name].read_text()
        assert not [mark for mark in VALUES[on] if f"@{mark}@" in text], name
        if name.endswith(".py"):
            ast.parse(text)
            assert max(map(len, text.splitlines())) <= 120


def test_its_servers_are_those_of_this_repositorys_compose_file(tmp_path):
    done_json("new", tmp_path / "p")
    ours = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    theirs = yaml.safe_load((tmp_path / "p/compose.yaml").read_text())["services"]
    assert theirs == {name: ours[name] for name in ("kafka", "redis")}


def test_commands_take_the_places_of_its_settings(tmp_path, monkeypatch):
    done("new", tmp_path / "p")
    monkeypatch.chdir(tmp_path / "p")
    done("init")
    assert (tmp_path / "p/data/store/orders").is_dir()


@pytest.mark.parametrize("name", ["a b", "c#", "50%20", "q?x"])
def test_programs_find_what_commands_made_whatever_the_name_of_the_folder(tmp_path, monkeypatch, name):
    folder = tmp_path / name
    last = done("new", folder).splitlines()[-1]
    assert last == f"next: cd {shlex.quote(str(folder))}; python stream.py --once"
    monkeypatch.chdir(folder)
    done("init")
    places = runpy.run_path(str(folder / "settings.py"))
    tidegate.connect(places["STORE"], namespace=places["NAMESPACE"]).close()


def test_programs_run_in_a_shell_of_a_clone(tmp_path):
    """`tools/run` sets PYTHONSAFEPATH, so Python leaves a program's own folder out."""
    done("new", tmp_path / "p")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    environment["PYTHONSAFEPATH"] = "1"
    for program, result in (
        ("reader.py", "there is no namespace 'orders'"),
        ("stream.py", "usage: stream.py"),
    ):
        ran = subprocess.run(
            [sys.executable, tmp_path / "p" / program, *(["--help"] if program == "stream.py" else [])],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert result in ran.stdout + ran.stderr


def test_a_new_repository_is_an_empty_folder(tmp_path):
    (tmp_path / ".git").mkdir()
    done("new", tmp_path)
    assert (tmp_path / "stream.py").exists()


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine").write_text("x")
    assert "is not an empty folder" in refused(2, "new", tmp_path)
    assert "is not an empty folder" in refused(2, "new", tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
