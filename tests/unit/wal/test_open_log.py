"""From a URL to a log: each scheme, each refusal, and the one log of a process."""

import os
import subprocess
import sys

import pytest

from tidegate.errors import ConfigError
from tidegate.wal import open_log as module
from tidegate.wal.file.log import FileLog
from tidegate.wal.memory_log import MemoryLog, forget
from tidegate.wal.open_log import open_log, shared_log


def test_a_file_url_names_a_folder(tmp_path):
    log = open_log(f"file://{tmp_path}/a%20b", "Top-10", {"lock_timeout_s": 2})
    assert isinstance(log, FileLog)
    assert log.where == str(tmp_path / "a b" / "_top_110")
    assert not (tmp_path / "a b").exists()
    log.create()
    assert (tmp_path / "a b" / "_top_110" / "decisions.log").exists()


def test_memory_logs_of_one_name_and_namespace_are_one():
    log = open_log("memory://shared", "n")
    assert isinstance(log, MemoryLog)
    log.create()
    log.append_decision(b"x")
    assert [entry.content for entry in open_log("memory://shared", "n").decisions()] == [b"x"]
    for url, namespace in (("memory://shared", "m"), ("memory://another", "n")):
        assert list(open_log(url, namespace).decisions()) == []
    forget("shared")
    forget("another")
    assert list(open_log("memory://shared", "n").decisions()) == []
    forget("shared")


@pytest.mark.parametrize(
    "url", ["", "n", "/data/wal", "redis://cache", "files:///x", "file:/x", "FILE:///x", "://", "mem://x"]
)
def test_a_url_of_no_log_is_refused_with_those_there_are(url):
    with pytest.raises(ConfigError, match="file:///path"):
        open_log(url, "n")


def test_kafka_needs_its_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    for name in [name for name in sys.modules if name.startswith("tidegate.wal.kafka.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=r"pip install 'tidegate\[kafka\]'"):
        open_log("kafka://broker:9092", "n")


@pytest.mark.parametrize(
    "url", ["file://data/wal", "file://", "file://host/x", "file:///x?y=1", "file:///x#y", "file:///%00"]
)
def test_a_file_url_without_an_absolute_path_is_refused(url):
    with pytest.raises(ConfigError, match=r"file:///path"):
        open_log(url, "n")


@pytest.mark.parametrize(
    "scheme,there_are", [("memory", "it has none"), ("file", "there are lock_timeout_s")]
)
def test_an_unknown_option_is_named_with_those_there_are(tmp_path, scheme, there_are):
    with pytest.raises(ConfigError, match=f"unknown option lock_timeout; {there_are}"):
        open_log(f"{scheme}://{tmp_path}", "n", {"lock_timeout": 3})


@pytest.mark.parametrize("seconds", [0, -1, 86_401, float("nan"), True, "3"])
def test_a_lock_timeout_that_is_none_is_refused(tmp_path, seconds):
    with pytest.raises(ConfigError, match="lock_timeout_s"):
        open_log(f"file://{tmp_path}", "n", {"lock_timeout_s": seconds})


@pytest.mark.parametrize("url", ["memory://x", "file:///x"])
def test_a_namespace_that_is_no_name_is_refused(url):
    with pytest.raises(ConfigError, match="namespace name"):
        open_log(url, "../n")


def test_a_password_is_not_shown():
    """T48."""
    with pytest.raises(ConfigError) as caught:
        open_log("nats://u:s3cret@h", "n")
    assert "s3cret" not in str(caught.value)


def test_a_backend_is_imported_when_it_is_asked_for():
    script = (
        "import sys, tidegate.wal.open_log\n"
        "backends = {'tidegate.wal.file.log', 'tidegate.wal.memory_log', 'confluent_kafka'}\n"
        "assert not backends & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_process_shares_one_log_per_arguments(tmp_path, monkeypatch):
    url = f"file://{tmp_path}"
    log = shared_log(url, "n", "u", {"lock_timeout_s": 2})
    assert shared_log(url, "n", "u", {"lock_timeout_s": 2}) is log
    assert shared_log(url, "m", "u", {"lock_timeout_s": 2}) is not log
    assert shared_log(url, "n", "u", {"lock_timeout_s": 3}) is not log
    assert shared_log(url, "n", "u") is shared_log(url, "n", "u", {})
    assert shared_log(url, "n", "made anew") is not shared_log(url, "n", "u")
    monkeypatch.setattr(os, "getpid", lambda: -1)  # T13: what a child finds after a fork
    assert shared_log(url, "n", "u", {"lock_timeout_s": 2}) is not log


def test_the_loser_of_a_race_is_closed(tmp_path, monkeypatch):
    url, closed, won = f"file://{tmp_path}", [], []

    def close(log):
        closed.append(log)

    monkeypatch.setattr(FileLog, "close", close)

    def slow(url, namespace, options):
        made = open_log(url, namespace, options)
        monkeypatch.setattr(module, "open_log", open_log)
        won.append(shared_log(url, namespace, "u", options))  # another thread, meanwhile
        return made

    monkeypatch.setattr(module, "open_log", slow)
    assert shared_log(url, "raced", "u", None) is won[0]
    assert len(closed) == 1
    assert closed[0] is not won[0]
