"""tidegate.toml: store, log and namespace of a folder, after options and variables."""

import json
import os

import pytest

from support.cli import done, done_json, refused, run
from tidegate.testing.example import write_flights


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder beside the data, without a variable that counts."""
    for name in [name for name in os.environ if name.startswith("TIDEGATE_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "a project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def flights(folder):
    write_flights(
        wal=f"file://{folder}/wal".replace(" ", "%20"), store=f"sqlite://{folder}/s".replace(" ", "%20")
    )
    return folder


def settings(folder, *lines):
    (folder / "tidegate.toml").write_text("\n".join(lines) + "\n")


@pytest.fixture
def impatient(folder):
    """The setting of a store that does not answer."""
    (folder / "impatient").write_text("timeout_s=0.3\n")
    (folder / "impatient").chmod(0o600)
    return 'store_config = "${HERE}/impatient"'


HERE = ('store = "sqlite://${HERE}/s"', 'wal = "file://${HERE}/wal"', 'namespace = "flights"')


def test_commands_need_no_options(flights):
    settings(flights, "# places", *HERE)
    assert done("get", "aircraft", "N14228") == "carrier\tUA\nflights\t2\n"
    assert done_json("status")["visible"] == 3
    done("verify")
    assert not [name for name in os.environ if name.startswith("TIDEGATE_")]


@pytest.mark.parametrize("command", [("status",), ("namespaces",), ("schema", "rename", "t", "a", "b")])
def test_a_command_without_places_names_the_file(folder, command):
    assert "write a tidegate.toml here" in run(*command).stderr


def test_an_option_comes_before_a_variable_and_that_before_the_file(flights, monkeypatch):
    settings(flights, *HERE)
    monkeypatch.setenv("TIDEGATE_NAMESPACE", "of-the-variable")
    assert "of-the-variable" in refused(2, "history")
    assert "of-the-option" in refused(2, "history", "--namespace", "of-the-option")
    monkeypatch.delenv("TIDEGATE_NAMESPACE")
    assert done("history").count("\n") == 4


def test_a_variable_names_another_file(flights, tmp_path, monkeypatch):
    settings(flights, *HERE)
    monkeypatch.chdir(tmp_path)
    assert "--store" in run("history").stderr
    monkeypatch.setenv("TIDEGATE_CONFIG", str(flights / "tidegate.toml"))
    assert done("history").count("\n") == 4
    monkeypatch.setenv("TIDEGATE_CONFIG", str(tmp_path / "none.toml"))
    assert "none.toml: No such file or directory" in refused(2, "history")


def test_the_file_of_another_user_counts_only_by_name(flights, monkeypatch):
    """In a shared folder it would choose the servers that get this user's variables (T48)."""
    settings(flights, *HERE)
    path = flights / "tidegate.toml"
    if os.geteuid() == 0:
        os.chown(path, 54_321, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    told = refused(2, "history")
    assert "it belongs to another user" in told
    assert "TIDEGATE_CONFIG" in told
    monkeypatch.setenv("TIDEGATE_CONFIG", str(path))
    assert done("history").count("\n") == 4


def test_status_and_doctor_name_the_origin_of_each_value(flights, monkeypatch):
    settings(flights, *HERE)
    monkeypatch.setenv("TIDEGATE_NAMESPACE", "flights")
    wal = f"--wal=file://{flights}/wal".replace(" ", "%20")
    told = "--store by tidegate.toml, line 1; --namespace by TIDEGATE_NAMESPACE"
    assert f"settings\t{told}\n" in done("status", wal)
    first = json.loads(run("doctor", wal, "--json").stdout)[0]
    assert (first["check"], first["found"]) == ("settings", told)


def test_a_password_is_a_reference_to_the_environment(folder, impatient, monkeypatch):
    settings(folder, 'namespace = "n"', 'store = "redis://u:${CACHE_PASSWORD}@127.0.0.1:1"', impatient)
    assert refused(2, "history") == (
        "tidegate: ConfigError: tidegate.toml, line 2: store refers to the variable CACHE_PASSWORD, which is"
        " not set\n"
    )
    monkeypatch.setenv("CACHE_PASSWORD", "hunter2-of-the-cache")
    assert "hunter2" not in refused(7, "history")


def test_a_password_in_a_file_that_others_read_is_a_warning(folder, impatient):
    settings(folder, 'store = "redis://u:hunter2@127.0.0.1:1"', 'namespace = "n"', impatient)
    (folder / "tidegate.toml").chmod(0o644)
    told = run("history").stderr
    assert "warning: tidegate.toml, line 1: it holds a password" in told
    assert "hunter2" not in told
    (folder / "tidegate.toml").chmod(0o600)
    assert "warning" not in run("history").stderr


@pytest.mark.parametrize(
    "lines,told",
    [
        (['namespace = "n"', 'stroe = "x"'], "line 2: 'stroe' is not a setting; there are store,"),
        (['namespace = "n"', "wal = 7"], "line 2: wal must be a text in quotes"),
        (['namespace = "n"', 'wal = ["a", "b"]'], "line 2: wal must be a text in quotes"),
        (["store = []"], "line 1: store must be a text in quotes"),
        (['namespace = "n"', "[store]", 'url = "x"'], "line 2: store must be a text in quotes"),
        (['namespace = "n"', "store = redis://u:hunter2@h"], "line 2: it is not TOML"),
    ],
)
def test_an_error_names_file_and_line_and_no_content(folder, lines, told):
    settings(folder, *lines)
    message = refused(2, "history")
    assert f"tidegate.toml, {told}" in message
    assert "hunter2" not in message


def test_several_stores_are_a_list(flights):
    settings(flights, 'store = ["main=sqlite://${HERE}/s", "copy=sqlite://${HERE}/t"]', *HERE[1:])
    assert [store["name"] for store in json.loads(run("status", "--json").stdout)["stores"]] == [
        "main",
        "copy",
    ]


@pytest.mark.parametrize("command", [["explain", "TIDEGATE"], ["key-groups", "--parallelism", "2"]])
def test_commands_without_places_do_not_read_it(folder, command):
    settings(folder, "not toml")
    assert "tidegate.toml" not in run(*command).stderr
