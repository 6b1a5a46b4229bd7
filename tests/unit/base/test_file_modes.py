"""Who may read the files and folders of logs, stores and exports on this machine."""

import os
import sqlite3
import stat

import pytest
from typer.testing import CliRunner

import tidegate
from tidegate.base.files import create
from tidegate.cli import app
from tidegate.committers.operations.alias import checked_target, set_alias
from tidegate.errors import ConfigError
from tidegate.options.endpoints import parse_store
from tidegate.testing.example import Example, write_flights


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(root):
    """By path below the folder, the mode of everything."""
    return {str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*")}


def run(*words):
    return CliRunner().invoke(app, [*map(str, words)], prog_name="tidegate")


def where(root):
    return {"wal": f"file://{root}/wal", "store": f"sqlite://{root}/store"}


def options(root):
    return [f"--{name}={url}" for name, url in where(root).items()] + ["--namespace=flights"]


def test_what_is_made_is_for_this_user_alone(tmp_path, umask):
    """Log, store with SQLite's own files, alias, export; also what a trim puts in place of the log."""
    write_flights(**where(tmp_path))
    at = parse_store(where(tmp_path)["store"])
    set_alias(at, "live", checked_target(at, "live", "flights"))
    assert run("export", tmp_path / "exports" / "one", *options(tmp_path)[1:]).exit_code == 0
    with sqlite3.connect(tmp_path / "store" / "flights" / "meta.sqlite") as reader:
        reader.execute("SELECT * FROM catalog").fetchall()
        found = modes(tmp_path)
    reader.close()
    names = {name.rpartition("/")[2].partition("-")[0] for name in found}
    assert {"decisions.log", "lock", "changelog", "meta.sqlite", "live.alias", "shard", "one"} <= names
    assert {"-wal", "-shm"} <= {name[-4:] for name in found}
    wrong = {
        name: oct(mode)
        for name, mode in found.items()
        if mode != (0o700 if (tmp_path / name).is_dir() else 0o600)
    }
    assert wrong == {}


def test_a_folder_opened_to_its_group_is_shared_by_what_comes_later(tmp_path):
    """As the documents say: the folders' modes are set once, by hand."""
    before = os.umask(0o077)
    try:
        example = Example(**where(tmp_path), namespace="flights")
        for path in (
            tmp_path / "wal",
            tmp_path / "store",
            *(tmp_path / "wal").rglob("*"),
            *(tmp_path / "store").rglob("*"),
        ):
            path.chmod(0o2770 if path.is_dir() else 0o660)
        old = modes(tmp_path)
        example.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
        example.close()
    finally:
        os.umask(before)
    later = {name: mode for name, mode in modes(tmp_path).items() if name not in old}
    assert any(name.endswith(".seg") for name in later)
    assert {mode for name, mode in later.items() if (tmp_path / name).is_file()} == {0o660}


def test_doctor_warns_of_a_folder_that_others_may_read(tmp_path):
    write_flights(**where(tmp_path))
    assert "rights" not in run("doctor", *options(tmp_path)).output
    for part in ("wal", "store"):
        (tmp_path / part / "flights").chmod(0o755)
    told = run("doctor", *options(tmp_path)).output
    for what, part in (("log", "wal"), ("store", "store")):
        folder = tmp_path / part / "flights"
        assert f"{what}: rights\twarn\t{folder} can be read by every user" in told
        assert f"chmod -R o-rwx {folder}" in told
        (tmp_path / part / "flights").chmod(0o750)  # to a group, on purpose
    assert "rights" not in run("doctor", *options(tmp_path)).output


def test_mirrors_and_files_of_rows_are_for_this_user_alone(tmp_path, umask):
    write_flights(**where(tmp_path))
    store = where(tmp_path)["store"]
    with tidegate.connect_mirror(store, "flights", ["aircraft"], path=tmp_path / "m.sqlite") as mirror:
        mirror.wait_for(3, timeout=20)
        found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("m.sqlite*")}
    assert {"m.sqlite", "m.sqlite-lock", "m.sqlite-wal"} <= found.keys()
    assert set(found.values()) == {0o600}
    parquet = tmp_path / "rows.parquet"
    told = run("scan", "aircraft", f"--parquet={parquet}", f"--store={store}", "--namespace=flights")
    assert told.exit_code == 0, told.output
    assert stat.S_IMODE(parquet.stat().st_mode) == 0o600


def test_a_mirror_of_an_earlier_release_is_closed_to_others(tmp_path):
    write_flights(**where(tmp_path))
    path = tmp_path / "m.sqlite"
    for _ in range(2):
        with tidegate.connect_mirror(where(tmp_path)["store"], "flights", ["aircraft"], path=path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)


def become_another_users(path):
    if os.geteuid() != 0:
        pytest.skip("only root gives a file away")
    os.chown(path, 54_321, -1)


def become_a_link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def become_two_names(path):
    os.link(path, path.with_name("another-name"))


@pytest.mark.parametrize("change", [become_another_users, become_a_link, become_two_names])
@pytest.mark.parametrize("name", ["m.sqlite", "m.sqlite-lock", "m.sqlite-wal"])
def test_a_file_that_may_be_somebody_elses_is_no_mirror(tmp_path, name, change):
    write_flights(**where(tmp_path))
    store, path = where(tmp_path)["store"], tmp_path / "m.sqlite"
    with tidegate.connect_mirror(store, "flights", ["aircraft"], path=path):
        pass
    if (name, change) == ("m.sqlite", become_a_link):
        pytest.skip("a link to one's own file means that file")
    (tmp_path / name).touch()
    change(tmp_path / name)
    with pytest.raises(ConfigError, match="in a folder that only this user may write"):
        tidegate.connect_mirror(store, "flights", ["aircraft"], path=path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
def test_a_file_that_root_makes_is_the_folders_owners(tmp_path):
    """Red before: a restore by root left segments that the query could not read, and nothing was trimmed."""
    folder = tmp_path / "of-another"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12346)
    os.close(create(folder / "file", os.O_WRONLY))
    made = (folder / "file").stat()
    assert (made.st_uid, made.st_gid, made.st_mode & 0o777) == (12345, 12346, 0o600)
