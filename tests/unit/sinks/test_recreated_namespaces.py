"""A namespace that was dropped, and perhaps made anew, while others have it open."""

import contextlib
import fcntl
import os
import threading
import time
import types
import uuid

import pytest

import tidegate
from tidegate.base import files
from tidegate.errors import ConfigError, StoreLostError, StoreUnavailableError
from tidegate.sinks.cassandra.namespace import CassandraNamespace, Highest, Made
from tidegate.sinks.open_store import open_store
from tidegate.sinks.records import Identity, ReadAt
from tidegate.sinks.redis import namespace
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.testing.example import Example, write_flights


def test_a_new_connection_never_meets_a_namespace_that_was_made_since(tmp_path):
    """A second thread, and a child of a fork, open the files anew, by their names."""
    url = f"sqlite://{tmp_path}/store"
    write_flights(f"file://{tmp_path}/wal", url)
    with tidegate.connect(url, "flights") as gate, contextlib.closing(open_store(url, "flights")) as mine:
        assert gate.table("aircraft").get("N14228") == {"carrier": "UA", "flights": 2}
        mine.pointer()

        def another_thread_meets(read):
            with pytest.raises(ConfigError, match="dropped"):
                read()

        mine.drop()
        with pytest.raises(StoreLostError, match="If nobody dropped it"):
            gate.version()
        example = Example(f"file://{tmp_path}/wal2", url)
        for flights in range(5):
            example.write({"aircraft": {"N14228": {"carrier": "NEW", "flights": flights}}})
        another_thread_meets(gate.version)
        another_thread_meets(lambda: gate.table("aircraft").get("N14228"))
        another_thread_meets(lambda: list(gate.table("aircraft").scan()))
        another_thread_meets(lambda: gate._reader.store.claim(99, "zombie"))
        example.close()
    with tidegate.connect(url, "flights") as fresh:
        assert fresh.table("aircraft").get("N14228") == {"carrier": "NEW", "flights": 4}
        assert fresh._reader.store.pointer().epoch == 1


def test_a_shard_that_is_opened_late_is_no_loss_where_the_namespace_was_dropped(tmp_path):
    """Between the pointer and the rows: a gate by an alias looks where the alias points now."""
    url = f"sqlite://{tmp_path}/store"
    write_flights(f"file://{tmp_path}/wal", url)
    for made_anew in (False, True):
        with contextlib.closing(open_store(url, "flights")) as store:
            version = store.pointer().visible
            with contextlib.closing(open_store(url, "flights")) as other:
                other.drop()
            if made_anew:
                write_flights(f"file://{tmp_path}/wal2", url)
            gone = (
                (ConfigError, "dropped while it was open") if made_anew else (StoreLostError, "not there any")
            )
            with pytest.raises(gone[0], match=gone[1]):
                store.get_many(ReadAt("aircraft", version), [b"N14228"])
        if not made_anew:
            write_flights(f"file://{tmp_path}/wal1", url)


def test_in_cassandra_what_was_looked_at_is_what_is_read(monkeypatch):
    """With other key groups a scan of what another has made since would miss rows."""
    there = [
        Made(uuid.uuid4(), Identity(f"uuid-{groups}", "n", groups), None, 0, 0, Highest())
        for groups in (4, 8)
    ]
    space = CassandraNamespace("cassandra://host/keyspace", "n", {})
    monkeypatch.setattr(space, "_find", lambda: there[0])
    monkeypatch.setattr(space, "_readable", lambda found: found)
    monkeypatch.setattr(space, "_has_pointer", lambda _: True)
    assert space.identity().key_groups == 4
    gone = there.pop(0)
    with pytest.raises(ConfigError, match="dropped while it was open"):
        _ = space.made
    there.insert(0, gone)
    assert space.made == gone


def test_who_waited_for_a_folder_that_was_dropped_leaves_the_new_one_to_its_maker(tmp_path):
    """The lock that it got is the old folder's: beside it another process makes the new one."""
    store = SqliteStore(str(tmp_path), "n")
    folder, results = tmp_path / "n", []
    folder.mkdir()
    maker = os.open(folder, os.O_RDONLY)
    fcntl.flock(maker, fcntl.LOCK_EX)
    waits = threading.Event()
    times = types.SimpleNamespace(monotonic=time.monotonic, sleep=lambda s: (waits.set(), time.sleep(s)))

    def drop():
        results.append(store.drop())

    def create():
        with pytest.raises(StoreUnavailableError, match="dropped while it was created"):
            store.create(Identity("uuid-1", "n", 4))
        results.append("refused")

    for work in (drop, create):
        waits.clear()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(files, "time", times)
            thread = threading.Thread(target=work)
            thread.start()
            assert waits.wait(30)
            folder.rename(tmp_path / f"old-{work.__name__}")
            folder.mkdir()
            os.close(maker)
            thread.join(30)
        maker = os.open(folder, os.O_RDONLY)
        fcntl.flock(maker, fcntl.LOCK_EX)
    os.close(maker)
    assert (results, folder.is_dir(), list(folder.iterdir())) == ([False, "refused"], True, [])


def test_a_late_drop_in_redis_leaves_one_alone_that_is_just_being_made(monkeypatch):
    """It has a uuid, and no identity yet. No server."""
    space = namespace.RedisNamespace("redis://nowhere", "n", {})
    space._known = Identity("uuid-1", "n", 2)
    removed = []

    def run(calls):
        (call,) = calls
        if b"HGET" in call.args[0]:
            return [b"uuid-2"]
        if b"HMGET" in call.args[0]:
            return [[b"{}", None]]
        removed.append(call.key)
        return [1]

    monkeypatch.setattr(space.calls, "run", run)
    monkeypatch.setattr(space.calls, "each_primary_scan", lambda _: [b"header"])
    with pytest.raises(ConfigError, match="was dropped while it was open here"):
        space.drop()
    assert removed == []
