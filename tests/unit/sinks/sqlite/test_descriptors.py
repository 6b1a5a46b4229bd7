"""The descriptors of a process with many namespaces, or with many threads on one."""

import concurrent.futures
import contextlib
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tidegate.sinks.records import Identity
from tidegate.sinks.sqlite.disk import idle
from tidegate.sinks.sqlite.store import SqliteStore
from tidegate.testing.store.harness import get, put

KEY_GROUPS = 16
FILES = KEY_GROUPS + 1
CHANGES = {"t": {b"%03d" % i: b"v" * 50 for i in range(100)}}
OPEN = Path("/proc/self/fd")

pytestmark = pytest.mark.skipif(not OPEN.is_dir(), reason="this system does not list a process's descriptors")

NAMESPACES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
sys.path[:0] = sys.argv[2:]
from test_descriptors import CHANGES, opened, read_all
from tidegate.sinks.sqlite.store import SqliteStore
stores = [SqliteStore(sys.argv[1], f"n{number}") for number in range(40)]
for store in stores * 2:
    read_all(store)
print(opened())
"""


def make(root, name):
    store = SqliteStore(str(root), name)
    store.create(Identity(f"uuid-{name}", name, KEY_GROUPS))
    store.claim(1, "w")
    return store


def read_all(store):
    """Read from all files of the namespace."""
    assert get(store, "t", list(CHANGES["t"]), 1) == [b"v" * 50] * 100


def opened(folder=None):
    """Count this process's descriptors, or those of files below the folder."""
    paths = []
    for descriptor in OPEN.iterdir():
        try:
            paths.append(str(descriptor.readlink()))
        except FileNotFoundError:  # the listing's own
            continue
    return sum(folder is None or path.startswith(str(folder)) for path in paths)


def test_40_namespaces_fit_into_1024_descriptors(tmp_path):
    """The process ended at its 20th namespace: 51 descriptors each, kept without limit."""
    store = make(tmp_path, "n0")
    put(store, 1, CHANGES, KEY_GROUPS)
    store.close()
    for number in range(1, 40):
        shutil.copytree(tmp_path / "n0", tmp_path / f"n{number}")
    done = subprocess.run(
        [sys.executable, "-c", NAMESPACES, str(tmp_path), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert int(done.stdout) < 700


def test_60_threads_on_one_namespace(tmp_path):
    """Each thread that read at the same time left a connection to each file, permanently."""
    store = make(tmp_path, "n")
    put(store, 1, CHANGES, KEY_GROUPS)

    def read(_number):
        for _ in range(5):
            read_all(store)

    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        list(pool.map(read, range(60)))
    assert all(len(file.idle) <= idle.IDLE_MAX for file in store._files._connections._files.values())
    # Each connection has its file and its -wal; the -shm is the process's.
    assert opened(tmp_path) <= FILES * (idle.LENT_MAX + idle.IDLE_MAX + 1)
    store.close()
    assert opened(tmp_path) == 0


def test_60_connections_at_one_time_are_not_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(idle, "LENT_WAIT_S", 60.0)
    store = make(tmp_path, "n")
    lent, left = [], threading.Lock()

    def hold(_number):
        with store._files.connection("meta.sqlite"):
            with left:
                lent.append(1)
                count = len(lent)
            store._files.size()  # lets other threads run
            with left:
                lent.pop()
        return count

    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        assert max(pool.map(hold, range(60))) <= idle.LENT_MAX
    store.close()


def test_threads_that_read_at_one_time_open_no_file_again(tmp_path, monkeypatch):
    """Two connections were kept: of three threads that had read at one time, the third opened one again."""
    store = make(tmp_path, "n")
    opens, connect = [], store._files._connect

    def counted(*arguments):
        opens.append(arguments)
        return connect(*arguments)

    monkeypatch.setattr(store._files, "_connect", counted)
    with store._files.connection("meta.sqlite"):  # a thread that stays while the others alternate
        for _ in range(3):
            with contextlib.ExitStack() as held:
                for _ in range(idle.LENT_MAX - 1):
                    held.enter_context(store._files.connection("meta.sqlite"))
    assert len(opens) <= idle.LENT_MAX
    assert store._files._connections.idle == idle.IDLE_MAX, "no thread uses the file any more"
    store.close()


def test_a_connection_beyond_the_limit_is_opened_after_the_wait(tmp_path, monkeypatch):
    """Eight threads wait for another process's lock: a reader must not fail with them."""
    monkeypatch.setattr(idle, "LENT_WAIT_S", 0.01)
    store = make(tmp_path, "n")
    with contextlib.ExitStack() as held:
        for _ in range(idle.LENT_MAX):
            held.enter_context(store._files.connection("meta.sqlite"))
        assert store.pointer().epoch == 1
    store.close()


def test_the_namespace_that_was_used_last_keeps_its_connections(tmp_path, monkeypatch):
    monkeypatch.setattr(idle, "idle_in_process", lambda: FILES)
    cold, warm = make(tmp_path, "cold"), make(tmp_path, "warm")
    put(cold, 1, CHANGES, KEY_GROUPS)
    put(warm, 1, CHANGES, KEY_GROUPS)
    read_all(warm)
    assert opened(tmp_path / "cold") == 0
    assert opened(tmp_path / "warm") == 3 * FILES
    read_all(cold)
    cold.close()
    warm.close()


def test_a_new_namespace_has_no_shard_open(tmp_path):
    """Its creation kept a connection to each; the first version opens them."""
    store = make(tmp_path, "n")
    assert opened(tmp_path) == 3
    store.close()
