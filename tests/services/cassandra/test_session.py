"""One connection per process and cluster: shared, counted, left alone by children, refused after its end."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import traceback
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from cassandra import OperationTimedOut

from tidegate.base import deadline
from tidegate.errors import ConfigError, StoreUnavailableError
from tidegate.sinks.cassandra.client import session
from tidegate.sinks.cassandra.store import CassandraStore
from tidegate.sinks.records import Identity, ReadAt

DEADLINE_S = 180.0

FORKS = """
import contextlib, json, os, sys, threading
from tidegate.sinks.open_store import open_store

url, name, how = sys.argv[1:]

def say(who, **facts):
    os.write(1, json.dumps({"who": who, **facts}).encode() + b"\\n")  # one write: lines do not mix

def used(store):
    return [store.identity().name, store.pointer().visible]

store = open_store(url, name)
before = store._space.session
assert used(store) == [name, 0]
stop = threading.Event()

def ask_on():
    asked = 0
    while not stop.is_set():
        store.pointer()
        asked += 1
    say("thread", asked=asked)

def hold():  # the locks that a thread of the driver's holds at times
    connections = [pool._connection for pool in before.driver._pools.values()]
    with contextlib.ExitStack() as locked:
        for lock in (before.cluster._lock, *(one.lock for one in connections)):
            locked.enter_context(lock)
        held.set()
        stop.wait()
    say("thread", asked=1)

held = threading.Event()
asking = threading.Thread(target=hold if how.startswith("held ") else ask_on)
asking.start()
if how.startswith("held "):
    held.wait()
child = os.fork()
if child == 0:
    if how.endswith("uses"):
        found = used(store)  # by a session of its own
        say("child", found=found, own=store._space.session is not before)
    if not how.endswith("ends"):
        store.close()
    say("child ends")
    sys.exit(0)  # as Python does: what is registered for the end runs
_, status = os.waitpid(child, 0)
if how.startswith("held "):
    stop.set()
found = used(store)
stop.set()
asking.join()
say("parent", status=status, found=found, same=store._space.session is before,
    open=not before.cluster.is_shutdown)
store.close()
"""


@pytest.fixture
def name(cassandra_tables):
    """A namespace that was made."""
    name = f"s{uuid.uuid4().hex[:8]}"
    store = CassandraStore(cassandra_tables, name)
    with contextlib.closing(store):
        store.create(Identity("u", name, 4))
    return name


@pytest.fixture
def open_here(cassandra_tables, name):
    """Stores of this process, closed in the end, whatever a test did."""
    opened = []

    def open_store(**options):
        opened.append(CassandraStore(cassandra_tables, name, **options))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


def shared():
    return [users for _, users in session._shared.sessions.values()]


# -- children -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["uses", "closes", "ends", "held uses", "held ends"])
def test_a_child_leaves_the_parents_session_alone_t13(cassandra_tables, name, how):
    """A thread of the parent asks all the time, also at the moment of the fork; or it holds locks."""
    command = [sys.executable, "-c", FORKS, cassandra_tables, name, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    told = {line["who"]: line for line in map(json.loads, done.stdout.splitlines())}
    if how.endswith("uses"):
        assert (told["child"]["found"], told["child"]["own"]) == ([name, 0], True)
    assert "child ends" in told
    assert told["thread"]["asked"] > 0
    assert told["parent"] == {
        "who": "parent", "status": 0, "found": [name, 0], "same": True, "open": True,
    }  # fmt: skip


def test_children_of_children_and_many_at_once_t13(cassandra_tables, name, open_here):
    """As a pool of workers is forked from a process that has read before."""
    store = open_here()
    assert store.pointer().visible == 0
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if store.pointer().visible == 0 and nested(store) == 0 else 2
            except Exception:  # noqa: BLE001 - whatever it was, it is shown
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    assert store.pointer().visible == 0


def nested(store):
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os._exit(store.pointer().visible)
        os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# -- one session for all ------------------------------------------------------------------------------


@pytest.mark.parametrize("first,second", [(0, 1), (1, 0)])
def test_stores_of_one_process_share_a_session_and_close_in_any_order(open_here, first, second):
    before = len(shared())
    stores = [open_here(), open_here()]
    sessions = [store._space.session for store in stores]
    assert sessions[0] is sessions[1]
    assert len(shared()) == before + 1
    stores[first].close()
    stores[first].close()  # twice is once
    assert stores[second].pointer().visible == 0
    assert not sessions[0].cluster.is_shutdown
    stores[second].close()
    assert sessions[0].cluster.is_shutdown
    assert len(shared()) == before
    again = open_here()
    assert again.pointer().visible == 0
    assert again._space.session is not sessions[0]


def test_other_settings_are_another_session(open_here):
    assert open_here()._space.session is not open_here(timeout_s=7)._space.session


def test_after_close_it_is_refused(open_here):
    store = open_here()
    store.pointer()
    scan = store.scan(ReadAt("t", 0), 0)
    store.close()
    for use in (store.pointer, store.identity, store.leases, lambda: next(scan)):
        with pytest.raises(ConfigError, match="this store was closed; open it again"):
            use()
    unused = open_here()
    unused.close()
    with pytest.raises(ConfigError, match="closed"):
        unused.pointer()


def test_threads_use_one_store_and_take_one_session(open_here):
    """All begin at the same moment, with a store that is not connected yet."""
    before = sum(shared())
    store, together = open_here(), threading.Barrier(16)

    def use(_):
        together.wait(DEADLINE_S)
        return store.pointer().visible, store.get_many(ReadAt("t", 0), [b"a", b"b"]).to_pylist()

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(use, range(16))) == [(0, [None, None])] * 16
    assert sum(shared()) == before + 1
    store.close()
    assert sum(shared()) == before


# -- clusters that are not there ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "place,why", [("127.0.0.1:1", "Connection refused"), ("no-such-host.invalid", "none of the hosts' names")]
)
def test_a_cluster_that_is_not_there(place, why):
    store = CassandraStore(f"cassandra://ann:secret@{place}/tidegate", "n", timeout_s=0.5)
    with pytest.raises(StoreUnavailableError, match=why) as raised:
        store.identity()
    assert "secret" not in str(raised.value)
    assert place.partition(":")[0] in str(raised.value)
    store.close()


@pytest.mark.slow
def test_a_cluster_that_comes_later(private_cassandra):
    """The same store, which could not connect at first."""
    server = private_cassandra()
    server.kill()
    store = CassandraStore(server.url, "n", timeout_s=0.5)
    with pytest.raises(StoreUnavailableError):
        store.identity()
    server.restart()
    patient = CassandraStore(server.url, "n", timeout_s=30)
    assert store.identity() is patient.identity() is None
    store.close()
    patient.close()


def test_a_keyspace_is_named_without_regard_to_case(cassandra, cassandra_tables, name):
    store = CassandraStore(cassandra.url_for("TideGate"), name)
    with contextlib.closing(store):
        assert store.identity().name == name


def test_the_last_try_ends_with_the_call(cassandra_tables, name, open_here, monkeypatch):
    """A try has its part of the call's time, and never more than what is left of it (decision 0042)."""
    store = open_here(timeout_s=30.0)
    assert store.pointer().visible == 0
    ahead, given = [0.0], []
    monkeypatch.setattr(deadline, "monotonic", lambda: time.monotonic() + ahead[0])

    def answers_late(statement, timeout, **_):
        given.append(timeout)
        ahead[0] += 11.0
        raise OperationTimedOut

    monkeypatch.setattr(store._space.session.driver, "execute", answers_late)
    with pytest.raises(StoreUnavailableError):
        store.pointer()
    assert given[:2] == [10.0, 10.0]
    assert len(given) == 3
    assert 0 < given[2] <= 30.0 - 2 * 11.0
