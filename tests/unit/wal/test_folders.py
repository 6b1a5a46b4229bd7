"""The folders of logs and stores in files: durable up to the root, and told of when they may not be used."""

import contextlib
import errno
import os
import shutil
from pathlib import Path

import pytest

from tidegate.committers.exports.export import export
from tidegate.committers.operations.drop import drop_namespace
from tidegate.errors import ConfigError, StoreUnavailableError, WalUnavailableError
from tidegate.sinks.records import Identity, ReadAt
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.testing.arrow_barrier import BYTES_SCHEMA
from tidegate.testing.example import Example
from tidegate.testing.store.harness import put
from tidegate.wal.file.log import FileLog

IDENTITY = Identity("uuid-1", "n", 4)


@pytest.fixture
def synced(monkeypatch):
    """Every folder that was synced."""
    found, fsync = set(), os.fsync

    def noted(fd):
        found.add(str(Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    return found


@pytest.mark.parametrize("kind", ["log", "store", "export"])
def test_what_another_made_and_did_not_sync_is_synced(tmp_path, synced, kind):
    """I3: it may have died in between, and a power cut take all that lies below."""
    root = tmp_path / "made" / "by" / "another"
    (root / "n").mkdir(parents=True)
    if kind == "log":
        FileLog(root, "n").create()
    elif kind == "export":
        store = SqliteStore(str(tmp_path / "s"), "n")
        store.create(IDENTITY)
        store.claim(1, "w")
        put(store, 1, {"t": {b"a": b"1"}})
        store.schemas = lambda: {"schema-1": BYTES_SCHEMA}
        synced.clear()
        export(store, IDENTITY, 1, root / "n" / "new")
    else:
        SqliteStore(str(root), "n").create(IDENTITY)
    above = {str(root), *(str(each) for each in root.parents if tmp_path in (each, *each.parents))}
    assert above <= synced


def test_a_folder_above_that_cannot_be_synced_is_passed_over(tmp_path, monkeypatch):
    opened = os.open

    def refused(path, *more, **options):
        if str(path) == str(tmp_path.parent):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *more, **options)

    monkeypatch.setattr(os, "open", refused)
    FileLog(tmp_path / "w", "n").create()
    SqliteStore(str(tmp_path / "s"), "n").create(IDENTITY)


# -- a folder whose rights are taken away while it is open ------------------------------------------------


@pytest.fixture
def taken_away(tmp_path):
    """A store with a version; nobody may search its folder any more, not even who can do all."""
    store = SqliteStore(str(tmp_path), "n", timeout_s=0.05)
    store.create(IDENTITY)
    store.claim(1, "w")
    put(store, 1, {"t": {b"a": b"1"}})
    store._files.forget()
    folder = tmp_path / "n"
    root = os.geteuid() == 0
    if root:
        tmp_path.chmod(0o755)
        for path in folder.iterdir():
            path.chmod(0o666)
    folder.chmod(0o600)
    if root:
        os.seteuid(65_534)
    yield store
    if root:
        os.seteuid(0)
    folder.chmod(0o755)
    store.close()


@pytest.mark.parametrize(
    "call",
    [
        SqliteStore.pointer,
        SqliteStore.identity,
        SqliteStore.size,
        lambda store: store.get_many(ReadAt("t", 1), [b"a"]),
        lambda store: list(store.scan(ReadAt("t", 1), 0)),
        lambda store: store.claim(2, "w"),
    ],
)
def test_it_says_that_the_folder_cannot_be_read(taken_away, call):
    with pytest.raises(ConfigError, match="Permission denied; give a folder that this user can read"):
        call(taken_away)


def test_a_store_that_cannot_be_made_there_says_so(taken_away):
    with pytest.raises(ConfigError, match="give one that can"):
        taken_away.create(IDENTITY)


def test_a_folder_that_cannot_be_opened_says_so(tmp_path, monkeypatch):
    store, opened = SqliteStore(str(tmp_path), "n"), os.open

    def refused(path, *more, **options):
        if str(path) == str(tmp_path / "n"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *more, **options)

    store.create(IDENTITY)
    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(ConfigError, match="cannot be read by this user"):
        store.create(IDENTITY)
    with pytest.raises(ConfigError, match="cannot be read by this user"):
        store.drop()


KINDS = {"log": FileLog, "store": lambda root, name: SqliteStore(str(root), name)}


def made(kind, root, name="n"):
    place = KINDS[kind](root, name)
    place.create(*([IDENTITY] if kind == "store" else []))
    return place


@pytest.mark.parametrize("inner", KINDS)
@pytest.mark.parametrize("outer", KINDS)
@pytest.mark.parametrize("below", ["", "n", "n/deeper/still", "n/changelog"])
def test_no_log_or_store_is_made_within_the_folder_of_another(tmp_path, outer, inner, below):
    """The drop of the outer one would remove the inner one."""
    place = made(outer, tmp_path)
    name = "n" if not below else "changelog"
    if not below and inner == outer:
        made(inner, tmp_path, "beside")  # two namespaces of one log's folder
        return
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=r"has the files of another log or store .*: give a folder outside"):
        made(inner, tmp_path / below, name)
    assert sorted(tmp_path.rglob("*")) == before
    place.close()


@pytest.mark.parametrize("inner", KINDS)
def test_a_link_into_the_folder_of_another_is_followed(tmp_path, inner):
    made("log", tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "n")
    with pytest.raises(ConfigError, match="give a folder outside of it"):
        made(inner, tmp_path / "link", "m")


@pytest.mark.parametrize(
    "entry", ["export/rows.parquet", "notes.txt", "changelog/n/decisions.log", ".hidden"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_drop_removes_nothing_where_somebody_else_has_files(tmp_path, kind, entry):
    place = made(kind, tmp_path)
    own = tmp_path / "n" / entry
    own.parent.mkdir(exist_ok=True, parents=True)
    own.write_text("mine")
    before = [path for path in tmp_path.rglob("*") if not path.name.endswith(("-wal", "-shm"))]
    with pytest.raises(ConfigError, match=r"is none of its files.*nothing was removed: move it elsewhere"):
        place.drop()
    assert [path for path in before if not path.exists()] == []
    assert place.foreign_entry()
    own.unlink()
    if kind == "store" or not entry.startswith("changelog"):
        shutil.rmtree(tmp_path / "n" / entry.partition("/")[0], ignore_errors=True)
    else:
        own.parent.rmdir()
    assert place.drop()
    assert not (tmp_path / "n").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_the_drop_of_a_namespace_looks_at_all_its_places_first(tmp_path, kind):
    with contextlib.closing(Example(f"file://{tmp_path}/w", f"sqlite://{tmp_path}/s", "n")) as example:
        example.write({"aircraft": {"N1": {"carrier": "UA", "flights": 1}}})
        (tmp_path / kind[0].replace("l", "w") / "n" / "mine").write_text("mine")
        before = [path for path in tmp_path.rglob("*") if not path.name.endswith(("-wal", "-shm"))]
        with pytest.raises(ConfigError, match="nothing was removed"):
            drop_namespace(example.driver)
        assert [path for path in before if not path.exists()] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_is_taken_is_not_made_a_namespace(tmp_path, kind):
    """Such as one with a backup: a drop of the namespace would remove it."""
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "chain").write_text("a backup")
    with pytest.raises(ConfigError, match=r"none of its files.*nothing was made: give another folder"):
        made(kind, tmp_path)
    assert [path.name for path in (tmp_path / "n").iterdir()] == ["chain"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_drop_leaves_a_folder_of_its_own_name_for_what_is_dropped(tmp_path, kind):
    place = made(kind, tmp_path)
    (tmp_path / "n.dropped").mkdir()
    (tmp_path / "n.dropped" / "precious").write_text("mine")
    with pytest.raises(ConfigError, match="nothing was removed"):
        place.drop()
    assert (tmp_path / "n.dropped" / "precious").exists()
    assert (tmp_path / "n").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_namespace_behind_a_link_is_dropped_with_what_the_link_leads_to(tmp_path, kind):
    """A folder that was moved to a larger disk."""
    place = made(kind, tmp_path / "root")
    place.close()
    larger = tmp_path / "larger" / "n"
    larger.parent.mkdir()
    (tmp_path / "root" / "n").rename(larger)
    (tmp_path / "root" / "n").symlink_to(larger)
    assert KINDS[kind](tmp_path / "root", "n").drop()
    assert not larger.exists()
    assert [path.name for path in (tmp_path / "root").iterdir() if path.name != ".tidegate"] == []
    assert not KINDS[kind](tmp_path / "root", "n").drop()


@pytest.mark.parametrize("name", ["n", "n.dropped"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_link_to_the_folder_of_another_namespace_is_not_followed(tmp_path, kind, name):
    """Red before: who may write one store's folder had the administrator's drop remove any other one."""
    made(kind, tmp_path / "private", "orders").close()
    place = made(kind, tmp_path / "root")
    place.close()
    if name == "n":
        shutil.rmtree(tmp_path / "root" / "n")
    (tmp_path / "root" / name).symlink_to(tmp_path / "private" / "orders")
    with pytest.raises(ConfigError, match=rf"/root/{name} is none of its files.*nothing was removed"):
        KINDS[kind](tmp_path / "root", "n").drop()
    assert [*(tmp_path / "private" / "orders").iterdir()]


@pytest.mark.parametrize("folder", [".", "n"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_this_user_may_not_change_is_refused_before_a_drop(tmp_path, monkeypatch, kind, folder):
    """Red before: the store was gone when the log's folder refused, or was left as no namespace any more."""
    place = made(kind, tmp_path)
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != (tmp_path / folder))
    with pytest.raises(ConfigError, match=r"this user may not remove files from .*; nothing was removed"):
        place.foreign_entry()


@pytest.mark.parametrize("call", ["mkdir", "open", "fsync"])
@pytest.mark.parametrize("code", ["EIO", "ESTALE", "EMFILE"])
@pytest.mark.parametrize("part", ["log", "store"])
def test_a_disk_that_does_not_answer_once_is_no_wrong_setting(part, code, call, tmp_path, monkeypatch):
    """A supervisor starts the query again after these errors, and not after a ConfigError."""
    identity, real, failed = Identity("uuid-1", "n", 2), getattr(os, call), []

    def fails_once(*args, **words):
        if not failed and (call == "fsync" or str(args[0]).startswith(str(tmp_path))):
            failed.append(1)
            raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))
        return real(*args, **words)

    with (
        contextlib.closing(FileLog(tmp_path / "wal", "n")) as log,
        contextlib.closing(SqliteStore(str(tmp_path / "store"), "n")) as store,
    ):
        make = log.create if part == "log" else lambda: store.create(identity)
        with monkeypatch.context() as at_call:
            at_call.setattr(os, call, fails_once)
            with contextlib.suppress(WalUnavailableError, StoreUnavailableError):
                make()
        assert failed
        make()
