"""Where tasks ran: who says so, where it is kept, and for which lineage. Hints: trouble is a warning."""

import os
import subprocess
import sys
import threading

import pytest

from tidegate.errors import ConfigError
from tidegate.spark.placement import locality
from tidegate.spark.placement.assignment import RanAt
from tidegate.spark.placement.locality import (
    LOCATION_VARIABLE,
    EnvironmentLocation,
    FileMetadataStore,
    HostLocation,
    Locality,
    LocalityManager,
    MemoryMetadataStore,
    executor_here,
    location_by,
)

RAN = [RanAt("0", "host-a"), None, RanAt("11", "höst b")]


@pytest.fixture(params=["memory", "file"])
def store(request, tmp_path):
    return (
        MemoryMetadataStore() if request.param == "memory" else FileMetadataStore(tmp_path / "new" / "meta")
    )


# -- stores ---------------------------------------------------------------------------------------


def test_a_store_puts_gets_and_removes(store):
    assert (store.get(b"a"), store.all()) == (None, {})
    store.remove(b"a")
    store.put(b"a", b"1")
    store.put(b"b/../\0\xff", b"")
    store.put(b"a", b"2")
    assert store.all() == {b"a": b"2", b"b/../\0\xff": b""}
    store.remove(b"a")
    assert (store.get(b"a"), store.get(b"b/../\0\xff")) == (None, b"")


def test_another_process_finds_what_lies_in_files(tmp_path):
    FileMetadataStore(tmp_path).put(b"a", b"1")
    assert FileMetadataStore(tmp_path).all() == {b"a": b"1"}


def test_files_of_others_and_of_killed_writers_are_no_keys(tmp_path):
    store = FileMetadataStore(tmp_path)
    store.put(b"a", b"1")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".0123456789abcdef").write_bytes(b"half a val")
    assert store.all() == {b"a": b"1"}


@pytest.mark.parametrize("key", [b"", b"x" * 101])
def test_a_key_that_cannot_be_a_files_name_is_refused(tmp_path, key):
    with pytest.raises(ValueError, match="1 to 100 bytes"):
        FileMetadataStore(tmp_path).put(key, b"")


def test_a_reader_sees_a_whole_value_or_the_one_before(tmp_path):
    store, stop = FileMetadataStore(tmp_path), threading.Event()
    values = [bytes([n]) * 5_000 for n in range(5)]
    store.put(b"a", values[0])

    def write():
        while not stop.is_set():
            for value in values:
                store.put(b"a", value)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            assert store.get(b"a") in values
    finally:
        stop.set()
        writer.join()


# -- the manager ----------------------------------------------------------------------------------


def test_it_keeps_where_tasks_ran_and_where_executors_are(store):
    manager = LocalityManager(store, "query-1")
    assert manager.task_locality() == []
    manager.write_task_locality(RAN)
    assert manager.processor_locality() == {}
    manager.write_processor_locality({"10.0.0.1": "host-a", "b": "höst b"})
    assert LocalityManager(store, "query-1").task_locality() == RAN
    assert LocalityManager(store, "query-1").processor_locality() == {"10.0.0.1": "host-a", "b": "höst b"}


def test_another_lineage_starts_with_none_and_removes_what_was(store):
    """What a checkpoint's tasks cached is of no use to another one."""
    store.put(b"somebody else's", b"1")
    LocalityManager(store, "query-1").write_task_locality(RAN)
    LocalityManager(store, "query-1").write_processor_locality({"0": "a"})
    other = LocalityManager(store, "query-2")
    assert other.task_locality() == []
    assert LocalityManager(store, "query-1").task_locality() == RAN  # looking removes nothing
    other.write_task_locality(RAN[:1])
    assert LocalityManager(store, "query-1").task_locality() == []
    assert store.all().keys() == {b"somebody else's", b"task-locality/query-2"}


@pytest.mark.parametrize("content", [b"\xff", b"{}", b"[1]", b'[["a"]]', b"[" * 100_000])
def test_hostile_bytes_are_a_warning_and_nothing_known(store, caplog, content):
    """T49."""
    store.put(b"task-locality/q", content)
    manager = LocalityManager(store, "q")
    assert manager.task_locality() == []
    store.put(b"processor-locality/q", content)
    assert manager.processor_locality() == {} or content == b"{}"
    assert len(caplog.records) == 1


class Broken(MemoryMetadataStore):
    error = OSError("gone")

    def get(self, *_):
        raise self.error

    put = all = get


@pytest.mark.parametrize("error", [OSError("gone"), KeyError("gone"), RuntimeError("gone")])
def test_a_store_that_does_not_answer_is_one_warning(caplog, error):
    """A user's own may raise anything."""
    broken = Broken()
    broken.error = error
    manager = LocalityManager(broken, "q")
    manager.write_task_locality(RAN)
    manager.write_processor_locality({})
    assert manager.task_locality() == []
    assert [record.getMessage() for record in caplog.records] == [
        f"the places of tasks are not stored, other executors may get them: {error}"
    ]


# -- who am I -------------------------------------------------------------------------------------

ASK = (
    "from tidegate.spark.placement.locality import *;"
    " print(*executor_here(), HostLocation().location_id(), sep='|')"
)
AS_EXECUTOR = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"


def test_a_worker_finds_its_executor_among_its_parents():
    """Two up, as below PySpark's daemon; the words are those of every cluster manager."""
    words = ["--driver-url", "spark://x", "--executor-id", "7", "--hostname", "127.0.0.3", "--cores", "1"]
    between = [sys.executable, "-c", AS_EXECUTOR, ASK]
    code = f"import subprocess; subprocess.run({between!r}, check=True)"
    ran = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout == "7|127.0.0.3|127.0.0.3\n"


def test_outside_executors_the_location_is_the_machine():
    assert executor_here() == ("", "")
    assert HostLocation().location_id() == os.uname().nodename


def test_an_environment_variable_says_more_than_the_host(monkeypatch):
    monkeypatch.delenv(LOCATION_VARIABLE, raising=False)
    assert EnvironmentLocation().location_id() == HostLocation().location_id()
    monkeypatch.setenv(LOCATION_VARIABLE, "node-3")
    assert EnvironmentLocation().location_id() == "node-3"
    monkeypatch.setenv("POD_NODE", "node-4")
    assert EnvironmentLocation("POD_NODE").location_id() == "node-4"


# -- a user's own ---------------------------------------------------------------------------------


class Says:
    """A provider with this answer."""

    def __init__(self, told):
        self.told = told

    def location_id(self):
        if isinstance(self.told, Exception):
            raise self.told
        return self.told


def test_a_provider_of_ones_own_is_asked():
    assert location_by(Says("rack-7")) == "rack-7"


@pytest.mark.parametrize("told", [None, "", 7, ValueError("no rack"), ZeroDivisionError()])
def test_a_provider_that_says_nothing_of_use_is_one_warning_and_the_host(caplog, monkeypatch, told):
    monkeypatch.setattr(locality, "_warned", set())
    for _ in range(2):
        assert location_by(Says(told)) == HostLocation().location_id()
    assert len(caplog.records) == 1
    assert "Says did not return the location" in caplog.text


def test_both_parts_have_to_be_what_is_asked_for():
    Locality()
    Locality(Says("a"), MemoryMetadataStore())
    with pytest.raises(ConfigError, match=r"provider .* has no method location_id"):
        Locality(provider="rack-7")
    with pytest.raises(ConfigError, match=r"metadata .* has no method put"):
        Locality(metadata={})
    with pytest.raises(ConfigError, match="give an object of it"):
        Locality(provider=HostLocation)
