"""tidegate.toml: store, log and namespace of a folder, after options and variables."""

import contextlib
import json
import os
import socket
import stat
import sys

import pytest

from support.cli import done, done_json, refused, run
from tidegate.cli.core import settings_file
from tidegate.errors import ConfigError
from tidegate.testing.example import write_flights


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder beside the data, without a variable that counts. Nothing is trusted yet."""
    for name in [name for name in os.environ if name.startswith("TIDEGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
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


def settings(folder, *lines, trusted=True):
    """Write the file; the user trusts it, if it can be read."""
    path = folder / "tidegate.toml"
    path.write_text("\n".join(lines) + "\n")
    if trusted:
        with contextlib.suppress(ConfigError):
            settings_file.trust(path)


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
        (["store = " + "9" * 5_000], "it is not TOML"),
        (['store = "sqlite:///hunter2\\u0000x"'], "line 1: store must be a text"),
        (['namespace = "n"', "a" + ".a" * 30_000 + " = 1"], "line 2: it is not a setting"),
        (["[a" + ".a" * 30_000 + "]"], "line 1: it is not a setting"),
        (['"\\"".a' + ".a" * 30_000 + '."x"=1'], "line 1: it is not a setting"),
        (["a = 1"] * 20_000, "it is larger than 65,536 bytes"),
    ],
)
def test_an_error_names_file_and_line_and_no_content(folder, lines, told):
    settings(folder, *lines)
    message = refused(2, "history")
    assert message.startswith("tidegate: ConfigError: tidegate.toml")
    assert told in message
    assert "hunter2" not in message


def test_several_stores_are_a_list(flights):
    settings(flights, 'store = ["main=sqlite://${HERE}/s", "copy=sqlite://${HERE}/t"]', *HERE[1:])
    assert [store["name"] for store in json.loads(run("status", "--json").stdout)["stores"]] == [
        "main",
        "copy",
    ]


@pytest.mark.parametrize("command", [["explain", "TIDEGATE"], ["new", "made"]])
def test_commands_without_places_do_not_read_it(folder, command):
    settings(folder, "not toml")
    assert "tidegate.toml" not in run(*command).stderr


# -- a file that was found is not the user's own ----------------------------------------------------


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(settings_file, "_is_terminal", lambda: True)


LOOKS = [("history",), ("get", "t", "k"), ("status",), ("doctor",), ("verify",), ("recover",), ("vacuum",)]


@pytest.mark.parametrize("command", LOOKS)
def test_a_found_file_is_not_used_before_the_user_trusts_it(flights, command):
    settings(flights, *HERE, trusted=False)
    assert "has not trusted it yet" in refused(2, *command)


def test_a_file_is_asked_for_once_and_again_when_it_changes(flights, terminal, monkeypatch):
    settings(flights, *HERE, trusted=False)
    asked = run("history", typed="y\n")
    assert "batch 2" in asked.stdout  # beside the echo of what was typed
    assert f"store: sqlite://{flights}/s".replace(" ", "%20") in asked.stderr.replace(" ", "%20")
    monkeypatch.setattr(settings_file, "_is_terminal", lambda: False)
    assert done("history").count("\n") == 4
    (kept,) = (flights.parent / "state").rglob("trusted")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    settings(flights, *HERE[:2], 'namespace = "other"', trusted=False)
    assert "has not trusted it yet" in refused(2, "history")


def test_another_folder_with_the_same_file_is_asked_for(flights, monkeypatch):
    settings(flights, *HERE)
    copy = flights.parent / "a copy"
    copy.mkdir()
    settings(copy, *HERE, trusted=False)
    monkeypatch.chdir(copy)
    assert "has not trusted it yet" in refused(2, "history")


def test_an_option_file_of_the_folder_is_part_of_what_is_trusted(folder, impatient):
    settings(folder, 'store = "redis://127.0.0.1:1"', 'namespace = "n"', impatient)
    assert "has not trusted" not in refused(7, "history")
    (folder / "impatient").write_text("timeout_s=0.2\n")
    assert "has not trusted it yet" in refused(2, "history")


def linked(file, outside):
    file.symlink_to(outside)
    return file.name


@pytest.mark.parametrize(
    "named",
    [linked, lambda _, outside: str(outside), lambda _, outside: f"../{outside.name}"],
    ids=["a link", "its path", "above"],
)
def test_an_option_file_outside_of_the_folder_is_part_of_what_is_trusted(folder, named):
    outside = folder.parent / "outside"
    outside.write_text("timeout_s=0.1\n")
    outside.chmod(0o600)
    name = named(folder / "options", outside)
    settings(folder, 'store = "redis://127.0.0.1:1"', 'namespace = "n"', f'store_config = "{name}"')
    assert "has not trusted" not in refused(7, "history")
    outside.write_text("timeout_s=0.2\n")
    assert "has not trusted it yet" in refused(2, "history")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file away")
def test_an_option_file_of_another_user_is_refused(folder):
    file = folder / "options"
    file.write_text("timeout_s=0.1\n")
    file.chmod(0o644)
    os.chown(file, 12_345, -1)
    words = ("--store", "redis://127.0.0.1:1", "--namespace", "n", "--store-config", str(file))
    assert "it belongs to another user (uid 12345)" in refused(2, "history", *words)


CODE = "import pathlib\npathlib.Path('ran').touch()\ndef login(): return 'u', 't', None\n"


@pytest.mark.parametrize("key", ["store_config", "wal_config"])
@pytest.mark.parametrize("named", ["found", "by the variable of the file", "by its own", "by the option"])
def test_a_function_is_named_by_the_user_and_not_by_a_file_that_was_found(folder, monkeypatch, key, named):
    """The user has trusted the file, and its module lies where Python looks."""
    (folder / "code_of_the_folder.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(folder))
    lines = ["credential_provider=code_of_the_folder:login", "timeout_s=1"]
    if key == "wal_config":
        lines += ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN"]
    file = folder / "options"
    file.write_text("\n".join(lines))
    file.chmod(0o600)
    listening = socket.create_server(("127.0.0.1", 0))  # a refused connection would be the whole answer
    port = listening.getsockname()[1]
    url = f"redis://127.0.0.1:{port}" if key == "store_config" else f"kafka://127.0.0.1:{port}"
    settings(folder, f'{key.partition("_")[0]} = "{url}"', 'namespace = "n"', f'{key} = "options"')
    monkeypatch.setenv(
        "TIDEGATE_WAL" if key == "store_config" else "TIDEGATE_STORE",
        {"store_config": f"file://{folder.parent}/wal", "wal_config": f"sqlite://{folder.parent}/s"}[key],
    )
    option = f"--{key.replace('_', '-')}"
    more = [option, "options"] if named == "by the option" else []
    if named == "by its own":
        monkeypatch.setenv(f"TIDEGATE_{key.upper()}", "options")
    if named == "by the variable of the file":
        monkeypatch.setenv("TIDEGATE_CONFIG", str(folder / "tidegate.toml"))
    with listening:
        said = run("status", *more).stderr
    refusal = f"a tidegate.toml that was found chose this file: if you trust both, give {option} yourself"
    assert (refusal in said) == (named == "found")
    if named == "found" or key == "wal_config":  # a store is asked for the login once it is connected
        assert (folder / "ran").exists() == (named != "found")
    sys.modules.pop("code_of_the_folder", None)


def test_a_no_uses_nothing(folder, terminal):
    settings(folder, 'store = "redis://u:${LOGIN}@127.0.0.1:1"', 'namespace = "\\u001b[2J"', trusted=False)
    said = run("history", typed="n\n")
    assert said.exit_code == 2
    assert "store: redis://***@127.0.0.1:1, with the variables LOGIN" in said.stderr
    assert "was not used" in said.stderr
    assert "\x1b" not in said.output


def test_a_place_that_cannot_remember_asks_again(flights, terminal, monkeypatch):
    (flights.parent / "state").write_text("no folder")
    settings(flights, *HERE, trusted=False)
    for _ in range(2):
        assert "Trust it" in run("history", typed="y\n").stderr


@pytest.mark.parametrize("mode", [0o622, 0o620, 0o602, 0o666, 0o777])
@pytest.mark.parametrize("name", ["tidegate.toml", "impatient"])
def test_a_file_that_others_may_write_is_refused(folder, impatient, mode, name, monkeypatch):
    settings(folder, 'store = "redis://127.0.0.1:1"', 'namespace = "n"', impatient)
    (folder / name).chmod(mode)
    assert "others may write it" in refused(2, "history")
    monkeypatch.setenv("TIDEGATE_CONFIG", str(folder / "tidegate.toml"))
    assert "others may write it" in refused(2, "history")


def test_a_pipe_is_no_file(folder):
    os.mkfifo(folder / "tidegate.toml")
    assert "it is no regular file" in refused(2, "history")


@pytest.mark.parametrize(
    "line",
    [
        'store = "redis://${SECRET}:6379"',
        'store = "redis://u:p@${SECRET}:6379"',
        'store = "redis://u:p@h.${SECRET}.example"',
        'store = "${SECRET}"',
        'store = "${SECRET}://u:p@h"',
        'store = "cassandra://u:p@h/${SECRET}"',
        'store = ["main=redis://h", "${SECRET}=redis://h"]',
        'store = "redis://u:${SECRET}/x@h"',
        'store = "sqlite:///data/${SECRET}"',
        'store = "sqlite://${SECRET}@/data"',
        'wal = "kafka://h,${SECRET}.example:9092"',
        'wal_config = "/data/${SECRET}"',
        'store_config = "${SECRET}"',
        'namespace = "${SECRET}"',
    ],
)
def test_a_variable_may_only_be_in_a_login(folder, line, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    keys = {"store": 'store = "redis://127.0.0.1:1"', "namespace": 'namespace = "n"'}
    settings(folder, line, *(text for key, text in keys.items() if not line.startswith(f"{key} ")))
    (folder / "tidegate.toml").chmod(0o600)
    message = refused(2, "history")
    assert "line 1: ${SECRET} is not in the login" in message
    assert "hunter2" not in message


@pytest.mark.parametrize("value", ["a/b", "a b", "a?b", "a#b", "x@evil:1/", "a\tb", "a\nb"])
def test_a_variable_cannot_change_the_server(folder, impatient, value, monkeypatch):
    monkeypatch.setenv("SECRET", value)
    settings(folder, 'store = "redis://u:${SECRET}@127.0.0.1:1"', 'namespace = "n"', impatient)
    message = refused(2, "history")
    assert "percent-encode it" in message
    assert value not in message
