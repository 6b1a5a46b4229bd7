"""From a URL to a store."""

import contextlib
import os

import pytest

from tidegate.errors import ConfigError, StoreLostError
from tidegate.sinks import open_store as module
from tidegate.sinks.memory.store import MemoryStore, forget
from tidegate.sinks.open_store import open_store, shared_store
from tidegate.sinks.records import Identity
from tidegate.sinks.sqlite.store import SqliteStore


def test_memory_is_shared_by_name():
    one, same, other = (open_store(f"memory://open-{name}", "n") for name in ("a", "a", "b"))
    assert isinstance(one, MemoryStore)
    one.create(Identity("u", "n", 1))
    assert same.identity() == Identity("u", "n", 1)
    assert other.identity() is None
    forget("open-a")
    forget("open-b")


def test_sqlite_takes_a_folder_and_makes_nothing(tmp_path):
    store = open_store(f"sqlite://{tmp_path}/with%20space", "n", {"timeout_s": 1})
    assert isinstance(store, SqliteStore)
    assert not (tmp_path / "with space").exists()
    store.create(Identity("u", "n", 1))
    assert (tmp_path / "with space" / "n" / "meta.sqlite").exists()
    store.close()


def test_a_slash_too_many_is_the_same_folder(tmp_path):
    """Some other libraries write absolute paths with four."""
    with contextlib.closing(open_store(f"sqlite:///{tmp_path}", "n")) as store:
        store.create(Identity("u", "n", 1))
    assert (tmp_path / "n" / "meta.sqlite").exists()


@pytest.mark.parametrize("url", ["", "x", "mysql://user:secret@host/db", "/plain/path", "sqlite3:///x"])
def test_an_unknown_scheme_names_the_known_ones(url):
    with pytest.raises(ConfigError, match="known are sqlite:///path, redis://") as refused:
        open_store(url, "n")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:relative",
        "sqlite:/path",
        "sqlite://relative/path",
        "sqlite:///",
        "sqlite://",
        "sqlite:///x?mode=ro",
        "sqlite:///x#y",
    ],
)
def test_a_sqlite_url_is_an_absolute_path(url):
    with pytest.raises(ConfigError, match="sqlite:///absolute"):
        open_store(url, "n")


def test_unknown_options_name_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match="unknown option speed, tiemout_s; there are timeout_s"):
        open_store(f"sqlite://{tmp_path}", "n", {"tiemout_s": 1, "speed": 2})
    with pytest.raises(ConfigError, match="unknown option timeout_s; it has none"):
        open_store("memory://x", "n", {"timeout_s": 1})


@pytest.mark.parametrize("value", [None, "1", True, -1, float("nan")])
def test_a_timeout_is_a_number_of_seconds(tmp_path, value):
    with pytest.raises(ConfigError, match="timeout_s"):
        open_store(f"sqlite://{tmp_path}", "n", {"timeout_s": value})


def test_a_namespace_has_a_proper_name(tmp_path):
    for url in ("memory://x", f"sqlite://{tmp_path}"):
        with pytest.raises(ConfigError, match="namespace"):
            open_store(url, "a/b")


def test_a_process_shares_one_store_per_place(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_shared", {})
    url = f"sqlite://{tmp_path}"
    for name in ("n", "m"):
        made_in(url, name, "u")
    one = shared_store(url, "n", "u")
    assert shared_store(url, "n", "u", {}) is one
    assert shared_store(url, "m", "u") is not one
    assert shared_store(url, "n", "u", {"timeout_s": 1}) is not one
    assert all(key[0] == os.getpid() for key in module._shared)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert shared_store(url, "n", "u") is not one  # T13: another process never gets it


def test_what_was_opened_for_a_dropped_namespace_is_not_used_for_one_of_the_same_name(tmp_path, monkeypatch):
    """A process outlives the namespace: with the old files open it would write where nobody reads."""
    monkeypatch.setattr(module, "_shared", {})
    url = f"sqlite://{tmp_path}"
    made_in(url, "n", "first")
    old = shared_store(url, "n", "first")
    with contextlib.closing(open_store(url, "n")) as store:
        store.drop()
    with pytest.raises(StoreLostError):  # as where it was open: the query waits until it is rebuilt
        shared_store(url, "n", "second")
    made_in(url, "n", "second")
    with pytest.raises(ConfigError, match="for namespace third, and the store has namespace second"):
        shared_store(url, "n", "third")
    new = shared_store(url, "n", "second")
    assert new is not old
    assert new.identity().uuid == "second"


def made_in(url, name, uuid):
    with contextlib.closing(open_store(url, name)) as store:
        store.create(Identity(uuid, name, 4))
