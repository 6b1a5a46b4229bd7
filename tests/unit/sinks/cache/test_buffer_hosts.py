"""Hosts that share a memory file system, as workers of one machine do: each has its own cache in it."""

import json
import os
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pytest

from tidegate.base.local_dir import LocalDir, local_dirs
from tidegate.sinks.cache.buffer import owner
from tidegate.sinks.cache.buffer.buffer import open_buffer
from tidegate.sinks.cache.buffer.limits import BufferLimits
from tidegate.sinks.cache.buffer.owner import host_at
from tidegate.sinks.cache.cache import CacheSpec, StateCache
from tidegate.sinks.cache.links import Link
from tidegate.sinks.cache.pieces import host_pieces

KEEP = """
    import sys
    from tidegate.sinks.cache.buffer import buffer
    buffer.MEMORY_PATH = sys.argv[1]
    kept = buffer.open_buffer("flights", sys.argv[3], sys.argv[2])
    assert kept.put("1-kept", [b"x" * 5000])
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """The memory file system of the machine."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr("tidegate.sinks.cache.buffer.buffer.MEMORY_PATH", str(folder))
    return folder


@pytest.fixture
def keeper(tmp_path, memory):
    """Starts a process that has a unit in memory, of a host and a namespace; all are ended with the test."""
    started = []

    def start(host, uuid="u1"):
        words = [sys.executable, "-c", textwrap.dedent(KEEP), str(memory), str(tmp_path / host), uuid]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        end(process)


def end(process):
    process.kill()
    process.communicate()


def in_memory(memory):
    return len(list(memory.rglob("*.memory")))


def cache_of(folder, base, links, run):
    spec = CacheSpec(base, links, {"sums": 0}, 8, 1 << 24)
    pieces = host_pieces((str(folder),), "flights", "u1", 1 << 24, 1 << 24)
    local = local_dirs(str(folder), "flights", "u1")[0]
    return StateCache(local, pieces, spec, range(8), run, ["sums"])


def changes(keys, mark):
    values = pa.array([b"+%d" % mark] * len(keys), pa.binary())
    groups = pa.array(np.zeros(len(keys)), pa.int32())
    return pa.record_batch({"g": groups, "k": pa.array(keys, pa.binary()), "v": values})


def test_the_cache_of_one_host_is_not_swept_by_another(tmp_path, memory):
    """Three hosts keep a version of their own tasks each, batch after batch; all find all of it."""
    hosts, keys = [tmp_path / name for name in ("a", "b", "c")], [b"k%d" % n for n in range(50)]
    links = dict.fromkeys(hosts, ())
    for version in range(1, 5):
        for host in hosts:
            cache = cache_of(host, version - 1, links[host], f"run-{version}-{host.name}")
            if version > 1:
                found = cache.read("sums", changes(keys, 0), lambda _: pytest.fail("the store is asked"))
                assert found.to_pylist() == [b"+%d" % (version - 1)] * len(keys)
            cache.wrote("sums", changes(keys, version))
            link = Link(version, 0, 8, f"{version}{host.name}")
            cache.keep(link)
            links[host] = (link,)
    assert len(list(memory.rglob("buffer-*"))) == 3


def test_whoever_shares_the_folder_shares_the_memory_by_any_path(tmp_path, memory):
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert open_buffer("flights", "u1", str(tmp_path / "a")).put("1-x", [b"1"])
    assert open_buffer("flights", "u1", str(tmp_path / "link")).look("1-x").views[0].to_pybytes() == b"1"
    assert open_buffer("flights", "u1", str(tmp_path / "b")).look("1-x") is None


def test_what_a_dead_host_left_stays_for_it_as_long_as_its_folder_is_there(keeper, tmp_path, memory):
    end(keeper("a"))
    open_buffer("flights", "u1", str(tmp_path / "b"))
    open_buffer("flights", "u2", str(tmp_path / "b"))
    assert in_memory(memory) == 1
    again = open_buffer("flights", "u1", str(tmp_path / "a"))
    assert again.look("1-kept").views[0].size == 5000


def test_what_a_dead_host_left_goes_with_its_folder(keeper, tmp_path, memory):
    """Memory that nobody can come back to; with the host alive it stays, whatever became of the folder."""
    process = keeper("a")
    shutil.rmtree(tmp_path / "a")
    open_buffer("flights", "u1", str(tmp_path / "b"))
    assert in_memory(memory) == 1
    end(process)
    open_buffer("flights", "u1", str(tmp_path / "b"))
    assert in_memory(memory) == 0


def test_what_a_dead_host_left_goes_when_nobody_came_for_a_day(keeper, tmp_path, memory):
    end(keeper("a"))
    for mark in memory.rglob("owners/*"):
        os.utime(mark, (mark.stat().st_mtime - 2 * owner.OTHERS_S,) * 2)
    open_buffer("flights", "u2", str(tmp_path / "b"))
    assert in_memory(memory) == 0


@pytest.mark.parametrize("content", [b"", b"{", b'["x"]', json.dumps(["\0", 1, 2]).encode()])
def test_a_note_of_a_host_that_cannot_be_read_removes_nothing(keeper, tmp_path, memory, content):
    end(keeper("a"))
    for note in memory.rglob("buffer-*/host"):
        note.write_bytes(content)
    open_buffer("flights", "u1", str(tmp_path / "b"))
    assert in_memory(memory) == 1


def test_without_memory_in_the_limits_all_is_in_the_folder(tmp_path, memory):
    """So containers that share a node's folder, and not its memory, have one cache."""
    buffer = open_buffer("flights", "u1", str(tmp_path / "a"), BufferLimits(memory_bytes_max=0))
    assert buffer.put("1-x", [b"1"])
    assert buffer.home.local.root == tmp_path / "a"
    assert not list(memory.iterdir())


def test_a_folder_that_cannot_be_made_is_no_hosts(tmp_path, memory):
    (tmp_path / "a").write_text("a file is in the way")
    assert host_at(tmp_path / "a") is None
    LocalDir(str(tmp_path / "a"), "flights", "u1").close()
    open_buffer("flights", "u1", str(tmp_path / "a"))
